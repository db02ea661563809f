"""Directives: replies that the prompt itself specifies."""

from __future__ import annotations

import json
import re
from itertools import groupby

from msgspec import Struct

from ...core.errors import (
    RequestError,
)
from ...core.events import FinishReason
from ...core.message import Message, Role, Text
from ...core.request import Conversation
from .match_rule import extract_text
from .script import CallTool, Fail, Part, Refuse, Say, ScriptEntry, Think, Wait

# `[[` and the name of a directive, before white space or the closing bracket.
_OPENING = re.compile(r"\[\[(say|think|refuse|tool|error|delay|finish|then)(?=[\s\]])")


_DECODER = json.JSONDecoder()


NO_DIRECTIVE = (
    "This is the scripted engine. Write [[say TEXT]] in your message to choose the reply."
)


TOOL_RESULT_REPLY = "Done."


class _Directive(Struct, frozen=True):
    name: str
    text: str


def to_conversation(prompt: Conversation | str) -> Conversation:
    """Convert a prompt to a conversation; a plain text becomes its only user message."""
    return (
        Conversation((Message(Role.USER, (Text(prompt),)),)) if isinstance(prompt, str) else prompt
    )


def parse_directives(conversation: Conversation) -> ScriptEntry | None:
    """Parse the directed reply of a conversation; None without directives. Raises
    RequestError for an invalid directive.

    The last message applies if it has directives. After a tool result without any, the
    last user message with directives continues with the reply for the current turn.
    """
    try:
        messages = conversation.messages
        last_message = next(
            (message for message in reversed(messages) if message.role in {Role.USER, Role.TOOL}),
            None,
        )
        if last_message is None:
            return None
        if replies := _split_replies(extract_text(last_message)):
            # No message follows, except an assistant message that the client wants
            # continued.
            return _build_entry(replies[0], conversation)
        for index in range(len(messages) - 1, -1, -1):
            replies = (
                _split_replies(extract_text(messages[index]))
                if messages[index].role is Role.USER
                else []
            )
            if replies:
                # One turn of the assistant may consist of several consecutive messages.
                by_assistant = (message.role is Role.ASSISTANT for message in messages[index + 1 :])
                turn = sum(is_assistant for is_assistant, _ in groupby(by_assistant))
                return _build_entry(replies[turn], conversation) if turn < len(replies) else None
        return None
    except ValueError as error:
        raise RequestError(
            f"Invalid directive in the prompt: {error}.", code="invalid_directive"
        ) from None


def build_default_reply(conversation: Conversation) -> ScriptEntry:
    """Build the reply to a prompt without directives: it ends an agent's loop, or
    explains directives to the user.
    """
    roles = [
        message.role for message in conversation.messages if message.role in {Role.USER, Role.TOOL}
    ]
    return ScriptEntry(
        (Say(TOOL_RESULT_REPLY if roles and roles[-1] is Role.TOOL else NO_DIRECTIVE),)
    )


def _split_replies(text: str) -> list[list[_Directive]]:
    """Split the directives into replies; empty without directives."""
    replies: list[list[_Directive]] = [[]]
    at = 0
    while opening := _OPENING.search(text, at):
        name = opening[1]
        start = opening.end()
        while start < len(text) and text[start].isspace():
            start += 1
        inside, at = _read_tool(text, start) if name == "tool" else _read_text(name, text, start)
        if name == "then":
            replies.append([])
        else:
            replies[-1].append(_Directive(name, inside))
    return replies if any(replies) else []


def _read_text(name: str, text: str, start: int) -> tuple[str, int]:
    """Read the text up to the closing brackets. Returns it with the offset after them."""
    if text.startswith('"', start):
        try:
            value, end = _DECODER.raw_decode(text, start)
        except ValueError:
            end = -1
            value = None
        # Otherwise the text only begins with a quotation mark, and is used unchanged.
        if isinstance(value, str) and text.startswith("]]", end):
            return _check_encodable(value), end + 2
    depth = 0
    for at in range(start, len(text)):
        if text[at] == "[":
            depth += 1
        elif text[at] == "]":
            if depth == 0 and text.startswith("]]", at):
                return text[start:at].rstrip(), at + 2
            # A closing bracket without an opening one is text, like that of `a]`.
            depth -= depth > 0
    raise ValueError(
        f"[[{name} is not closed; brackets inside must pair up, or be in a JSON string"
    )


def _read_tool(text: str, start: int) -> tuple[str, int]:
    """Read a tool's name and arguments, unsplit. JSON may contain brackets, so it is
    parsed as JSON.
    """
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
            raise ValueError(
                f"the arguments in [[tool {text[start:at].strip()} ...]] are not JSON: {error}"
            ) from None
    closing = end
    while closing < len(text) and text[closing].isspace():
        closing += 1
    if not text.startswith("]]", closing):
        raise ValueError(
            f"[[tool {text[start:at].strip()} ...]] must be closed right after its arguments"
        )
    return text[start:end], closing + 2


def _build_entry(directives: list[_Directive], conversation: Conversation) -> ScriptEntry:
    """Build an entry. Tool calls are dropped if the request declares no tools or
    forbids calls.

    Agents also send the same message without tools, to ask for a title.
    """
    can_call_tools = bool(conversation.tools) and conversation.tool_choice.mode != "none"
    parts: list[Part] = []
    finish = FinishReason.STOP
    for directive in directives:
        if directive.name == "finish":
            text = directive.text
            allowed = {
                reason.value: reason for reason in FinishReason if reason is not FinishReason.ABORT
            }
            if text not in allowed:
                raise ValueError(
                    f"[[finish REASON]] takes one of {', '.join(allowed)}, not {text[:20]!r}"
                )
            finish = allowed[text]
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
            name, *rest = directive.text.split(None, 1) or [""]
            arguments = rest[0].strip() if rest else ""
            if not name:
                raise ValueError("[[tool NAME {json}]] needs the name of a tool")
            value = json.loads(arguments) if arguments.startswith('"') else None
            return CallTool(
                name, _check_encodable(value) if isinstance(value, str) else arguments or "{}"
            )
        case "error":
            status, _, message = directive.text.partition(" ")
            # `isdecimal` alone also accepts the digits of other scripts.
            if not (status.isascii() and status.isdecimal() and len(status) == 3):
                raise ValueError(
                    f"[[error STATUS MESSAGE]] needs a status such as 503, not {status[:20]!r}"
                )
            return Fail(int(status), message.strip() or Fail().message)
        case _:
            text = directive.text
            try:
                seconds = float(text)
            except ValueError:
                raise ValueError(f"[[delay SECONDS]] takes a number, not {text[:20]!r}") from None
            return Wait(seconds)


def _check_encodable(text: str) -> str:
    """Reject unpaired surrogates: JSON can escape them, but UTF-8 cannot encode them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("an unpaired surrogate is not valid text") from None
    return text
