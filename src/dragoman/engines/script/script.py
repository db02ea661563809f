"""What a script is: entries, each with a reply and what it answers to. Knows no format of a file and no engine."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from ...core.events import FinishReason
from ...core.message import Message, Role, Text, ToolResult
from ...core.request import Conversation, GenerateRequest
from ...core.syntax import get_tool_names

Chunks = Literal["tokens", "words", "characters", "whole"]
"""How the text of a reply is cut into events."""

MAX_WAIT_SECONDS = 3600.0
"""Seconds."""

Pieces = str | tuple[str, ...]
"""A text; as a tuple it is cut exactly so, whatever `Chunks` says."""


def join_pieces(pieces: Pieces) -> str:
    return pieces if isinstance(pieces, str) else "".join(pieces)


class Say(Struct, frozen=True):
    text: Pieces


class Think(Struct, frozen=True):
    text: Pieces


class Refuse(Struct, frozen=True):
    text: Pieces


class CallTool(Struct, frozen=True):
    """A tool call. arguments: JSON text, or a custom tool's input; passed on as it is, also if it is neither."""

    name: str
    arguments: Pieces = "{}"
    id: str | None = None


class Fail(Struct, frozen=True):
    """An error. First in a reply it is an HTTP status; later it breaks a stream that has begun."""

    status: int = 500
    message: str = "The script requested this error."
    code: str | None = None
    param: str | None = None
    retry_after: float | None = None

    def __post_init__(self) -> None:
        if not 400 <= self.status <= 599:
            raise ValueError(f"the status of an error must be from 400 to 599, not {self.status}")


class Wait(Struct, frozen=True):
    """A silence of so many seconds, after the answer has begun."""

    seconds: float

    def __post_init__(self) -> None:
        if not 0 <= self.seconds <= MAX_WAIT_SECONDS:
            raise ValueError(f"a delay must be from 0 to {MAX_WAIT_SECONDS:.0f} seconds")


Part = Say | Think | Refuse | CallTool | Fail | Wait


class UsageOverride(Struct, frozen=True):
    """Token counts that are reported instead of the true ones; None is the true one."""

    prompt: int | None = None
    cached: int | None = None
    completion: int | None = None
    reasoning: int | None = None


class Subject(Struct, frozen=True):
    """What a script may look at. text, role: of the last user or tool message."""

    model: str
    text: str
    role: Role
    tools: frozenset[str]


class MatchRule(Struct, frozen=True):
    """What an entry answers to; everything that is given must hold.

    contains: all of these texts occur. glob: the whole text, where `*` is any text; model likewise.
    tool: a tool of this name is declared.
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
    """One reply.

    reply: its parts, in order. more: what the second choice says, the third, ..., and then from `reply` again.
    times: how many requests it may answer; None is every one if it has a match, else one.
    delay: seconds before the answer begins. pace: seconds before each piece of it.
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
            _check_order(reply)
        if self.repeat and self.times is not None:
            raise ValueError("either `times` or `repeat`, not both")
        if self.times is not None and self.times < 1:
            raise ValueError("`times` must be at least 1")
        if not 0 <= self.delay <= MAX_WAIT_SECONDS or not 0 <= self.pace <= MAX_WAIT_SECONDS:
            raise ValueError(f"`delay` and `pace` must be from 0 to {MAX_WAIT_SECONDS:.0f} seconds")

    @property
    def max_uses(self) -> int | None:
        """How many requests it may answer; None is any number."""
        if self.repeat or (self.times is None and self.match is not None):
            return None
        return 1 if self.times is None else self.times

    def find_reply(self, index: int) -> tuple[Part, ...]:
        replies = (self.reply, *self.more)
        return replies[index % len(replies)]


class Script(Struct, frozen=True):
    """Entries with a match are tried first, in their order; then the next of those without one."""

    entries: tuple[ScriptEntry, ...] = ()

    @classmethod
    def of(cls, *parts: Part) -> Script:
        """Every request gets this reply."""
        return cls((ScriptEntry(parts, repeat=True),))


def _check_order(reply: tuple[Part, ...]) -> None:
    for index, part in enumerate(reply):
        if isinstance(part, Fail) and index and part.status < 500:
            raise ValueError(f"an answer that has begun can only fail with a status from 500 to 599, not {part.status}")
        if isinstance(part, Fail) and index + 1 < len(reply):
            raise ValueError("nothing can follow an error")


def _matches_glob(pattern: str, text: str) -> bool:
    """Whether the text has the pattern's pieces in order. `find` never looks back, so this takes linear time."""
    first, *rest = pattern.split("*")
    if not rest:
        return pattern == text
    *middle, last = rest
    if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
        return False
    at, end = len(first), len(text) - len(last)
    for piece in middle:
        at = text.find(piece, at, end)
        if at < 0:
            return False
        at += len(piece)
    return True


def extract_text(message: Message) -> str:
    """The words of a message: its texts and those of its tool results. Parts are joined by a line break."""
    texts: list[str] = []
    for part in message.parts:
        if isinstance(part, Text):
            texts.append(part.text)
        elif isinstance(part, ToolResult):
            texts.extend(inner.text for inner in part.content if isinstance(inner, Text))
    return "\n".join(texts)


def build_subject(request: GenerateRequest, prompt: str) -> Subject:
    """prompt: the text of a prompt that is no conversation."""
    if not isinstance(request.prompt, Conversation):
        return Subject(request.model, prompt, Role.USER, frozenset())
    tools = get_tool_names(request.prompt.tools)
    for message in reversed(request.prompt.messages):
        if message.role in {Role.USER, Role.TOOL}:
            return Subject(request.model, extract_text(message), message.role, tools)
    return Subject(request.model, "", Role.USER, tools)
