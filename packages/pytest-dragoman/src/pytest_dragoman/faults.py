"""The table of faults under which a client is judged."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from msgspec.structs import replace

from dragoman.engines.script import Drop, Fail, Interruption

from .queued_reply import ReplyPlan

RETRY_AFTER = 1.0
PATIENCE = 2.0
SLOW_HEADERS_SECONDS = 0.3
_TOKENS_BEFORE = 2
"""Tokens of the answer before it is interrupted."""


class Expectation(StrEnum):
    """What a client must do under a fault.

    SAME: return the same answer as without it.
    SAME_OR_ERROR: retry and return the same answer, or raise an error.
    """

    SAME = "the same answer"
    SAME_OR_ERROR = "the same answer, or an error"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        name: its name in tests.
        title: what the server does.
        expectation: what the client must do.
        error: the status with which the request is rejected.
        interruption: what interrupts the answer.
        edits: the form in which the stream is sent, see `stream_edits.EDITS`.
        ends_cleanly: see `ReplyPlan`.
        one_character: send every character of the answer in an event of its own.
        delay: seconds before the head of the response.
        always: it hits every request; otherwise the first of each conversation.
    """

    name: str
    title: str
    expectation: Expectation = Expectation.SAME_OR_ERROR
    error: Fail | None = None
    interruption: Interruption | None = None
    edits: tuple[str, ...] = ()
    ends_cleanly: bool = False
    one_character: bool = False
    delay: float = 0.0
    always: bool = False

    def hits(self, attempt: int) -> bool:
        """Whether it hits this attempt at a conversation, counted from 0."""
        return self.always or attempt == 0

    @property
    def breaks_answer(self) -> bool:
        """Whether the client does not get the whole answer: a retry gets it again."""
        return self.expectation is Expectation.SAME_OR_ERROR

    def apply(self, plan: ReplyPlan) -> ReplyPlan:
        """Return what to send under the fault."""
        if self.error is not None:
            entry = replace(plan.entry, reply=(self.error,), more=(), interruption=None)
            return ReplyPlan(entry)
        entry = replace(
            plan.entry,
            interruption=self.interruption or plan.entry.interruption,
            chunks="characters" if self.one_character else plan.entry.chunks,
            delay=plan.entry.delay + self.delay,
        )
        return ReplyPlan(entry, (*plan.edits, *self.edits), self.ends_cleanly or plan.ends_cleanly)


def build_faults(
    *, retry_after: float = RETRY_AFTER, patience: float = PATIENCE
) -> dict[str, Fault]:
    """Build the table, by names.

    Args:
        retry_after: seconds that the server asks the client to wait.
        patience: seconds without output after which a client must have given up.
    """
    same = Expectation.SAME
    limit = Fail(429, "Rate limit reached.", "rate_limit_exceeded", retry_after=retry_after)
    table = (
        Fault("none", "no fault", same),
        Fault("rate-limit", f"429 with `Retry-After: {retry_after:g}`", error=limit),
        Fault("overload", "529", error=Fail(529, "Overloaded.")),
        Fault("server-error", "500", error=Fail(500, "Internal error.")),
        Fault("outage", "503 for every request", error=Fail(503, "Unavailable."), always=True),
        Fault(
            "stream-error",
            "an error event in the middle of the stream",
            interruption=Interruption(_TOKENS_BEFORE, end=Fail(500, "Internal error.")),
        ),
        Fault(
            "cut-stream",
            "the connection is closed in the middle of the response",
            interruption=Interruption(_TOKENS_BEFORE, end=Drop()),
        ),
        Fault(
            "truncated-stream",
            "the response ends normally, but without the last events of the stream",
            interruption=Interruption(_TOKENS_BEFORE, end=Drop()),
            ends_cleanly=True,
        ),
        Fault(
            "stall",
            f"{patience:g} s without output in the middle, then the connection is closed",
            interruption=Interruption(_TOKENS_BEFORE, patience, Drop()),
        ),
        Fault("malformed-json", "one event is no JSON", edits=("malformed-json",)),
        Fault("empty-deltas", "empty deltas between the others", same, edits=("empty-deltas",)),
        Fault(
            "repeated-events",
            "the last events, with usage, twice",
            same,
            edits=("repeated-events",),
        ),
        Fault("late-usage", "a pause before the usage", same, edits=("late-usage",)),
        Fault("one-character", "arguments and text in single characters", same, one_character=True),
        Fault("comments", "keep-alive comments between events", same, edits=("comments",)),
        Fault("crlf", "lines that end in CRLF", same, edits=("crlf",)),
        Fault("split-bytes", "pieces of 7 bytes", same, edits=("split-bytes",)),
        Fault("slow-headers", "a pause before the headers", same, delay=SLOW_HEADERS_SECONDS),
    )
    return {fault.name: fault for fault in table}
