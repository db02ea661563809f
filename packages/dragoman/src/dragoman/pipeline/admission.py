"""Admission checks: whether a model can serve a request, decided before its prompt is
rendered.

A parameter that the engine does not support is rejected if the client relies on it, and
otherwise named in a warning. No parameter is ignored silently.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import datetime
from types import MappingProxyType

import msgspec
from msgspec import Struct

from ..core.engine import Capabilities, Feature
from ..core.errors import ContextTooLong, RequestError, Unsupported
from ..core.message import (
    Audio,
    File,
    FunctionTool,
    Image,
    Message,
    Part,
    Reasoning,
    Refusal,
    Text,
    ToolCall,
    ToolResult,
)
from ..core.request import (
    Constraint,
    ContextFreeGrammar,
    Conversation,
    GenerateRequest,
    GenerationLimits,
    JsonObject,
    JsonSchema,
    Prompt,
    Regex,
    Sampling,
    StringChoices,
)
from .request_queue import ONE_QUEUE, QueueShare


class CallTerms(Struct, frozen=True):
    """The server's settings for one call.

    answer_id: the response's id; sequence ids are derived from it.
    new_id: generates tool call ids.
    now: the time that templates see.
    cache_salt: separates the prefix caches of different owners.
    queue_share: the API key whose share of the engine the call uses.
    is_background: the server set the request's priority, not the client.
    is_strict: an unsupported parameter is an error, not a warning.
    accepts_unmatched_results: a tool result that answers no call causes a warning, as
        in vLLM, not an error.
    max_logprobs: maximum number of alternatives per token.
    close_at_limit: default for requests that do not set
        `GenerationLimits.close_at_limit`.
    timeout: seconds from admission until the response fails with EngineTimeout; None
        means no deadline.
    begin_start: paces the expensive part of admission, after the cheap checks. It
    returns an awaitable that must be awaited first, or None. None means no pacing.
    arrival_time: arrival of the request, in seconds of the event loop's clock; None if
        the call has no such request.
    """

    answer_id: str
    new_id: Callable[[], str]
    now: datetime
    cache_salt: str = ""
    queue_share: QueueShare = ONE_QUEUE
    is_background: bool = False
    is_strict: bool = False
    accepts_unmatched_results: bool = False
    max_logprobs: int = 20
    close_at_limit: bool = False
    timeout: float | None = None
    begin_start: Callable[[], Awaitable[None] | None] | None = None
    arrival_time: float | None = None


_CONSTRAINT_FEATURES: dict[type[Constraint], Feature] = {
    JsonObject: Feature.JSON_OBJECT,
    JsonSchema: Feature.JSON_SCHEMA,
    Regex: Feature.REGEX,
    StringChoices: Feature.CHOICE,
    ContextFreeGrammar: Feature.GRAMMAR,
}

_NO_PARTS: frozenset[type[Part]] = frozenset()
_MEDIA_FEATURES: dict[type[Part], Feature] = {
    Image: Feature.IMAGES,
    Audio: Feature.AUDIO,
    File: Feature.FILES,
}
_MEDIA_HOLDERS = frozenset({*_MEDIA_FEATURES, ToolResult})

FREE_SIZE = 1024 * 1024
"""Texts of up to this many characters are never rejected by the cheap bound, however
small the context is.
"""
MAX_COUNTED = 8 * 1024 * 1024
"""Maximum characters of a prompt that is only counted, or truncated."""
MAX_COUNTED_MESSAGES = 20_000
"""Maximum messages of a conversation that is only counted, or truncated."""
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
_SENT_NAMES = {"truncate_prompt": "truncate_prompt_tokens"}
"""Names of parameters in requests, by our field's name, where the two differ."""


def check_request(
    request: GenerateRequest,
    capabilities: Capabilities,
    terms: CallTerms,
    *,
    renders_prompt: bool = True,
) -> list[str]:
    """Return warnings about parameters that will be ignored.

    renders_prompt: the pipeline handles prompts, candidates and the queue (token
    engines); otherwise the engine must declare support for the parameters that concern
    them.

    Raises:
        Unsupported: the client relies on a parameter that the engine does not support.
    """
    prompt = request.prompt
    # Nearly every conversation has only texts, and its parts then need not be inspected
    # again.
    part_types = (
        frozenset([type(part) for message in prompt.messages for part in message.parts])
        if isinstance(prompt, Conversation)
        else _NO_PARTS
    )
    for feature, param in _find_required_features(request, part_types):
        if feature not in capabilities.features:
            raise Unsupported(
                f"This model's engine does not support {feature.value.replace('_', ' ')}.",
                param=param,
            )
    max_logprobs = min(capabilities.max_logprobs, terms.max_logprobs)
    for requested, param in (
        (request.logprobs, "top_logprobs"),
        (request.prompt_logprobs, "prompt_logprobs"),
    ):
        if requested is not None and requested > max_logprobs:
            raise RequestError(
                f"`{param}` is {requested}; the maximum is {max_logprobs}.", param=param
            )
    warnings = list(_check_tool_results(prompt, terms)) if ToolResult in part_types else []
    alternatives = capabilities.max_alternatives
    if alternatives is not None and (request.logprobs or 0) > alternatives:
        warnings.append(f"top_logprobs: this engine returns at most {alternatives} per token")
    requested_names = set(_find_parameters(request, part_types))
    if not renders_prompt:
        requested_names.update(_find_prompt_parameters(request, terms))
    # The pipeline's parameters never reach the engine, so it need not support them.
    ignored_names = requested_names - capabilities.parameters - _PIPELINE_PARAMETERS
    ignored_names -= {
        name
        for name in ignored_names & _OFF.keys()
        if getattr(request.sampling, name) == _OFF[name]
    }
    if not ignored_names:
        return warnings
    ignored = sorted(_SENT_NAMES.get(name, name) for name in ignored_names)
    if terms.is_strict:
        raise Unsupported(f"This model's engine does not support `{ignored[0]}`.", param=ignored[0])
    return warnings + [
        f"{name} is ignored: this model's engine does not support it" for name in ignored
    ]


def drop_foreign_reasoning(
    conversation: Conversation, capabilities: Capabilities
) -> tuple[Conversation, tuple[str, ...]]:
    """Drop reasoning with a seal that this engine cannot verify, as a client may have
    forged it.

    Return the conversation, and warnings for the client.
    """
    if capabilities.verifies_reasoning or not any(
        map(_has_sealed_reasoning, conversation.messages)
    ):
        return conversation, ()
    messages: list[Message] = []
    for message in conversation.messages:
        if _has_sealed_reasoning(message):
            parts = tuple(
                part for part in message.parts if not isinstance(part, Reasoning) or not part.seal
            )
            if not parts:
                continue
            message = msgspec.structs.replace(message, parts=parts)  # noqa: PLW2901 - the same message, without them
        messages.append(message)
    warning = (
        "messages: reasoning that another model's server has sealed cannot be read here; it "
        "was left out"
    )
    return msgspec.structs.replace(conversation, messages=tuple(messages)), (warning,)


def _has_sealed_reasoning(message: Message) -> bool:
    return any(isinstance(part, Reasoning) and part.seal for part in message.parts)


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


def _find_required_features(
    request: GenerateRequest, part_types: frozenset[type[Part]]
) -> Iterator[tuple[Feature, str]]:
    if request.constraint is not None:
        yield _CONSTRAINT_FEATURES[type(request.constraint)], request.constraint_param
    if request.logprobs is not None:
        yield Feature.LOGPROBS, "logprobs"
    if request.prompt_logprobs is not None:
        yield Feature.PROMPT_LOGPROBS, "prompt_logprobs"
    if request.logprob_ids:
        yield Feature.LOGPROB_TOKEN_IDS, "logprob_token_ids"
    if request.extras.lora is not None:
        yield Feature.LORA, "model"
    prompt = request.prompt
    if isinstance(prompt, tuple):
        yield Feature.TOKEN_IDS, "prompt"
    elif isinstance(prompt, Conversation):
        if prompt.tools and prompt.tool_choice.mode != "none":
            yield Feature.TOOLS, "tools"
        if prompt.reasoning.budget is not None:
            yield Feature.REASONING_BUDGET, "thinking_token_budget"
        # A tool's result may contain media.
        if part_types.isdisjoint(_MEDIA_HOLDERS):
            return
        for index, message in enumerate(prompt.messages):
            features = map(_MEDIA_FEATURES.get, map(type, _flatten_parts(message.parts)))
            yield from (
                (feature, f"messages[{index}].content")
                for feature in features
                if feature is not None
            )


def iterate_parts(messages: tuple[Message, ...]) -> Iterator[Part]:
    """Yield all parts, including those of tool results."""
    for message in messages:
        yield from _flatten_parts(message.parts)


def _flatten_parts(parts: tuple[Part, ...]) -> Iterator[Part]:
    for part in parts:
        yield part
        if isinstance(part, ToolResult):
            yield from part.content


def _find_parameters(request: GenerateRequest, part_types: frozenset[type[Part]]) -> list[str]:
    """Find the names of the fields of the sampling, limits, extras and images that
    differ from their defaults.
    """
    names = [*request.sampling.list_set_fields()]
    # The pipeline itself handles `kv_transfer_params` with only the prompt's ids, and a
    # session id is only a hint.
    transfer = request.extras.kv_transfer_params
    for name in request.extras.list_set_fields():
        is_for_pipeline = (
            name == "kv_transfer_params" and transfer and _ONLY_PROMPT_IDS.fullmatch(transfer)
        )
        if name != "session_id" and not is_for_pipeline:
            names.append(name)
    limits = zip(
        GenerationLimits.__struct_fields__, msgspec.structs.astuple(request.limits), strict=True
    )
    for (name, value), default in zip(limits, _DEFAULT_LIMITS, strict=True):
        if value != default:
            names.append(name)
    if isinstance(request.prompt, Conversation) and not part_types.isdisjoint(_MEDIA_HOLDERS):
        images = (
            part for part in iterate_parts(request.prompt.messages) if isinstance(part, Image)
        )
        if any(image.detail not in (None, "auto") for image in images):
            names.append("detail")
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


def estimate_prompt_tokens(request: GenerateRequest) -> int:
    """Estimate the tokens of a prompt that only its engine tokenizes, for the queue's
    limits: four characters each.
    """
    prompt = request.prompt
    if isinstance(prompt, tuple):
        return len(prompt)
    size = len(prompt) if isinstance(prompt, str) else _estimate_conversation_size(prompt)
    return max(1, size // 4)


def check_text_length(request: GenerateRequest, limit: int, longest_token: int) -> None:
    """Reject a prompt that is certainly too long, before it is rendered and tokenized.

    `limit` tokens hold at most `limit * longest_token` bytes, and a message takes at
    least one token. No prompt that fits is rejected; a prompt that is to be truncated
    has the limits of `check_countable`.

    Raises:
        ContextTooLong: the text cannot fit.
        RequestError: the text is too long to be truncated.
    """
    prompt = request.prompt
    if isinstance(prompt, Conversation):
        _check_arguments(prompt, limit, longest_token)
    if request.limits.truncate_prompt is not None or (
        isinstance(prompt, Conversation) and prompt.drop_oldest
    ):
        if not isinstance(prompt, tuple):
            check_countable(prompt, limit, longest_token, verb="truncated")
        return
    if isinstance(prompt, str):
        size = len(prompt)
        param = "prompt"
    elif isinstance(prompt, Conversation):
        size = _estimate_conversation_size(prompt)
        param = "messages"
    else:
        size = 0
        param = "prompt"
    # A template writes at least one token around every message, so more messages than
    # tokens cannot fit.
    count = (
        len(prompt.messages)
        if isinstance(prompt, Conversation)
        else 0
        if isinstance(prompt, str)
        else len(prompt)
    )
    if count > limit:
        raise ContextTooLong(limit=limit, prompt=count, at_least=True, param=param)
    # A lower bound of the number of tokens, without tokenizing.
    if size > limit * longest_token:
        raise ContextTooLong(
            limit=limit, prompt=-(-size // longest_token), at_least=True, param=param
        )


def check_countable(
    prompt: Conversation | str,
    limit: int,
    longest_token: int,
    *,
    verb: str = "counted",
    param: str = "prompt",
) -> None:
    """Bound a prompt that may exceed the context, because its tokens are only counted
    or it is truncated.

    verb: participle for the error, "counted" or "truncated".
    param: the request's field, if the prompt is a text.

    Raises:
        RequestError: the prompt is too long.
    """
    # Truncation tokenizes the whole text first, so without this bound one request could
    # occupy a CPU core for long.
    most = max(FREE_SIZE, min(limit * longest_token, MAX_COUNTED))
    if isinstance(prompt, str):
        size = len(prompt)
    else:
        size = _estimate_conversation_size(prompt)
        param = "messages"
        _check_arguments(prompt, limit, longest_token)
    if size > most:
        raise RequestError(
            f"`{param}` has {size} characters; at most {most} are {verb} at a time.", param=param
        )
    if not isinstance(prompt, str) and len(prompt.messages) > MAX_COUNTED_MESSAGES:
        count = len(prompt.messages)
        raise RequestError(
            f"`messages` has {count} messages; at most {MAX_COUNTED_MESSAGES} are {verb} at a "
            f"time.",
            param=param,
        )


def _check_arguments(prompt: Conversation, limit: int, longest_token: int) -> None:
    """Bound the arguments and definitions of tools. Raises RequestError.

    A template may rewrite or omit them, so the bound allows for many that never reach
    the model.
    """
    most = max(FREE_SIZE, limit * longest_token)
    n_call_chars = sum(
        [
            len(part.arguments)
            for message in prompt.messages
            for part in message.parts
            if type(part) is ToolCall
        ]
    )
    if n_call_chars > most:
        message = (
            f"The arguments of the tool calls have {n_call_chars} characters; at most "
            f"{most} are accepted."
        )
        raise RequestError(message, param="messages", code="string_above_max_length")
    n_tool_chars = sum(
        [len(tool.parameters or "") for tool in prompt.tools if isinstance(tool, FunctionTool)]
    )
    if n_tool_chars > most:
        message = (
            f"The parameters of the tools have {n_tool_chars} characters; at most {most} "
            f"are accepted."
        )
        raise RequestError(message, param="tools", code="string_above_max_length")


def _estimate_conversation_size(prompt: Conversation) -> int:
    """Return a lower bound of the texts' UTF-8 bytes; an exact count would copy them."""
    size = 0
    for message in prompt.messages:
        for part in message.parts:
            # A template may omit past reasoning and may rewrite arguments, so neither
            # counts towards a lower bound.
            if isinstance(part, Text | Refusal):
                size += len(part.text)
            elif isinstance(part, ToolResult):
                size += sum([len(item.text) for item in part.content if isinstance(item, Text)])
    return size


def find_prompt_param(request: GenerateRequest) -> str:
    return "messages" if isinstance(request.prompt, Conversation) else "prompt"
