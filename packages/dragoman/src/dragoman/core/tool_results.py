"""The order of tool results in a conversation: directly after their calls."""

from __future__ import annotations

from collections.abc import Iterator

from .message import Message, Part, ToolCall, ToolResult


def order_tool_results(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Move each result behind the message with its call; what stood between follows.

    Clients may write between a call and its result, but OpenAI's Chat Completions
    answers 400 there ("must be followed by tool messages"), Anthropic demands that
    results begin the next turn, and many chat templates raise or drop the turn. Results
    of one message's calls keep their order; a result without an earlier call stays
    where it is.
    """
    # A loop, since nearly every conversation ends here.
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolResult):
                return _order(messages)
    return messages


def _order(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    turns: list[list[Message]] = []
    turn_of_call: dict[str, list[Message]] = {}
    for message in messages:
        for piece in _split_results(message):
            first = piece.parts[0] if piece.parts else None
            turn = turn_of_call.get(first.call_id) if isinstance(first, ToolResult) else None
            if turn is None:
                turn = list[Message]()
                turns.append(turn)
            turn.append(piece)
            # Weak servers number calls anew in each answer, so an id means its last call.
            turn_of_call |= {part.id: turn for part in piece.parts if isinstance(part, ToolCall)}
    return tuple([message for turn in turns for message in turn])


def _split_results(message: Message) -> Iterator[Message]:
    """Yield the message, or each of its results and the parts between them."""
    parts = message.parts
    if len(parts) < 2 or not any([isinstance(part, ToolResult) for part in parts]):
        yield message
        return
    pending: list[Part] = []
    for part in parts:
        if not isinstance(part, ToolResult):
            pending.append(part)
            continue
        if pending:
            yield Message(message.role, tuple(pending), message.name)
            pending = []
        yield Message(message.role, (part,), message.name)
    if pending:
        yield Message(message.role, tuple(pending), message.name)
