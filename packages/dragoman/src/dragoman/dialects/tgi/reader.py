"""Parses a body of TGI's or LightLLM's /generate into a GenerationCall."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Raw, Struct

from ...core.errors import RequestError
from ...core.field_names import FieldNames
from ...core.request import Constraint, GenerateRequest, GenerationLimits, JsonSchema, Regex
from ..constraint_fields import (
    MAX_GRAMMAR,
    MAX_REGEX,
    check_text_size,
    read_grammar,
    read_schema_or_text,
    require_at_most_one,
)
from ..field_errors import check_one_of, invalid_value
from ..generation_fields import read_stop_strings, resolve_model
from ..interfaces import GenerationCall, Header, ReaderOptions
from ..parameter_table import read_part
from ..request_body import BodySchema, ParsedBody, prefix_param
from .errors import TGI_NAMES
from .wire import TGI, TGI_PARAMS, TGI_SAMPLING, TgiBody, TgiNamedSchema, TgiParameters
from .writer import TgiRenderOptions, TgiWriter

T = TypeVar("T")

ID_PREFIX = "gen-"
_BODY = BodySchema(TgiBody)
_PARAMETERS = BodySchema(TgiParameters)
_json_schema = msgspec.json.Decoder(TgiNamedSchema)
_regex = msgspec.json.Decoder(str)


class _Inputs(Struct, frozen=True):
    inputs: Raw


# Decodes this field alone: the reader that it selects parses the body again, and
# reports its errors.
_inputs = msgspec.json.Decoder(_Inputs)


def is_tgi_body(data: bytes) -> bool:
    """Whether a body for a path that other dialects share is TGI's: it has `inputs`."""
    try:
        _inputs.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return False
    return True


def read_tgi(
    data: bytes, options: ReaderOptions, *, always_stream: bool = False, as_list: bool = False
) -> GenerationCall:
    """Parse a body.

    always_stream: stream even if the body does not request it.
    as_list: a full response is an array with one entry.

    Raises RequestError, and nothing else.
    """
    parsed = ParsedBody(data)
    body = parsed.decode(_BODY)
    warnings, unknown = TGI.classify_body(parsed, _BODY)
    if body.inputs in ("", []):
        raise invalid_value("inputs", "it must not be empty")
    stream = always_stream or bool(body.stream)
    with prefix_param("parameters"):
        params, param_warnings, unknown_params = read_part(
            bytes(body.parameters), _PARAMETERS, TGI_PARAMS, "parameters"
        )
    # An adapter is selected by the model name here, as in vLLM.
    model = params.adapter_id or resolve_model(body.model, options)
    with prefix_param("parameters"):
        _check_combinations(params, options, stream=stream)
        request = _build_request(model, body, params, options)
        render_options = _build_render_options(body, params, request.limits, as_list=as_list)

    def writer(_: Header) -> TgiWriter:
        return TgiWriter(render_options)

    return GenerationCall(
        (request,),
        stream,
        ID_PREFIX,
        writer,
        (*warnings, *param_warnings),
        (*unknown, *unknown_params),
        field_names=FieldNames(
            ("model", "parameters.adapter_id" if params.adapter_id else "model"), *TGI_NAMES.names
        ),
    )


def _check_combinations(params: TgiParameters, options: ReaderOptions, *, stream: bool) -> None:
    """Reject invalid combinations of parameters."""
    n = params.n or 1
    best_of = params.best_of or 1
    if n > options.max_n:
        raise invalid_value("n", f"expected an integer <= {options.max_n}")
    if n > 1 and params.return_details is None:
        raise invalid_value(
            "n", "more than 1 needs 'return_details': TGI's own format has one answer"
        )
    if n > 1 and best_of not in (1, n):
        raise invalid_value("best_of", f"it must be n={n}, as in LightLLM")
    # TGI's stream events have no index of the answer.
    if stream and max(n, best_of) > 1:
        raise invalid_value("n" if n > 1 else "best_of", "more than 1 cannot be streamed")
    if params.decoder_input_details and (stream or not params.details):
        raise invalid_value("decoder_input_details", "it needs 'details', and cannot be streamed")
    if params.details and params.return_details is not None:
        raise RequestError(
            "Send either `details` or `return_details`, not both: they select different formats.",
            param="return_details",
        )
    if params.top_n_tokens and not params.details:
        raise invalid_value("top_n_tokens", "it needs 'details'")


def _wants_logprobs(params: TgiParameters) -> bool:
    return bool(params.details or params.return_details)


def _build_request(
    model: str, body: TgiBody, params: TgiParameters, options: ReaderOptions
) -> GenerateRequest:
    choices = params.n or 1
    if params.return_details is not None:
        # LightLLM's best_of equals its n: all candidates are returned.
        choices = max(choices, params.best_of or 1)
    # TGI samples if any sampling parameter is set, whatever `do_sample` is.
    sampling_values = (params.temperature, params.top_k, params.top_p)
    do_sample = params.do_sample or any(value is not None for value in sampling_values)
    max_tokens = params.max_new_tokens
    min_tokens = params.min_new_tokens or 0
    if max_tokens is not None and min_tokens > max_tokens:
        raise invalid_value(
            "min_new_tokens", f"it must not be greater than max_new_tokens={max_tokens}"
        )
    if params.stop and params.stop_sequences:
        raise RequestError("Send either `stop` or `stop_sequences`.", param="stop_sequences")
    stop_name = "stop_sequences" if params.stop_sequences else "stop"
    limits = GenerationLimits(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        stop=read_stop_strings(params.stop_sequences or params.stop, options.max_stop, stop_name),
        # TGI's answers contain the stop sequence that ended them; other APIs cut it
        # off.
        include_stop=True,
        ignore_eos=bool(params.ignore_eos),
        truncate_prompt=params.truncate,
    )
    skips_special_tokens = params.add_special_tokens is False or body.add_special_tokens is False
    constraint, constraint_param = require_at_most_one(_read_constraints(params), "parameters.")
    return GenerateRequest(
        model=model,
        prompt=body.inputs if isinstance(body.inputs, str) else tuple(body.inputs),
        choices=choices,
        best_of=None if params.return_details is not None else params.best_of,
        sampling=TGI_SAMPLING.read(params)
        if do_sample
        else TGI_SAMPLING.read(params, temperature=0.0),
        limits=limits,
        constraint=constraint,
        constraint_param=constraint_param,
        logprobs=params.top_n_tokens or 0 if _wants_logprobs(params) else None,
        prompt_logprobs=0 if params.decoder_input_details else None,
        return_prompt=bool(params.decoder_input_details),
        special_tokens_in_text=params.skip_special_tokens is False,
        add_special_tokens=not skips_special_tokens,
    )


def _read_constraints(params: TgiParameters) -> list[tuple[str, Constraint]]:
    constraints: list[tuple[str, Constraint]] = []
    if params.grammar is not None:
        raw = params.grammar.value
        with prefix_param("grammar"):
            match check_one_of(params.grammar.type, ("json", "json_schema", "regex"), "type"):
                case "json":
                    constraint = _read_schema(raw)
                case "json_schema":
                    constraint = _read_schema(
                        _decode_value(
                            _json_schema, raw, "expected an object with a `schema`"
                        ).schema
                    )
                case _:
                    pattern = _decode_value(
                        _regex, raw, "expected a regular expression, as a string"
                    )
                    constraint = Regex(check_text_size(pattern, MAX_REGEX, "value"))
        constraints.append(("grammar", constraint))
    if params.regular_constraint is not None:
        pattern = check_text_size(params.regular_constraint, MAX_REGEX, "regular_constraint")
        constraints.append(("regular_constraint", Regex(pattern)))
    if (schema := read_schema_or_text(params.guided_json, "guided_json")) is not None:
        constraints.append(("guided_json", JsonSchema(schema)))
    if params.guided_grammar is not None:
        definition = check_text_size(params.guided_grammar, MAX_GRAMMAR, "guided_grammar")
        constraints.append(("guided_grammar", read_grammar(definition)))
    return constraints


def _decode_value(decoder: msgspec.json.Decoder[T], raw: Raw, expectation: str) -> T:
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise invalid_value("value", expectation) from None


def _read_schema(raw: Raw) -> JsonSchema:
    schema = read_schema_or_text(raw, "value")
    if schema is None:
        raise invalid_value("value", "expected a JSON Schema")
    return JsonSchema(schema)


def _build_render_options(
    body: TgiBody, params: TgiParameters, limits: GenerationLimits, *, as_list: bool
) -> TgiRenderOptions:
    prefix = ""
    if params.return_full_text:
        if not isinstance(body.inputs, str):
            raise invalid_value("return_full_text", "`inputs` of token ids have no text")
        prefix = body.inputs
    return TgiRenderOptions(
        details=bool(params.details),
        logprobs=_wants_logprobs(params),
        lightllm_tokens=params.return_details,
        as_list=as_list,
        prefill=bool(params.decoder_input_details),
        top_tokens=params.top_n_tokens or 0,
        seed=params.seed,
        prefix=prefix,
        max_tokens=limits.max_tokens,
        stops=limits.stop,
    )
