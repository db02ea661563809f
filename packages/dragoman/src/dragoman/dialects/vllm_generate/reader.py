"""Parses a body of vLLM's /inference/v1/generate, which maps token ids to token ids."""

from __future__ import annotations

import msgspec

from ...core.errors import RequestError
from ...core.field_names import FieldNames
from ...core.request import GenerateRequest
from ..bounds import MAX_CHOICES
from ..chunk_envelope import ResponseId
from ..constraint_fields import read_structured_outputs, require_at_most_one
from ..field_errors import invalid_value, missing_parameter
from ..generation_fields import (
    check_logprobs,
    read_stop_strings,
    resolve_model,
)
from ..interfaces import GenerationCall, Header, ReaderOptions
from ..parameter_table import read_part
from ..request_body import BodySchema, ParsedBody, prefix_param, read_json_object
from .wire import GENERATE, SAMPLING_PARAMS, GenerateBody, VllmSamplingParams
from .writer import GenerateRenderOptions, GenerateWriter

ID_PREFIX = "gen-"
DEFAULT_MAX_TOKENS = 16
"""The default of vLLM's SamplingParams."""

# All core names but those of top-level fields belong to `sampling_params`.
_TOP_LEVEL = "|".join(GenerateBody.__struct_fields__)
_FIELD_NAMES = FieldNames(
    ("prompt", "token_ids"), (rf"(?!(?:{_TOP_LEVEL})\b)(\w+)", r"sampling_params.\1")
)

_BODY_SCHEMA = BodySchema(GenerateBody)
_PARAMS_SCHEMA = BodySchema(VllmSamplingParams)


def read_generate(data: bytes, options: ReaderOptions) -> GenerationCall:
    """Parse a body. Raises only RequestError."""
    parsed = ParsedBody(data)
    if "token_ids" not in parsed.fields:
        raise missing_parameter("token_ids")
    body = parsed.decode(_BODY_SCHEMA)
    warnings, unknown = GENERATE.classify_body(parsed, _BODY_SCHEMA)
    with prefix_param("sampling_params"):
        params, param_warnings, unknown_params = read_part(
            bytes(body.sampling_params), _PARAMS_SCHEMA, SAMPLING_PARAMS, "sampling_params"
        )
        request = _build_request(body, params, options)
    render_options = GenerateRenderOptions(
        profile=options.profile,
        logprobs=params.logprobs,
        prompt_logprobs=params.prompt_logprobs,
        include_usage=bool(
            body.stream and body.stream_options and body.stream_options.include_usage
        ),
    )
    id = ResponseId("", body.request_id)

    def writer(header: Header) -> GenerateWriter:
        return GenerateWriter(id.apply_to(header), render_options)

    return GenerationCall(
        (request,),
        bool(body.stream),
        ID_PREFIX,
        writer,
        (*warnings, *param_warnings),
        (*unknown, *unknown_params),
        field_names=_FIELD_NAMES,
    )


def _build_request(
    body: GenerateBody, params: VllmSamplingParams, options: ReaderOptions
) -> GenerateRequest:
    n = params.n or 1
    prompt_logprobs = check_logprobs(params.prompt_logprobs, "prompt_logprobs")
    if n > min(options.max_n, MAX_CHOICES):
        raise invalid_value("n", f"expected an integer <= {min(options.max_n, MAX_CHOICES)}")
    # vLLM rejects this too: only a full response has the prompt's logprobs.
    if prompt_logprobs is not None and body.stream:
        raise RequestError(
            "'prompt_logprobs' are not available when 'stream' is enabled.", param="prompt_logprobs"
        )
    max_tokens = DEFAULT_MAX_TOKENS if params.max_tokens is None else params.max_tokens
    if max_tokens == 0:
        raise invalid_value("max_tokens", "expected -1 or an integer >= 1")
    constraint, constraint_param = require_at_most_one(
        read_structured_outputs(params), "sampling_params."
    )
    extras = params.build_extras()
    transfer_params = read_json_object(body.kv_transfer_params, "kv_transfer_params")
    if transfer_params is not None:
        extras = msgspec.structs.replace(extras, kv_transfer_params=transfer_params)
    return GenerateRequest(
        model=resolve_model(body.model, options),
        prompt=tuple(body.token_ids),
        choices=n,
        sampling=params.build_sampling(),
        limits=params.build_limits(
            None if max_tokens == -1 else max_tokens,
            read_stop_strings(params.stop, options.max_stop),
        ),
        constraint=constraint,
        constraint_param=constraint_param,
        logprobs=check_logprobs(params.logprobs, "logprobs"),
        prompt_logprobs=prompt_logprobs,
        priority=body.priority or params.priority or 0,
        cache_salt=body.cache_salt or params.cache_salt or "",
        extras=extras,
    )
