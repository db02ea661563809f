"""Parses messages with the system prompt into the turns of a
`core.request.Conversation`.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ...core.errors import RequestError
from ...core.message import Message, Part, Role, ToolCall, ToolResult
from ..field_errors import check_one_of
from ..request_body import read_json_value
from .content_blocks import ThinkingBlockReader, read_content, read_system
from .wire import AnthropicWireMessage, WireContentBlock

ROLES = {"user": Role.USER, "assistant": Role.ASSISTANT, "system": Role.SYSTEM}
_ENABLED = {"enabled": True}


class MessageHistory(Struct, frozen=True):
    """The turns of a conversation.

    is_prefilled: the last message is the assistant's; the answer continues it.
    """

    messages: tuple[Message, ...]
    is_prefilled: bool

    @property
    def last_speaker(self) -> Role:
        """The role of the last turn, ignoring system messages."""
        roles = (message.role for message in reversed(self.messages))
        return next((role for role in roles if role is not Role.SYSTEM), Role.SYSTEM)


def read_history(
    messages: Sequence[AnthropicWireMessage],
    system: str | list[WireContentBlock] | None,
    thinking_reader: ThinkingBlockReader,
    *,
    drop_nonces: bool = True,
) -> MessageHistory:
    """Parse messages. Adjacent messages of one role form one turn; each tool result is
    a turn, as in all dialects.

    drop_nonces: as in ReaderOptions.

    Raises:
        RequestError: names the path of the invalid field.
    """
    system_parts = read_system(system, drop_nonces=drop_nonces)
    system_messages = (Message(Role.SYSTEM, system_parts),) if system_parts else ()
    turns: list[Message] = []
    names: dict[str, str] = {}
    turn_role = Role.USER
    turn_parts = list[Part]()
    last_user: int | None = None
    for i, message in enumerate(messages):
        message_role = ROLES[check_one_of(message.role, ROLES, f"messages[{i}].role")]
        if message.clear_at is not None:
            check_one_of(
                message.clear_at, ("next_user_message", "never"), f"messages[{i}].clear_at"
            )
        # A system message without content only changes the effort from here on.
        if message.content is None and message.output_config is not None:
            continue
        parts = read_content(
            message.content, message.role, f"messages[{i}].content", thinking_reader
        )
        # Such a system message is valid only until the next user message.
        if message.clear_at == "next_user_message":
            if last_user is None:
                last_user = _find_last_user(messages)
            if i <= last_user:
                continue
        for part in parts:
            role = Role.TOOL if isinstance(part, ToolResult) else message_role
            # The client sends all results of parallel calls in one user message;
            # templates expect one message for each.
            if turn_parts and (role is not turn_role or role is Role.TOOL):
                turns.append(_build_turn(turn_role, turn_parts, names))
                turn_parts = []
            if isinstance(part, ToolCall):
                names[part.id] = part.name
            turn_role = role
            turn_parts.append(part)
    if not turn_parts:
        raise RequestError("at least one message with content is required", param="messages")
    turns.append(_build_turn(turn_role, turn_parts, names))
    last_turn = turns[-1]
    # Both are checked: if a system message follows the assistant's, the answer is a new
    # turn.
    is_prefilled = last_turn.role is Role.ASSISTANT and messages[-1].role == "assistant"
    # A call cannot be continued: its result is missing, and templates close the turn
    # after it.
    if is_prefilled and any(isinstance(part, ToolCall) for part in last_turn.parts):
        raise RequestError(
            "tool_use blocks must be followed by a user message with their tool_result blocks",
            param=f"messages[{len(messages) - 1}]",
        )
    return MessageHistory((*system_messages, *turns), is_prefilled)


def _find_last_user(messages: Sequence[AnthropicWireMessage]) -> int:
    """Return the index of the last message of the user; -1 if there is none."""
    return max([i for i, message in enumerate(messages) if message.role == "user"], default=-1)


def wants_citations(messages: Sequence[AnthropicWireMessage]) -> bool:
    """Whether a document or search result enables citations. In an earlier answer the
    field is a list of citations.
    """
    # A loop over nearly all blocks of a conversation, which have none.
    for message in messages:
        for block in message.content if isinstance(message.content, list) else ():
            if block.citations and read_json_value(block.citations, "citations") == _ENABLED:
                return True
    return False


def _build_turn(role: Role, parts: Sequence[Part], names: dict[str, str]) -> Message:
    """Build a turn. A tool result receives its tool's name."""
    first = parts[0]
    return Message(
        role, tuple(parts), names.get(first.call_id) if isinstance(first, ToolResult) else None
    )
