"""Replies that a test queues."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from dragoman.engines.script import (
    CallTool,
    Drop,
    Fail,
    Interruption,
    MatchRule,
    Part,
    Refuse,
    Say,
    ScriptEntry,
    Think,
    UsageOverride,
    Wait,
)

from .stream_edits import MALFORMED_PREFIX, SPOILERS, MalformedKind

DEFAULT_TEXT = "one two three four five six seven eight nine ten"
"""The text of a reply that is interrupted and has no other."""


@dataclass(frozen=True, slots=True)
class ReplyPlan:
    """An entry of the script, and what the server does with its bytes.

    ends_cleanly: a lost connection looks like the end of the stream.
    """

    entry: ScriptEntry
    edits: tuple[str, ...] = ()
    ends_cleanly: bool = False

    @property
    def is_malformed(self) -> bool:
        """Whether a client cannot parse all of it."""
        return any(name.startswith(MALFORMED_PREFIX) for name in self.edits)


class ReplyVocabulary(ABC):
    """The parts of replies. On the server each method queues a new reply; on a reply it
    adds to that one.
    """

    @abstractmethod
    def _extend(self) -> QueuedReply:
        """Return the reply to add to."""

    def reply(self, text: str | Sequence[str]) -> QueuedReply:
        """Add text. A list is sent in exactly these pieces."""
        pieces = text if isinstance(text, str) else tuple(text)
        return self._extend().add(Say(pieces))

    def reasoning(self, text: str | Sequence[str]) -> QueuedReply:
        """Add reasoning (thinking)."""
        pieces = text if isinstance(text, str) else tuple(text)
        return self._extend().add(Think(pieces))

    def refusal(self, text: str) -> QueuedReply:
        """Add a refusal."""
        return self._extend().add(Refuse(text))

    def tool_call(
        self, name: str, arguments: dict[str, Any] | str = "{}", id: str | None = None
    ) -> QueuedReply:
        """Add a tool call; several are parallel calls.

        Args:
            name: a tool that the request must declare.
            arguments: an object, or JSON text that is sent unchanged, even if invalid.
            id: its id; None for the next of `call_1`, `call_2`, ...
        """
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        return self._extend().add(CallTool(name, text, id))

    def error(
        self,
        status: int = 500,
        message: str = "The test requested this error.",
        *,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> QueuedReply:
        """Fail: with this HTTP status, or within the stream if it follows other parts.

        Args:
            status: from 400 to 599; within a stream from 500 to 599.
            message: the text for the client.
            code: OpenAI's error code.
            retry_after: seconds, for the header `Retry-After`.
        """
        return self._extend().add(Fail(status, message, code, retry_after=retry_after))

    def stall(self, seconds: float) -> QueuedReply:
        """Pause here, after the head of the response."""
        return self._extend().add(Wait(seconds))

    def drop_after(self, tokens: int = 0) -> QueuedReply:
        """Close the connection after so many tokens."""
        return self._extend().interrupt(Interruption(tokens, end=Drop()))

    def truncate_after(self, tokens: int = 0) -> QueuedReply:
        """End the stream after so many tokens as if it were whole: the HTTP response is
        complete, but the last events of the API are missing.
        """
        return self._extend().interrupt(Interruption(tokens, end=Drop()), ends_cleanly=True)

    def malformed(self, kind: MalformedKind = "json") -> QueuedReply:
        """Break the first delta of a stream, or the body of a whole response.

        Args:
            kind: `json` (cut in the middle), `utf8` (an invalid byte), `html` (the page
                of a proxy).
        """
        if kind not in SPOILERS:
            raise ValueError(f"malformed: {kind!r} is none of {', '.join(SPOILERS)}")
        return self._extend().edit(f"{MALFORMED_PREFIX}{kind}")


class QueuedReply(ReplyVocabulary):
    """A reply in the queue. Its methods change it and return it; they may be called until
    the request comes.
    """

    def __init__(self, match: MatchRule | None = None) -> None:
        self._plan = ReplyPlan(ScriptEntry((), match))
        self._uses = 0

    @classmethod
    def of(cls, entry: ScriptEntry) -> QueuedReply:
        """Create the reply of an entry of a script."""
        reply = cls()
        reply._plan = ReplyPlan(entry)
        return reply

    def _extend(self) -> QueuedReply:
        return self

    def add(self, part: Part) -> QueuedReply:
        """Add a part."""
        return self._change(reply=(*self._plan.entry.reply, part))

    def interrupt(self, interruption: Interruption, *, ends_cleanly: bool = False) -> QueuedReply:
        """Interrupt the reply. ends_cleanly: see `ReplyPlan`."""
        self._plan = ReplyPlan(
            replace(self._plan.entry, interruption=interruption), self._plan.edits, ends_cleanly
        )
        return self

    def edit(self, *names: str) -> QueuedReply:
        """Send the stream in another form, see `stream_edits.EDITS`."""
        self._plan = ReplyPlan(
            self._plan.entry, (*self._plan.edits, *names), self._plan.ends_cleanly
        )
        return self

    def times(self, count: int) -> QueuedReply:
        """Answer so many requests. Without this it is one, or all if the reply has a
        condition.
        """
        return self._change(times=count)

    def always(self) -> QueuedReply:
        """Answer all requests that get here."""
        return self._change(repeat=True)

    def delay(self, seconds: float) -> QueuedReply:
        """Wait before the response begins."""
        return self._change(delay=seconds)

    def usage(
        self,
        *,
        prompt: int | None = None,
        completion: int | None = None,
        cached: int | None = None,
        reasoning: int | None = None,
    ) -> QueuedReply:
        """Report these token counts instead of the real ones."""
        return self._change(usage=UsageOverride(prompt, cached, completion, reasoning))

    def _change(self, **fields: Any) -> QueuedReply:  # noqa: ANN401 - fields of ScriptEntry
        self._plan = ReplyPlan(
            replace(self._plan.entry, **fields), self._plan.edits, self._plan.ends_cleanly
        )
        return self

    @property
    def plan(self) -> ReplyPlan:
        """What to send."""
        entry = self._plan.entry
        if all(isinstance(part, Wait) for part in entry.reply):
            entry = replace(entry, reply=(*entry.reply, Say(DEFAULT_TEXT)))
        return ReplyPlan(entry, self._plan.edits, self._plan.ends_cleanly)

    @property
    def match(self) -> MatchRule | None:
        """Its condition."""
        return self._plan.entry.match

    @property
    def is_used_up(self) -> bool:
        """Whether it answers no further request."""
        limit = self._plan.entry.max_uses
        return limit is not None and self._uses >= limit

    @property
    def is_unused(self) -> bool:
        """Whether it has answered no request yet, and is not only for some."""
        return self._uses == 0

    def use(self) -> None:
        """Count a use."""
        self._uses += 1
