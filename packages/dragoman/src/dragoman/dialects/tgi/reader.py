"""Parses a body of TGI's /generate into a GenerationCall."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Raw, Struct

from ...core.field_names import FieldNames
from ...core.request import Constraint, GenerateRequest, GenerationLimits, JsonSchema, Regex
from ..constraint_fields import (
    MAX_REGEX,
    check_text_size,
    read_schema_or_text,
    require_at_most_one,
)
from ..field_errors import check_one_of, invalid_value
from ..generation_fields import read_stop_strings, resolve_model
from ..interfaces import GenerationCall, Header, ReaderOptions
from ..parameter_table import read_part
from ..request_body import BodySchema, ParsedBody, prefix_param
from .errors import TGI_NAMES
from .wire import (
    TGI,
    TGI_PARAMS,
    TGI_SAMPLING,
    TgiBody,
    TgiGrammar,
    TgiNamedSchema,
    TgiParameters,
)
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
        _check_combinations(params, stream=stream)
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


def _check_combinations(params: TgiParameters, *, stream: bool) -> None:
    """Reject invalid combinations of parameters."""
    # TGI's stream events have no index of the answer.
    if stream and (params.best_of or 1) > 1:
        raise invalid_value("best_of", "more than 1 cannot be streamed")
    if params.decoder_input_details and (stream or not params.details):
        raise invalid_value("decoder_input_details", "it needs 'details', and cannot be streamed")
    if params.top_n_tokens and not params.details:
        raise invalid_value("top_n_tokens", "it needs 'details'")


def _build_request(
    model: str, body: TgiBody, params: TgiParameters, options: ReaderOptions
) -> GenerateRequest:
    # TGI samples if any sampling parameter is set, whatever `do_sample` is.
    sampling_values = (params.temperature, params.top_k, params.top_p)
    do_sample = params.do_sample or any(value is not None for value in sampling_values)
    limits = GenerationLimits(
        max_tokens=params.max_new_tokens,
        stop=read_stop_strings(params.stop, options.max_stop, "stop"),
        # TGI's answers contain the stop sequence that ended them; other APIs cut it
        # off.
        include_stop=True,
        truncate_prompt=params.truncate,
    )
    grammars = [] if params.grammar is None else [("grammar", _read_constraint(params.grammar))]
    constraint, constraint_param = require_at_most_one(grammars, "parameters.")
    return GenerateRequest(
        model=model,
        prompt=body.inputs if isinstance(body.inputs, str) else tuple(body.inputs),
        best_of=params.best_of,
        sampling=TGI_SAMPLING.read(params)
        if do_sample
        else TGI_SAMPLING.read(params, temperature=0.0),
        limits=limits,
        constraint=constraint,
        constraint_param=constraint_param,
        logprobs=params.top_n_tokens or 0 if params.details else None,
        prompt_logprobs=0 if params.decoder_input_details else None,
        return_prompt=bool(params.decoder_input_details),
        add_special_tokens=body.add_special_tokens is not False,
    )


def _read_constraint(grammar: TgiGrammar) -> Constraint:
    raw = grammar.value
    with prefix_param("grammar"):
        match check_one_of(grammar.type, ("json", "json_schema", "regex"), "type"):
            case "json":
                return _read_schema(raw)
            case "json_schema":
                return _read_schema(
                    _decode_value(_json_schema, raw, "expected an object with a `schema`").schema
                )
            case _:
                pattern = _decode_value(_regex, raw, "expected a regular expression, as a string")
                return Regex(check_text_size(pattern, MAX_REGEX, "value"))


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
        logprobs=bool(params.details),
        as_list=as_list,
        prefill=bool(params.decoder_input_details),
        top_tokens=params.top_n_tokens or 0,
        seed=params.seed,
        prefix=prefix,
        max_tokens=limits.max_tokens,
        stops=limits.stop,
    )
