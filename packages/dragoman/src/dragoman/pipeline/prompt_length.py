"""Bounds on the length of a prompt, checked before it is rendered or tokenized."""

from __future__ import annotations

from ..core.answer_size import CHARACTERS_PER_TOKEN
from ..core.errors import ContextTooLong, RequestError
from ..core.message import (
    FunctionTool,
    Refusal,
    Text,
    ToolCall,
    ToolResult,
)
from ..core.request import (
    Conversation,
    GenerateRequest,
)

FREE_SIZE = 1024 * 1024
"""Texts of up to this many characters are never rejected by the cheap bound, however
small the context is.
"""


MAX_COUNTED = 8 * 1024 * 1024
"""Maximum characters of a prompt that is only counted, or truncated."""


MAX_COUNTED_MESSAGES = 20_000
"""Maximum messages of a conversation that is only counted, or truncated."""


def estimate_prompt_tokens(request: GenerateRequest) -> int:
    """Estimate the tokens of a prompt that only its engine tokenizes, for the queue's
    limits and for upstreams that report no usage.
    """
    prompt = request.prompt
    if isinstance(prompt, tuple):
        return len(prompt)
    size = (
        len(prompt) + len(request.suffix or "")
        if isinstance(prompt, str)
        else _estimate_conversation_size(prompt)
    )
    return max(1, size // CHARACTERS_PER_TOKEN)


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
        size = len(prompt) + len(request.suffix or "")
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
    n_call_chars = 0
    for message in prompt.messages:
        for part in message.parts:
            if type(part) is ToolCall:
                n_call_chars += len(part.arguments)
    if n_call_chars > most:
        text = (
            f"The arguments of the tool calls have {n_call_chars} characters; at most "
            f"{most} are accepted."
        )
        raise RequestError(text, param="messages", code="string_above_max_length")
    n_tool_chars = 0
    for tool in prompt.tools:
        if isinstance(tool, FunctionTool):
            n_tool_chars += len(tool.parameters or "")
    if n_tool_chars > most:
        text = (
            f"The parameters of the tools have {n_tool_chars} characters; at most {most} "
            f"are accepted."
        )
        raise RequestError(text, param="tools", code="string_above_max_length")


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
