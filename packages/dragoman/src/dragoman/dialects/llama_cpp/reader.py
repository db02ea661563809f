"""Parses the bodies of /completion and /infill into a GenerationCall."""

from __future__ import annotations

import msgspec

from ...core.field_names import FieldNames
from ...core.request import (
    Constraint,
    ContextFreeGrammar,
    GenerateRequest,
    GenerationLimits,
    JsonSchema,
)
from ..completions.reader import read_prompts
from ..constraint_fields import (
    MAX_GRAMMAR,
    check_text_size,
    read_schema_or_text,
    require_at_most_one,
)
from ..field_errors import invalid_value
from ..generation_fields import read_stop_strings, resolve_model
from ..interfaces import GenerationCall, Header, ReaderOptions
from ..request_body import BodySchema, ParsedBody
from .wire import (
    COMPLETION,
    INFILL,
    LLAMA_CPP_SAMPLING,
    LlamaCppBody,
    LlamaCppCompletionBody,
    LlamaCppInfillBody,
)
from .writer import LlamaCppRenderOptions, LlamaCppWriter

ID_PREFIX = "cmpl-"
RANDOM_SEEDS = (-1, 2**32 - 1)
BANNED = -100.0
"""The bias of a token whose bias is `false`."""
_COMPLETION = BodySchema(LlamaCppCompletionBody)
_INFILL = BodySchema(LlamaCppInfillBody)
_NAMES = (
    ("max_tokens", "n_predict"),
    ("repetition_penalty", "repeat_penalty"),
    ("(top_)?logprobs", "n_probs"),
)
_INFILL_NAMES = (*_NAMES, ("suffix", "input_suffix"), ("prompt", "input_prefix"))


def read_completion(data: bytes, options: ReaderOptions) -> GenerationCall:
    """Parse a body of /completion. Raises only RequestError."""
    parsed = ParsedBody(data)
    body = parsed.decode(_COMPLETION)
    warnings, unknown = COMPLETION.classify_body(parsed, _COMPLETION)
    prompts = read_prompts(body.prompt)
    if len(prompts) != 1:
        raise invalid_value(
            "prompt", f"expected one prompt, got {len(prompts)}: send a request each"
        )
    request = _build_request(
        body, prompts[0], options, add_special_tokens=body.add_special_tokens is not False
    )
    return _build_call(body, request, tuple(warnings), unknown, _NAMES)


def read_infill(data: bytes, options: ReaderOptions) -> GenerationCall:
    """Parse a body of /infill. Raises only RequestError.

    The text before the gap is the extra texts, `input_prefix` and `prompt`: llama.cpp
    puts `prompt` after the token of the gap, where a model continues the prefix.
    """
    parsed = ParsedBody(data)
    body = parsed.decode(_INFILL)
    warnings, unknown = INFILL.classify_body(parsed, _INFILL)
    extras = [
        f"{extra.filename}\n{extra.text}\n" if extra.filename else f"{extra.text}\n"
        for extra in body.input_extra or ()
    ]
    prefix = "".join((*extras, body.input_prefix or "", body.prompt or ""))
    suffix = body.input_suffix or None
    if not prefix and suffix is None:
        raise invalid_value("input_prefix", "it and 'input_suffix' must not both be empty")
    request = _build_request(body, prefix, options, suffix=suffix)
    return _build_call(body, request, tuple(warnings), unknown, _INFILL_NAMES)


def _build_call(
    body: LlamaCppBody,
    request: GenerateRequest,
    warnings: tuple[str, ...],
    unknown: tuple[str, ...],
    names: tuple[tuple[str, str], ...],
) -> GenerationCall:
    stream = bool(body.stream)
    render_options = LlamaCppRenderOptions(
        prompt=request.prompt if isinstance(request.prompt, str) else "",
        probabilities=request.logprobs or 0,
        tokens=stream or bool(body.return_tokens),
        fields=None if body.response_fields is None else tuple(body.response_fields),
    )

    def writer(header: Header) -> LlamaCppWriter:
        return LlamaCppWriter(header.model, render_options)

    return GenerationCall(
        (request,),
        stream,
        ID_PREFIX,
        writer,
        warnings,
        unknown,
        field_names=FieldNames(*names, ("response_format", request.constraint_param)),
    )


def _build_request(
    body: LlamaCppBody,
    prompt: str | tuple[int, ...],
    options: ReaderOptions,
    *,
    suffix: str | None = None,
    add_special_tokens: bool = True,
) -> GenerateRequest:
    constraint, constraint_param = _read_constraint(body)
    name, max_tokens = (
        ("max_tokens", body.max_tokens) if body.n_predict is None else ("n_predict", body.n_predict)
    )
    if max_tokens == 0:
        raise invalid_value(name, "expected -1 or an integer >= 1")
    biases = body.logit_bias
    if isinstance(biases, list):
        body = msgspec.structs.replace(
            body, logit_bias={str(id): _read_bias(bias) for id, bias in biases}
        )
    if body.seed in RANDOM_SEEDS:
        body = msgspec.structs.replace(body, seed=None)
    return GenerateRequest(
        model=resolve_model(body.model, options),
        prompt=prompt,
        suffix=suffix,
        sampling=LLAMA_CPP_SAMPLING.read(body),
        limits=GenerationLimits(
            max_tokens=None if max_tokens == -1 else max_tokens,
            stop=read_stop_strings(body.stop, options.max_stop),
            ignore_eos=bool(body.ignore_eos),
        ),
        constraint=constraint,
        constraint_param=constraint_param,
        logprobs=body.n_probs or None,
        add_special_tokens=add_special_tokens,
    )


def _read_bias(bias: float | bool) -> float:
    """Raises RequestError for `true`, which llama.cpp ignores."""
    if bias is True:
        raise invalid_value("logit_bias", "expected a number or false")
    return BANNED if bias is False else bias


def _read_constraint(body: LlamaCppBody) -> tuple[Constraint | None, str]:
    constraints: list[tuple[str, Constraint]] = []
    # llama.cpp sends and accepts an empty grammar as none.
    if body.grammar:
        definition = check_text_size(body.grammar, MAX_GRAMMAR, "grammar")
        constraints.append(("grammar", ContextFreeGrammar(definition, "gbnf")))
    schema = read_schema_or_text(body.json_schema, "json_schema")
    if schema is not None:
        constraints.append(("json_schema", JsonSchema(schema)))
    return require_at_most_one(constraints)
