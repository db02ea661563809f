"""The data model of scripts: entries with a reply, a match rule."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from ...core.events import FinishReason
from .match_rule import MatchRule

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


class Drop(Struct, frozen=True):
    """The connection closes, without an error."""


class Interruption(Struct, frozen=True):
    """What happens in the middle of a reply.

    tokens: number of tokens before it; a shorter reply is interrupted at its end.
    seconds: a pause.
    end: what ends the reply after the pause; None continues it.
    """

    tokens: int = 0
    seconds: float = 0.0
    end: Fail | Drop | None = None

    def __post_init__(self) -> None:
        if self.tokens < 0:
            raise ValueError("the tokens before an interruption must be at least 0")
        if not 0 <= self.seconds <= MAX_WAIT_SECONDS:
            raise ValueError(f"a pause must be from 0 to {MAX_WAIT_SECONDS:.0f} seconds")
        if isinstance(self.end, Fail) and self.end.status < 500:
            raise ValueError(
                f"within a reply, the status of an error must be from 500 to 599, not "
                f"{self.end.status}"
            )


Part = Say | Think | Refuse | CallTool | Fail | Wait


class UsageOverride(Struct, frozen=True):
    """Token counts to report instead of the real ones; None reports the real one."""

    prompt: int | None = None
    cached: int | None = None
    completion: int | None = None
    reasoning: int | None = None


class ScriptEntry(Struct, frozen=True):
    """One reply and when it applies.

    reply: its parts, in order.
    more: replies of the second choice, the third, ...; further choices start again with
        `reply`.
    times: number of requests it answers; None is unlimited with a match, else one.
    delay: seconds before the response begins.
    pace: seconds before each piece of it.
    interruption: what interrupts it; None for nothing. Only `scripted` supports it.
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
    interruption: Interruption | None = None

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
