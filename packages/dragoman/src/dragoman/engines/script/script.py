"""The data model of scripts: entries with a reply and a match rule, their selection,
and directives in prompts.
"""

from __future__ import annotations

import json
import re
from itertools import groupby
from typing import Literal

from msgspec import Struct

from ...core.errors import (
    AuthenticationError,
    BodyTooLarge,
    Conflict,
    DragomanError,
    EngineError,
    EngineTimeout,
    MethodNotAllowed,
    MisdirectedRequest,
    NotFound,
    Overloaded,
    PermissionDenied,
    RateLimited,
    RequestError,
    UnsupportedMediaType,
)
from ...core.events import FinishReason
from ...core.message import Message, Role, Text, ToolResult
from ...core.request import Conversation, GenerateRequest
from ...core.syntax import get_tool_names

Chunks = Literal["tokens", "words", "characters", "whole"]
"""The units into which a reply's text is split; each is one event."""

MAX_WAIT_SECONDS = 3600.0
"""Limit of every delay in a script."""

Pieces = str | tuple[str, ...]
"""A text; a tuple is split exactly at its items, regardless of `Chunks`."""


def join_pieces(pieces: Pieces) -> str:
    return pieces if isinstance(pieces, str) else "".join(pieces)


class Say(Struct, frozen=True):
    text: Pieces


class Think(Struct, frozen=True):
    text: Pieces


class Refuse(Struct, frozen=True):
    text: Pieces


class CallTool(Struct, frozen=True):
    """A tool call. arguments: JSON text, or a custom tool's input; passed on unchanged,
    even if invalid.
    """

    name: str
    arguments: Pieces = "{}"
    id: str | None = None


class Fail(Struct, frozen=True):
    """An error. As the first part of a reply it is an HTTP error response; later it
    breaks the stream.

    retry_after: seconds.
    """

    status: int = 500
    message: str = "The script requested this error."
    code: str | None = None
    param: str | None = None
    retry_after: float | None = None

    def __post_init__(self) -> None:
        if not 400 <= self.status <= 599:
            raise ValueError(f"the status of an error must be from 400 to 599, not {self.status}")


class Wait(Struct, frozen=True):
    """A pause in seconds, after the response has begun."""

    seconds: float

    def __post_init__(self) -> None:
        if not 0 <= self.seconds <= MAX_WAIT_SECONDS:
            raise ValueError(f"a delay must be from 0 to {MAX_WAIT_SECONDS:.0f} seconds")


Part = Say | Think | Refuse | CallTool | Fail | Wait


class UsageOverride(Struct, frozen=True):
    """Token counts to report instead of the real ones; None reports the real one."""

    prompt: int | None = None
    cached: int | None = None
    completion: int | None = None
    reasoning: int | None = None


class Subject(Struct, frozen=True):
    """The parts of a request that match rules read.

    text, role: of the last user or tool message.
    tools: names of the declared tools.
    """

    model: str
    text: str
    role: Role
    tools: frozenset[str]


class MatchRule(Struct, frozen=True):
    """Conditions of an entry; all that are set must hold.

    contains: texts that must all occur in the message.
    equals: the whole text of the message.
    glob: pattern for the whole text, where `*` matches any text.
    role: role of the message.
    model: glob for the name of the model.
    tool: name of a tool that the request must declare.
    """

    contains: tuple[str, ...] = ()
    equals: str | None = None
    glob: str | None = None
    role: Literal["user", "tool"] | None = None
    model: str | None = None
    tool: str | None = None

    def accepts(self, subject: Subject) -> bool:
        return (
            all(text in subject.text for text in self.contains)
            and (self.equals is None or self.equals == subject.text)
            and (self.glob is None or _matches_glob(self.glob, subject.text))
            and (self.role is None or self.role == subject.role)
            and (self.model is None or _matches_glob(self.model, subject.model))
            and (self.tool is None or self.tool in subject.tools)
        )


class ScriptEntry(Struct, frozen=True):
    """One reply and when it applies.

    reply: its parts, in order.
    more: replies of the second choice, the third, ...; further choices start again with
        `reply`.
    times: number of requests it answers; None is unlimited with a match, else one.
    delay: seconds before the response begins.
    pace: seconds before each piece of it.
    """

    reply: tuple[Part, ...]
    match: MatchRule | None = None
    more: tuple[tuple[Part, ...], ...] = ()
    times: int | None = None
    repeat: bool = False
    delay: float = 0.0
    pace: float = 0.0
    chunks: Chunks = "tokens"
    finish: FinishReason = FinishReason.STOP
    usage: UsageOverride = UsageOverride()

    def __post_init__(self) -> None:
        for reply in (self.reply, *self.more):
            for index, part in enumerate(reply):
                # The first event has sent status 200, so a client error (4xx) can no
                # longer be reported.
                if isinstance(part, Fail) and index and part.status < 500:
                    raise ValueError(
                        f"after the first part, the status of an error must be from 500 to 599, "
                        f"not {part.status}"
                    )
                if isinstance(part, Fail) and index + 1 < len(reply):
                    raise ValueError("nothing can follow an error")
        if self.repeat and self.times is not None:
            raise ValueError("either `times` or `repeat`, not both")
        if self.times is not None and self.times < 1:
            raise ValueError("`times` must be at least 1")
        if not 0 <= self.delay <= MAX_WAIT_SECONDS or not 0 <= self.pace <= MAX_WAIT_SECONDS:
            raise ValueError(f"`delay` and `pace` must be from 0 to {MAX_WAIT_SECONDS:.0f} seconds")

    @property
    def max_uses(self) -> int | None:
        """Number of requests it may answer; None is unlimited."""
        # An entry with a match rule is a rule for all such requests; one without is a
        # step of a sequence.
        if self.repeat or (self.times is None and self.match is not None):
            return None
        return 1 if self.times is None else self.times

    def find_reply(self, index: int) -> tuple[Part, ...]:
        replies = (self.reply, *self.more)
        return replies[index % len(replies)]


class Script(Struct, frozen=True):
    """A script. Entries with a match rule are tried first, in order; then the next one
    without a rule.
    """

    entries: tuple[ScriptEntry, ...] = ()

    @classmethod
    def of(cls, *parts: Part) -> Script:
        """Create a script that gives every request this reply."""
        return cls((ScriptEntry(parts, repeat=True),))


def _matches_glob(pattern: str, text: str) -> bool:
    """Match a glob. The pieces are searched in order without backtracking, so this
    takes linear time.
    """
    first, *rest = pattern.split("*")
    if not rest:
        return pattern == text
    *middle, last = rest
    if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
        return False
    at = len(first)
    end = len(text) - len(last)
    for piece in middle:
        at = text.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True


def extract_text(message: Message) -> str:
    """Extract the text of a message: its text parts and those of its tool results,
    joined by line breaks.
    """
    texts: list[str] = []
    for part in message.parts:
        if isinstance(part, Text):
            texts.append(part.text)
        elif isinstance(part, ToolResult):
            texts.extend(inner.text for inner in part.content if isinstance(inner, Text))
    return "\n".join(texts)


def build_subject(request: GenerateRequest, prompt: str) -> Subject:
    """Build the subject of a request. prompt: the text of a prompt that is not a
    conversation.
    """
    if not isinstance(request.prompt, Conversation):
        return Subject(request.model, prompt, Role.USER, frozenset())
    tools = get_tool_names(request.prompt.tools)
    for message in reversed(request.prompt.messages):
        if message.role in {Role.USER, Role.TOOL}:
            return Subject(request.model, extract_text(message), message.role, tools)
    return Subject(request.model, "", Role.USER, tools)


class _EntryState:
    """An entry and its remaining uses; None is unlimited."""

    def __init__(self, entry: ScriptEntry) -> None:
        self.entry = entry
        self.remaining_uses = entry.max_uses

    def accepts(self, subject: Subject) -> bool:
        return self.remaining_uses != 0 and (self.entry.match or MatchRule()).accepts(subject)

    def use(self) -> ScriptEntry:
        if self.remaining_uses is not None:
            self.remaining_uses -= 1
        return self.entry


class ScriptState:
    """The state of one script."""

    def __init__(self, script: Script) -> None:
        entries = [_EntryState(entry) for entry in script.entries]
        # `sorted` is stable: entries with a match come first, each kind in its own
        # order.
        self._entries = sorted(entries, key=lambda part: part.entry.match is None)
        self._num_requests = 0

    @property
    def is_empty(self) -> bool:
        return not self._entries

    def next_entry(self, subject: Subject) -> ScriptEntry:
        """Select the entry for a request and count the use. Raises RequestError if
        there is none.
        """
        self._num_requests += 1
        for state in self._entries:
            if state.accepts(subject):
                return state.use()
        excerpt = subject.text if len(subject.text) <= 80 else subject.text[:79] + "…"
        context = f"The last {subject.role} message is {excerpt!r}."
        if self.is_empty:
            message = "The script is empty, and this engine only returns replies from its script."
        elif self._entries[-1].entry.match is None:
            message = (
                f"The script is exhausted: there is no reply left for call {self._num_requests}. "
                f"Add an entry, or give the last one `repeat: true`. {context}"
            )
        else:
            message = (
                f"No entry of the script matches. Change one, or add one without `match` as "
                f"a fallback. {context}"
            )
        raise RequestError(message, code="script_used_up")


_ERROR_TYPES: tuple[type[DragomanError], ...] = (
    AuthenticationError,
    PermissionDenied,
    NotFound,
    MethodNotAllowed,
    Conflict,
    BodyTooLarge,
    UnsupportedMediaType,
    MisdirectedRequest,
    RateLimited,
    Overloaded,
    EngineTimeout,
)


def build_error(fail: Fail) -> DragomanError:
    """Build the exception for a Fail. A status without a class of its own uses
    RequestError or EngineError.
    """
    general = RequestError if fail.status < 500 else EngineError
    error_type = next(
        (error_type for error_type in _ERROR_TYPES if error_type.status == fail.status), general
    )
    error = error_type(fail.message, param=fail.param, code=fail.code, retry_after=fail.retry_after)
    error.status = fail.status
    return error


# Directives: replies that the prompt itself specifies. This section parses and selects
#     them.

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
