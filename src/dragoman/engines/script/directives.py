"""Directives: replies that the prompt itself asks for. Knows their syntax and when they count, not how they are said.

    [[say TEXT]] [[think TEXT]] [[refuse TEXT]] [[tool NAME {json}]] [[error STATUS MESSAGE]]
    [[delay SECONDS]] [[finish stop|length|content_filter]] [[then]]

`[[then]]` separates replies: the first answers this message, the next one the following turn (with the tool's
result in it), and so on. TEXT and a tool's arguments may be a JSON string, for what could not be written otherwise.
Brackets in TEXT must pair up. `[[anything else]]` is no directive and means nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from ...core.errors import RequestError
from ...core.events import FinishReason
from ...core.message import Message, Role, Text
from ...core.request import Conversation
from .script import CallTool, Fail, Part, Refuse, Say, ScriptEntry, Think, Wait, extract_text

_OPENING = re.compile(r"\[\[(say|think|refuse|tool|error|delay|finish|then)(?=[\s\]])")
_DECODER = json.JSONDecoder()

NO_DIRECTIVE = "This is the scripted engine. Write [[say TEXT]] in your message to choose the reply."
TOOL_RESULT_REPLY = "Done."


class _Directive(Struct, frozen=True):
    name: str
    text: str


def to_conversation(prompt: Conversation | str) -> Conversation:
    """A plain text is what a user would say who says nothing else."""
    return Conversation((Message(Role.USER, (Text(prompt),)),)) if isinstance(prompt, str) else prompt


def parse_directives(conversation: Conversation) -> ScriptEntry | None:
    """The reply that the conversation asks for; None where nobody directs. RequestError for a directive with a fault.

    The last message counts if it has directives. After a tool's result without any, the last user message that has
    some goes on with the reply that this turn has reached.
    """
    try:
        return _find_directed_reply(conversation)
    except ValueError as error:
        raise RequestError(f"Invalid directive in the prompt: {error}.", code="invalid_directive") from None


def _find_directed_reply(conversation: Conversation) -> ScriptEntry | None:
    messages = conversation.messages
    last = next((message for message in reversed(messages) if message.role in {Role.USER, Role.TOOL}), None)
    if last is None:
        return None
    if replies := _split_replies(extract_text(last)):
        # Nobody has spoken since, unless the client wants a last message of the assistant to go on.
        return _build_entry(replies[0], conversation)
    for index in range(len(messages) - 1, -1, -1):
        replies = _split_replies(extract_text(messages[index])) if messages[index].role is Role.USER else []
        if replies:
            turn = _count_turns(messages[index + 1 :])
            return _build_entry(replies[turn], conversation) if turn < len(replies) else None
    return None


def build_default_reply(conversation: Conversation) -> ScriptEntry:
    """What to say when nobody directs: an agent's loop comes to its end, a person is told how it works."""
    roles = [message.role for message in conversation.messages if message.role in {Role.USER, Role.TOOL}]
    return ScriptEntry((Say(TOOL_RESULT_REPLY if roles and roles[-1] is Role.TOOL else NO_DIRECTIVE),))


def _count_turns(messages: Sequence[Message]) -> int:
    """How often the assistant has spoken. Its turn may be told in several messages in a row."""
    turns, in_turn = 0, False
    for message in messages:
        turns += message.role is Role.ASSISTANT and not in_turn
        in_turn = message.role is Role.ASSISTANT
    return turns


def _split_replies(text: str) -> list[list[_Directive]]:
    """The directives of each reply; empty where there are none."""
    replies: list[list[_Directive]] = [[]]
    for directive in _scan_directives(text):
        if directive.name == "then":
            replies.append([])
        else:
            replies[-1].append(directive)
    return replies if any(replies) else []


def _scan_directives(text: str) -> Iterator[_Directive]:
    at = 0
    while opening := _OPENING.search(text, at):
        name, start = opening[1], opening.end()
        while start < len(text) and text[start].isspace():
            start += 1
        inside, at = _read_tool(text, start) if name == "tool" else _read_text(name, text, start)
        yield _Directive(name, inside)


def _read_text(name: str, text: str, start: int) -> tuple[str, int]:
    """What stands until the closing brackets, and where the text goes on."""
    if text.startswith('"', start):
        try:
            value, end = _DECODER.raw_decode(text, start)
        except ValueError:
            end = -1
            value = None
        if isinstance(value, str) and text.startswith("]]", end):
            return _check_encodable(value), end + 2
    depth = 0
    for at in range(start, len(text)):
        if text[at] == "[":
            depth += 1
        elif text[at] == "]":
            if depth == 0 and text.startswith("]]", at):
                return text[start:at].rstrip(), at + 2
            depth -= depth > 0
    raise ValueError(f"[[{name} is not closed; brackets inside must pair up, or be in a JSON string")


def _read_tool(text: str, start: int) -> tuple[str, int]:
    """The name and the arguments, still together. JSON may hold any brackets, so it is read as JSON."""
    at = start
    while at < len(text) and not text[at].isspace() and not text.startswith("]]", at):
        at += 1
    while at < len(text) and text[at].isspace():
        at += 1
    end = at
    if not text.startswith("]]", at):
        try:
            _, end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"the arguments in [[tool {text[start:at].strip()} ...]] are not JSON: {error}") from None
    closing = end
    while closing < len(text) and text[closing].isspace():
        closing += 1
    if not text.startswith("]]", closing):
        raise ValueError(f"[[tool {text[start:at].strip()} ...]] must be closed right after its arguments")
    return text[start:end], closing + 2


def _build_entry(directives: list[_Directive], conversation: Conversation) -> ScriptEntry:
    """A call that nobody could make is left out: agents ask for a title, without tools, by the same message."""
    can_call_tools = bool(conversation.tools) and conversation.tool_choice.mode != "none"
    parts: list[Part] = []
    finish = FinishReason.STOP
    for directive in directives:
        if directive.name == "finish":
            finish = _parse_finish(directive.text)
        elif directive.name != "tool" or can_call_tools:
            parts.append(_build_part(directive))
    return ScriptEntry(tuple(parts) or (Say(NO_DIRECTIVE),), finish=finish)


def _build_part(directive: _Directive) -> Part:
    match directive.name:
        case "say":
            return Say(directive.text)
        case "think":
            return Think(directive.text)
        case "refuse":
            return Refuse(directive.text)
        case "tool":
            return _parse_call(directive.text)
        case "error":
            return _parse_error(directive.text)
        case _:
            return _parse_delay(directive.text)


def _parse_call(text: str) -> CallTool:
    name, *rest = text.split(None, 1) or [""]
    arguments = rest[0].strip() if rest else ""
    if not name:
        raise ValueError("[[tool NAME {json}]] needs the name of a tool")
    value = json.loads(arguments) if arguments.startswith('"') else None
    return CallTool(name, _check_encodable(value) if isinstance(value, str) else arguments or "{}")


def _check_encodable(text: str) -> str:
    """JSON can name halves of a character that no text holds."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("an unpaired surrogate is not valid text") from None
    return text


def _parse_error(text: str) -> Fail:
    status, _, message = text.partition(" ")
    if not (status.isascii() and status.isdecimal() and len(status) == 3):
        raise ValueError(f"[[error STATUS MESSAGE]] needs a status such as 503, not {status[:20]!r}")
    return Fail(int(status), message.strip() or Fail().message)


def _parse_delay(text: str) -> Wait:
    try:
        seconds = float(text)
    except ValueError:
        raise ValueError(f"[[delay SECONDS]] takes a number, not {text[:20]!r}") from None
    return Wait(seconds)


def _parse_finish(text: str) -> FinishReason:
    allowed = {reason.value: reason for reason in FinishReason if reason is not FinishReason.ABORT}
    if text not in allowed:
        raise ValueError(f"[[finish REASON]] takes one of {', '.join(allowed)}, not {text[:20]!r}")
    return allowed[text]
