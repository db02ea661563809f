"""A body of TGI's or LightLLM's /generate to a Call."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Raw, Struct

from ...core.errors import RequestError
from ...core.request import Constraint, GenerateRequest, JsonSchema, Limits, Regex, SamplingOptions
from ..base import Call, Header, ReaderOptions
from ..body import Body, Shape, invalid, one_of, within
from ..constraints import MAX_GRAMMAR, MAX_REGEX, grammar, only_one, schema_or_text, sized
from ..fields import model_of, stop_strings
from ..support import read_part
from .parameters import TGI, TGI_PARAMS
from .wire import Grammar, NamedSchema, Parameters, TgiBody
from .writer import TgiView, TgiWriter

T = TypeVar("T")

ID_PREFIX = "gen-"
_BODY, _PARAMETERS = Shape(TgiBody), Shape(Parameters)
_json_schema = msgspec.json.Decoder(NamedSchema)
_regex = msgspec.json.Decoder(str)


class _Inputs(Struct, frozen=True):
    inputs: Raw


_inputs = msgspec.json.Decoder(_Inputs)


def speaks_tgi(data: bytes) -> bool:
    """Whether a body for a path that others have too is one of these: it has `inputs`."""
    try:
        _inputs.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return False
    return True


def read_tgi(data: bytes, options: ReaderOptions, *, streamed: bool = False, listed: bool = False) -> Call:
    """streamed: also where the body does not ask for it. listed: a whole answer is an array of one.

    Raises RequestError, and nothing else.
    """
    parsed = Body(data)
    body = parsed.read(_BODY)
    warnings, unknown = TGI.judge(parsed.others(_BODY.names))
    if body.inputs in ("", []):
        raise invalid("inputs", "it must not be empty")
    stream = streamed or bool(body.stream)
    with within("parameters"):
        params, more, strange = read_part(bytes(body.parameters), _PARAMETERS, TGI_PARAMS, "parameters")
    model = params.adapter_id or model_of(body.model, options)
    with within("parameters"):
        _check(params, options, stream=stream)
        request = _request(model, body, params, options)
        view = _view(body, params, request.limits, listed=listed)

    def writer(_: Header) -> TgiWriter:
        return TgiWriter(view)

    return Call((request,), stream, ID_PREFIX, writer, (*warnings, *more), (*unknown, *strange))


def _check(params: Parameters, options: ReaderOptions, *, stream: bool) -> None:
    """What does not go together."""
    n, best_of = params.n or 1, params.best_of or 1
    if n > options.max_n:
        raise invalid("n", f"expected an integer <= {options.max_n}")
    if n > 1 and params.return_details is None:
        raise invalid("n", "more than 1 needs 'return_details': TGI's own format has one answer")
    if n > 1 and best_of not in (1, n):
        raise invalid("best_of", f"it must be n={n}, as in LightLLM")
    if stream and max(n, best_of) > 1:
        raise invalid("n" if n > 1 else "best_of", "more than 1 cannot be streamed")
    if params.decoder_input_details and (stream or not params.details):
        raise invalid("decoder_input_details", "it needs 'details', and cannot be streamed")
    if params.details and params.return_details is not None:
        raise RequestError(
            "Send either `details` or `return_details`, not both: they select different formats.",
            param="return_details",
        )
    if params.top_n_tokens and not params.details:
        raise invalid("top_n_tokens", "it needs 'details'")


def _scored(params: Parameters) -> bool:
    return bool(params.details or params.return_details)


def _request(model: str, body: TgiBody, params: Parameters, options: ReaderOptions) -> GenerateRequest:
    choices = params.n or 1
    if params.return_details is not None:
        # LightLLM's best_of is its n: all of them are the answer.
        choices = max(choices, params.best_of or 1)
    skips = params.add_special_tokens is False or body.add_special_tokens is False
    return GenerateRequest(
        model=model,
        prompt=body.inputs if isinstance(body.inputs, str) else tuple(body.inputs),
        choices=choices,
        best_of=None if params.return_details is not None else params.best_of,
        sampling=_sampling(params),
        limits=_limits(params, options),
        constraint=only_one(_constraints(params)),
        logprobs=params.top_n_tokens or 0 if _scored(params) else None,
        prompt_logprobs=0 if params.decoder_input_details else None,
        return_prompt=bool(params.decoder_input_details),
        special_tokens_in_text=params.skip_special_tokens is False,
        add_special_tokens=not skips,
    )


def _sampling(params: Parameters) -> SamplingOptions:
    asked = (params.temperature, params.top_k, params.top_p)
    samples = params.do_sample or any(value is not None for value in asked)
    return SamplingOptions(
        temperature=params.temperature if samples else 0.0,
        top_p=params.top_p,
        top_k=None if params.top_k is None else max(params.top_k, 0),
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        seed=params.seed,
        allowed_token_ids=None if params.allowed_token_ids is None else tuple(params.allowed_token_ids),
    )


def _limits(params: Parameters, options: ReaderOptions) -> Limits:
    most, least = params.max_new_tokens, params.min_new_tokens or 0
    if most is not None and least > most:
        raise invalid("min_new_tokens", f"it must not be greater than max_new_tokens={most}")
    if params.stop and params.stop_sequences:
        raise RequestError("Send either `stop` or `stop_sequences`.", param="stop_sequences")
    name = "stop_sequences" if params.stop_sequences else "stop"
    return Limits(
        max_tokens=most,
        min_tokens=least,
        stop=stop_strings(params.stop_sequences or params.stop, options.max_stop, name),
        include_stop=True,
        ignore_eos=bool(params.ignore_eos),
        truncate_prompt=params.truncate,
    )


def _constraints(params: Parameters) -> list[tuple[str, Constraint]]:
    found: list[tuple[str, Constraint]] = []
    if params.grammar is not None:
        with within("grammar"):
            found.append(("grammar", _of_grammar(params.grammar)))
    if params.regular_constraint is not None:
        pattern = sized(params.regular_constraint, MAX_REGEX, "regular_constraint")
        found.append(("regular_constraint", Regex(pattern)))
    if (schema := schema_or_text(params.guided_json, "guided_json")) is not None:
        found.append(("guided_json", JsonSchema(schema)))
    if params.guided_grammar is not None:
        definition = sized(params.guided_grammar, MAX_GRAMMAR, "guided_grammar")
        found.append(("guided_grammar", grammar(definition)))
    return found


def _of_grammar(given: Grammar) -> Constraint:
    match one_of(given.type, ("json", "json_schema", "regex"), "type"):
        case "json":
            return _schema(given.value)
        case "json_schema":
            return _schema(_value(_json_schema, given.value, "expected an object with a `schema`").schema)
        case _:
            pattern = _value(_regex, given.value, "expected a regular expression, as a string")
            return Regex(sized(pattern, MAX_REGEX, "value"))


def _value(decoder: msgspec.json.Decoder[T], raw: Raw, what: str) -> T:
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise invalid("value", what) from None


def _schema(raw: Raw) -> JsonSchema:
    schema = schema_or_text(raw, "value")
    if schema is None:
        raise invalid("value", "expected a JSON Schema")
    return JsonSchema(schema)


def _view(body: TgiBody, params: Parameters, limits: Limits, *, listed: bool) -> TgiView:
    prefix = ""
    if params.return_full_text:
        if not isinstance(body.inputs, str):
            raise invalid("return_full_text", "`inputs` of token ids have no text")
        prefix = body.inputs
    return TgiView(
        details=bool(params.details),
        scored=_scored(params),
        own_form=params.return_details,
        listed=listed,
        prefill=bool(params.decoder_input_details),
        top=params.top_n_tokens or 0,
        seed=params.seed,
        prefix=prefix,
        limit=limits.max_tokens,
        stops=limits.stop,
    )
