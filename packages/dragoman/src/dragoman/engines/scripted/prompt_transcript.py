"""A prompt as a plain transcript, whose tokens are counted: there is no chat template."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from ...core.errors import ContextTooLong
from ...core.message import CustomTool, Message, Reasoning, Refusal, Text, ToolCall, ToolResult
from ...core.request import Conversation, GenerateRequest
from ...core.request_checks import check_ids
from ...core.tokenizer import Tokenizer


class TokenizedPrompt(Struct, frozen=True):
    text: str
    ids: tuple[int, ...]


def tokenize_prompt(
    request: GenerateRequest, text: str, tokenizer: Tokenizer, limit: int | None
) -> TokenizedPrompt:
    """Tokenize a prompt.

    text: as `render_prompt` returned it.
    limit: most tokens of prompt and output together; None is no limit.

    Raises: ContextTooLong without room for one output token; if the text's length alone
        shows that, before tokenizing.
    """
    min_tokens = len(text.encode()) // max(tokenizer.longest_token, 1)
    if limit is not None and min_tokens >= limit:
        raise ContextTooLong(limit=limit, prompt=min_tokens, at_least=True)
    match request.prompt:
        case tuple() as ids:
            pass
        case str():
            # A plain prompt may contain control tokens; a conversation may not.
            ids = tuple(
                tokenizer.encode(text, special=True, add_special_tokens=request.add_special_tokens)
            )
        case Conversation():
            ids = tuple(tokenizer.encode(text, special=False))
    if limit is not None and len(ids) >= limit:
        raise ContextTooLong(limit=limit, prompt=len(ids))
    return TokenizedPrompt(text, ids)


def render_prompt(request: GenerateRequest, tokenizer: Tokenizer) -> str:
    match request.prompt:
        case Conversation():
            return render_transcript(request.prompt)
        case str():
            return request.prompt
        case tuple():
            check_ids(request.prompt, tokenizer.vocab_size, "prompt")
            return tokenizer.decode(request.prompt)


def render_transcript(conversation: Conversation) -> str:
    """Render tools first, one per line; then the messages, each after its role. Media
    have no text.
    """
    lines: list[str] = []
    for tool in conversation.tools:
        definition = tool.definition if isinstance(tool, CustomTool) else tool.parameters
        lines.append(
            " ".join(text for text in ("tool:", tool.name, tool.description, definition) if text)
        )
    lines += [
        f"{message.role}: {' '.join(_extract_texts(message))}" for message in conversation.messages
    ]
    return "\n".join(lines)


def _extract_texts(message: Message) -> Iterator[str]:
    for part in message.parts:
        match part:
            case Text(text) | Reasoning(text) | Refusal(text):
                yield text
            case ToolCall(_, name, arguments):
                yield f"{name} {arguments}"
            case ToolResult():
                yield from (inner.text for inner in part.content if isinstance(inner, Text))
            case _:
                pass
