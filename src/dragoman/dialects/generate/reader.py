"""A body of /inference/v1/generate to a Call."""

from __future__ import annotations

import msgspec

from ...core.errors import RequestError
from ...core.request import Extras, GenerateRequest
from ..base import Call, Header, ReaderOptions
from ..body import Body, Shape, invalid, json_text, missing, within
from ..constraints import only_one, structured
from ..envelope import AnswerId
from ..fields import MAX_CHOICES, alternatives, model_of, stop_strings
from ..support import read_part
from .parameters import GENERATE, SAMPLING_PARAMS
from .wire import GenerateBody, SamplingParams
from .writer import GenerateView, GenerateWriter

ID_PREFIX = "gen-"
DEFAULT_MAX_TOKENS = 16
"""vLLM's SamplingParams have it."""

_BODY, _PARAMS = Shape(GenerateBody), Shape(SamplingParams)


def read_generate(data: bytes, options: ReaderOptions) -> Call:
    """Raises RequestError, and nothing else."""
    parsed = Body(data)
    if "token_ids" not in parsed.fields:
        raise missing("token_ids")
    body = parsed.read(_BODY)
    warnings, unknown = GENERATE.judge(parsed.others(_BODY.names))
    with within("sampling_params"):
        params, more, strange = read_part(bytes(body.sampling_params), _PARAMS, SAMPLING_PARAMS, "sampling_params")
        request = _request(body, params, options)
    view = GenerateView(
        profile=options.profile,
        logprobs=params.logprobs,
        prompt_logprobs=params.prompt_logprobs,
        include_usage=bool(body.stream and body.stream_options and body.stream_options.include_usage),
    )
    id = AnswerId("", body.request_id)

    def writer(header: Header) -> GenerateWriter:
        return GenerateWriter(id.over(header), view)

    return Call((request,), bool(body.stream), ID_PREFIX, writer, (*warnings, *more), (*unknown, *strange))


def _request(body: GenerateBody, params: SamplingParams, options: ReaderOptions) -> GenerateRequest:
    n, scored = params.n or 1, alternatives(params.prompt_logprobs, "prompt_logprobs")
    if n > min(options.max_n, MAX_CHOICES):
        raise invalid("n", f"expected an integer <= {min(options.max_n, MAX_CHOICES)}")
    if scored is not None and body.stream:
        raise RequestError("'prompt_logprobs' are not available when 'stream' is enabled.", param="prompt_logprobs")
    most = DEFAULT_MAX_TOKENS if params.max_tokens is None else params.max_tokens
    if most == 0:
        raise invalid("max_tokens", "expected -1 or an integer >= 1")
    return GenerateRequest(
        model=model_of(body.model, options),
        prompt=tuple(body.token_ids),
        choices=n,
        sampling=params.sampling(),
        limits=params.ending(None if most == -1 else most, stop_strings(params.stop, options.max_stop)),
        constraint=only_one(structured(params)),
        logprobs=alternatives(params.logprobs, "logprobs"),
        prompt_logprobs=scored,
        priority=body.priority or params.priority or 0,
        cache_salt=body.cache_salt or params.cache_salt or "",
        extras=_extras(body, params),
    )


def _extras(body: GenerateBody, params: SamplingParams) -> Extras:
    asked = json_text(body.kv_transfer_params, "kv_transfer_params")
    return params.extras() if asked is None else msgspec.structs.replace(params.extras(), kv_transfer_params=asked)
