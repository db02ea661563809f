"""What the encoders of all upstream APIs share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec import Raw

from ...core.errors import Unsupported
from ...core.message import (
    CustomTool,
    Message,
    Reasoning,
    Role,
    Tool,
    ToolChoice,
)
from ...core.request import (
    Conversation,
    GenerateRequest,
    SamplingOptions,
)
from .server_kind import ServerKind
from .upstream_request import UpstreamDefaults

INVALID_JSON_KEY = "INVALID_JSON"
"""Anthropic's convention for arguments that are not a JSON object: they are sent as the
value of this key.
"""


def require_conversation(request: GenerateRequest, kind: ServerKind) -> Conversation:
    """Return the conversation of a request to a server without Completions and without
    extensions of Chat Completions.

    Raises Unsupported if the request needs features that such a server lacks.
    """
    prompt = request.prompt
    if not isinstance(prompt, Conversation):
        raise Unsupported(
            "The upstream does not support plain prompts, only conversations.", param="prompt"
        )
    if request.return_prompt:
        raise Unsupported(
            "The upstream does not return the tokens of this prompt.", param="return_token_ids"
        )
    if request.limits.include_stop:
        raise Unsupported(
            "The upstream always removes the stop string.", param="include_stop_str_in_output"
        )
    if request.special_tokens_in_text:
        raise Unsupported("The upstream always omits control tokens.", param="skip_special_tokens")
    if prompt.template.template is not None:
        raise Unsupported(
            "Chat templates in requests are not forwarded to an upstream.", param="chat_template"
        )
    if not prompt.template.add_generation_prompt and not prompt.template.continue_final_message:
        raise Unsupported(
            "The upstream always adds a generation prompt.", param="add_generation_prompt"
        )
    for tool in prompt.tools:
        if isinstance(tool, CustomTool) and not kind.has_openai_tools:
            raise Unsupported("The upstream does not support free-form tools.", param="tools")
    return prompt


def warn_of_names(messages: Sequence[Message], warnings: list[str]) -> None:
    """Append a warning if a participant has a name. Names of tools do not matter: their
    calls have them too.
    """
    if any(message.name is not None and message.role is not Role.TOOL for message in messages):
        warnings.append(
            "messages: names of participants are ignored: the upstream does not support them"
        )


def warn_of_history(
    messages: Sequence[Message],
    warnings: list[str],
    *,
    is_continued: bool,
    keeps_reasoning: Callable[[Reasoning], bool],
) -> None:
    """Append warnings about earlier messages, for vendors that sign their reasoning and
    continue a last message of the assistant.

    is_continued: whether the upstream continues the last message unasked.
    keeps_reasoning: whether the upstream accepts this reasoning.
    """
    warn_of_names(messages, warnings)
    if is_continued:
        warnings.append(
            "messages: the upstream continues the last message, since it is an assistant message"
        )
    if any(
        isinstance(part, Reasoning) and not keeps_reasoning(part)
        for message in messages
        for part in message.parts
    ):
        warnings.append(
            "messages: reasoning without a signature of the upstream's vendor was omitted"
        )


def select_tools(conversation: Conversation) -> tuple[tuple[Tool, ...], ToolChoice]:
    """Select the tools and the tool choice for a server without `allowed_tools`, which
    gets only the allowed tools.
    """
    tools = conversation.tools
    choice = conversation.tool_choice
    if choice.names is None or choice.is_named:
        return tools, choice
    return tuple(tool for tool in tools if tool.name in choice.names), ToolChoice(choice.mode)


def merge_sampling(requested: SamplingOptions, defaults: SamplingOptions) -> SamplingOptions:
    return msgspec.structs.replace(
        defaults, **{name: getattr(requested, name) for name in requested.list_set_fields()}
    )


def resolve_max_tokens(request: GenerateRequest, defaults: UpstreamDefaults) -> int | None:
    """Resolve the limit of output tokens; None if neither the request nor the defaults
    set one.
    """
    return defaults.max_tokens if request.limits.max_tokens is None else request.limits.max_tokens


def encode_arguments(arguments: str) -> Raw | dict[str, str]:
    """Encode a call's arguments for an API in which they are an object."""
    try:
        is_object = isinstance(msgspec.json.decode(arguments or "{}"), dict)
    except (msgspec.MsgspecError, RecursionError):
        is_object = False
    return to_raw(arguments or "{}") if is_object else {INVALID_JSON_KEY: arguments}


def to_raw(text: str) -> Raw:
    return Raw(text.encode())
