"""Checks that a model's engine supports what a request asks, made before its prompt is
rendered.

A parameter that the engine does not support is rejected if the client relies on it, and
otherwise named in a warning. No parameter is ignored silently.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from types import MappingProxyType

import msgspec

from ..core.capabilities import Capabilities, Feature
from ..core.errors import RequestError, Unsupported
from ..core.message import (
    Audio,
    File,
    Image,
    Message,
    Part,
    ToolCall,
    ToolResult,
)
from ..core.request import (
    AnyJsonObject,
    Constraint,
    ContextFreeGrammar,
    Conversation,
    GenerateRequest,
    GenerationLimits,
    JsonSchema,
    Prompt,
    Regex,
    Sampling,
    StringChoices,
)
from .call_terms import CallTerms

_CONSTRAINT_FEATURES: dict[type[Constraint], Feature] = {
    AnyJsonObject: Feature.JSON_OBJECT,
    JsonSchema: Feature.JSON_SCHEMA,
    Regex: Feature.REGEX,
    StringChoices: Feature.CHOICE,
    ContextFreeGrammar: Feature.GRAMMAR,
}

_MEDIA_FEATURES: dict[type[Part], Feature] = {
    Image: Feature.IMAGES,
    Audio: Feature.AUDIO,
    File: Feature.FILES,
}
_MEDIA_HOLDERS = frozenset({*_MEDIA_FEATURES, ToolResult})

# JSON of `kv_transfer_params` with no field but the prompt's ids.
_ONLY_PROMPT_IDS = re.compile(r'\s*\{\s*"prompt_token_ids"\s*:\s*\[[\d\s,]*\]\s*\}\s*')
_PIPELINE_PARAMETERS = frozenset({"max_tokens", "stop", "include_stop"})
_DEFAULT_LIMITS: tuple[object, ...] = msgspec.structs.astuple(GenerationLimits())
_OFF: Mapping[str, object] = MappingProxyType(
    {
        name: value
        for name, value in msgspec.structs.asdict(Sampling()).items()
        if name != "temperature" and value is not None
    }
)
"""Values that turn a parameter off. Many clients always send them, and an engine
without the parameter complies.
"""
_SENT_NAMES = {
    "truncate_prompt": "truncate_prompt_tokens",
    "schema_description": "response_format.json_schema.description",
    "cache_threshold_finish": "x-cache-threshold-finish-reason",
}
"""Names of parameters in requests, by our field's name, where the two differ."""


class FieldSupport(msgspec.Struct, frozen=True):
    """An engine's support of the fields of a request, besides its messages.

    missing: the first feature that the engine lacks, and the field that demands it; None
        if it has all.
    ignored: the parameters that the engine lacks, by the names of our fields.
    """

    missing: tuple[Feature, str] | None
    ignored: frozenset[str]


def find_part_types(prompt: Prompt) -> Set[type[Part]]:
    """Return the types of all parts of a conversation. Nearly every one has only texts,
    and its parts then need not be inspected again.
    """
    types: set[type[Part]] = set()
    if isinstance(prompt, Conversation):
        for message in prompt.messages:
            for part in message.parts:
                types.add(type(part))
    return types


def find_support(
    request: GenerateRequest,
    capabilities: Capabilities,
    terms: CallTerms,
    *,
    renders_prompt: bool = True,
) -> FieldSupport:
    """Compare the fields of a request with an engine's capabilities.

    renders_prompt: the pipeline handles prompts, candidates and the queue (token
    engines); otherwise the engine must declare support for the parameters that concern
    them.
    """
    missing = next(
        (
            demand
            for demand in _find_required_features(request)
            if demand[0] not in capabilities.features
        ),
        None,
    )
    requested_names = set(_find_parameters(request))
    if not renders_prompt:
        requested_names.update(_find_prompt_parameters(request, terms))
    # The pipeline's parameters never reach the engine, so it need not support them.
    ignored_names = requested_names - capabilities.parameters - _PIPELINE_PARAMETERS
    return FieldSupport(
        missing,
        frozenset(
            name
            for name in ignored_names
            if name not in _OFF or getattr(request.sampling, name) != _OFF[name]
        ),
    )


def check_request(
    request: GenerateRequest,
    support: FieldSupport,
    part_types: Set[type[Part]],
    capabilities: Capabilities,
    terms: CallTerms,
) -> list[str]:
    """Return warnings about parameters that will be ignored.

    support: see `find_support`.
    part_types: see `find_part_types`.

    Raises:
        Unsupported: the client relies on a parameter that the engine does not support.
    """
    prompt = request.prompt
    # A tool's result may contain media.
    may_have_media = not _MEDIA_HOLDERS.isdisjoint(part_types)
    if support.missing is not None:
        raise _build_missing_error(*support.missing)
    if may_have_media:
        for feature, param in _find_media_features(prompt):
            if feature not in capabilities.features:
                raise _build_missing_error(feature, param)
    if request.logprobs is not None or request.prompt_logprobs is not None:
        _check_logprobs(request, min(capabilities.max_logprobs, terms.max_logprobs))
    warnings = list(_check_tool_results(prompt, terms)) if ToolResult in part_types else []
    if ToolCall in part_types:
        warnings += _find_unanswered_calls(prompt)
    alternatives = capabilities.max_alternatives
    if alternatives is not None and (request.logprobs or 0) > alternatives:
        warnings.append(f"top_logprobs: this engine returns at most {alternatives} per token")
    ignored_names = support.ignored
    if may_have_media and "detail" not in capabilities.parameters and _has_detail(prompt):
        ignored_names |= {"detail"}
    if not ignored_names:
        return warnings
    ignored = sorted(_SENT_NAMES.get(name, name) for name in ignored_names)
    if terms.is_strict:
        raise Unsupported(f"This model's engine does not support `{ignored[0]}`.", param=ignored[0])
    return warnings + [
        f"{name} is ignored: this model's engine does not support it" for name in ignored
    ]


def _build_missing_error(feature: Feature, param: str) -> Unsupported:
    return Unsupported(
        f"This model's engine does not support {feature.value.replace('_', ' ')}.", param=param
    )


def _check_logprobs(request: GenerateRequest, most: int) -> None:
    for requested, param in (
        (request.logprobs, "top_logprobs"),
        (request.prompt_logprobs, "prompt_logprobs"),
    ):
        if requested is not None and requested > most:
            raise RequestError(f"`{param}` is {requested}; the maximum is {most}.", param=param)


def _check_tool_results(prompt: Prompt, terms: CallTerms) -> Iterator[str]:
    """Yield a warning for each result of a tool that answers no earlier call; most
    often the history was lost.

    Raises RequestError instead unless the terms accept them: OpenAI and Anthropic
    reject such requests.
    """
    if not isinstance(prompt, Conversation):
        return
    call_ids: set[str] = set()
    for message in prompt.messages:
        for part in message.parts:
            if isinstance(part, ToolCall):
                call_ids.add(part.id)
            elif (
                isinstance(part, ToolResult) and part.answers_call and part.call_id not in call_ids
            ):
                problem = f"No tool call found for the tool output with id {part.call_id[:64]!r}"
                if terms.is_strict or not terms.accepts_unmatched_results:
                    raise RequestError(f"{problem}.", param="messages", code="invalid_value")
                yield f"messages: {problem[0].lower()}{problem[1:]}"


def _find_unanswered_calls(prompt: Prompt) -> Iterator[str]:
    """Yield a warning if a call has no result although the conversation goes on. Many
    upstreams and chat templates reject that; others do not show the call.
    """
    assert isinstance(prompt, Conversation)
    unanswered: dict[str, None] = {}
    open_calls: dict[str, None] = {}
    for message in prompt.messages:
        results = [part.call_id for part in message.parts if isinstance(part, ToolResult)]
        if results:
            for id in results:
                open_calls.pop(id, None)
            continue
        unanswered |= open_calls
        open_calls = {part.id: None for part in message.parts if isinstance(part, ToolCall)}
    if unanswered:
        id, *others = unanswered
        more = f" and {len(others)} more" if others else ""
        yield f"messages: no tool output found for the tool call with id {id[:64]!r}{more}"


def _find_required_features(request: GenerateRequest) -> Iterator[tuple[Feature, str]]:
    if request.constraint is not None:
        yield _CONSTRAINT_FEATURES[type(request.constraint)], request.constraint_param
    for value, feature, param in (
        (request.logprobs, Feature.LOGPROBS, "logprobs"),
        (request.prompt_logprobs, Feature.PROMPT_LOGPROBS, "prompt_logprobs"),
        (request.logprob_ids or None, Feature.LOGPROB_TOKEN_IDS, "logprob_token_ids"),
        (request.extras.lora, Feature.LORA, "model"),
        (request.suffix, Feature.SUFFIX, "suffix"),
    ):
        if value is not None:
            yield feature, param
    prompt = request.prompt
    if isinstance(prompt, tuple):
        yield Feature.TOKEN_IDS, "prompt"
    elif isinstance(prompt, Conversation):
        if prompt.tools and prompt.tool_choice.mode != "none":
            yield Feature.TOOLS, "tools"
        if prompt.reasoning.budget is not None:
            yield Feature.REASONING_BUDGET, "thinking_token_budget"


def _find_media_features(prompt: Prompt) -> Iterator[tuple[Feature, str]]:
    assert isinstance(prompt, Conversation)
    for index, message in enumerate(prompt.messages):
        features = map(_MEDIA_FEATURES.get, map(type, _flatten_parts(message.parts)))
        yield from (
            (feature, f"messages[{index}].content") for feature in features if feature is not None
        )


def _has_detail(prompt: Prompt) -> bool:
    assert isinstance(prompt, Conversation)
    images = (part for part in iterate_parts(prompt.messages) if isinstance(part, Image))
    return any(image.detail not in (None, "auto") for image in images)


def iterate_parts(messages: tuple[Message, ...]) -> Iterator[Part]:
    """Yield all parts, including those of tool results."""
    for message in messages:
        yield from _flatten_parts(message.parts)


def _flatten_parts(parts: tuple[Part, ...]) -> Iterator[Part]:
    for part in parts:
        yield part
        if isinstance(part, ToolResult):
            yield from part.content


def _find_parameters(request: GenerateRequest) -> list[str]:
    """Find the names of the fields of the sampling, limits and extras that differ from
    their defaults.
    """
    names = [*request.sampling.list_set_fields()]
    # The pipeline itself handles `kv_transfer_params` with only the prompt's ids, a
    # session id is only a hint, and every engine fulfills a threshold of 0.
    extras = request.extras
    transfer = extras.kv_transfer_params
    for name in extras.list_set_fields():
        is_harmless = name == "session_id" or (
            name == "cache_hit_threshold" and not extras.cache_hit_threshold
        )
        is_for_pipeline = (
            name == "kv_transfer_params" and transfer and _ONLY_PROMPT_IDS.fullmatch(transfer)
        )
        if not is_harmless and not is_for_pipeline:
            names.append(name)
    limits: tuple[object, ...] = msgspec.structs.astuple(request.limits)
    names += [
        name
        for name, value, default in zip(
            GenerationLimits.__struct_fields__, limits, _DEFAULT_LIMITS, strict=True
        )
        if value != default
    ]
    if isinstance(request.constraint, JsonSchema) and request.constraint.description is not None:
        names.append("schema_description")
    return names


def _find_prompt_parameters(request: GenerateRequest, terms: CallTerms) -> Iterator[str]:
    """Yield the other parameters that concern engines which render the prompt
    themselves.
    """
    if request.priority and not terms.is_background:
        yield "priority"
    if request.cache_salt:
        yield "cache_salt"
    if (request.best_of or 0) > request.choices:
        yield "best_of"
    if isinstance(request.prompt, Conversation):
        # In a plain prompt they are part of the text that the engine encodes.
        if request.add_special_tokens:
            yield "add_special_tokens"
        reasoning = request.prompt.reasoning
        template = request.prompt.template
        if reasoning.effort is not None:
            yield "reasoning_effort"
        elif reasoning.enabled is not None:
            yield "enable_thinking"
        if template.kwargs is not None:
            yield "chat_template_kwargs"
        if template.documents is not None:
            yield "documents"
