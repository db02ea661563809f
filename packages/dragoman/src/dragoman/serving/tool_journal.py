"""The progress of an answer whose tools this server calls, written ahead, so that another
process can continue it.

    turn ended -> call begun -> call ended -> ... -> turn ended -> ...

A step is stored before what follows it: a call before it is made, an outcome before the
model or the client sees it. A turn without calls has no step: it is generated again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Raw, Struct

from ..core.events import Usage
from ..core.reply import Choice
from ..core.server_tools import ToolOutcome
from ..store import Change


class Requested(Struct, frozen=True, tag=True):
    """The request: its body without `input` and without secrets."""

    body: Raw


class Resumed(Struct, frozen=True, tag=True):
    """A process continues the answer."""


class TurnEnded(Struct, frozen=True, tag=True):
    """A turn is complete, and its calls are made next.

    ids: its sampled ids, as in `Conversation.sampled_turns`.
    """

    choice: Choice
    usage: Usage
    ids: tuple[int, ...]


class CallBegun(Struct, frozen=True, tag=True):
    """A call is made next. call: its key, unique in the answer."""

    call: str


class CallEnded(Struct, frozen=True, tag=True):
    call: str
    outcome: ToolOutcome


Step = Requested | Resumed | TurnEnded | CallBegun | CallEnded


class StoredStep(Struct, frozen=True):
    """A step as it is stored. n_events: number of the answer's events before it."""

    step: Step
    n_events: int


class CommitStep(Protocol):
    """Stores a step with the events before it and further changes.

    Raises:
        CommitConflict: another process continues the answer, or one of the changes
            conflicts.
        StoreUnavailable: the store failed.
    """

    async def __call__(self, step: Step, id: str, *changes: Change) -> None: ...


class ToolJournal:
    """The steps of one answer.

    steps: those of the processes before this one.
    n_events: number of the stored events.
    has_started: whether the client has got the start of the answer.
    commit: stores a step; None if the answer cannot be continued.
    """

    def __init__(
        self, steps: Sequence[StoredStep] = (), n_events: int = 0, *, has_started: bool = False
    ) -> None:
        self._turns = [step for step in steps if isinstance(step.step, TurnEnded)]
        self._begun = {step.step.call for step in steps if isinstance(step.step, CallBegun)}
        self._ended = {
            step.step.call: (step.step.outcome, step.n_events)
            for step in steps
            if isinstance(step.step, CallEnded)
        }
        self._n_events = n_events
        self._n_taken = 0
        self.has_started = has_started
        self.commit: CommitStep | None = None

    @property
    def has_turns(self) -> bool:
        """Whether there are turns to take."""
        return self._n_taken < len(self._turns)

    def list_turns(self) -> list[TurnEnded]:
        """List the turns of earlier processes."""
        return [stored.step for stored in self._turns if isinstance(stored.step, TurnEnded)]

    def find_open_turn(self) -> TurnEnded | None:
        """Return the last turn if the client has not got the end of it and of its calls."""
        if not self._turns or self._turns[-1].n_events != self._n_events:
            return None
        return self.list_turns()[-1]

    def take_turn(self) -> TurnEnded | None:
        """Return the next turn of an earlier process; None if there is none."""
        if not self.has_turns:
            return None
        self._n_taken += 1
        return self.list_turns()[self._n_taken - 1]

    def is_last_turn_sent(self) -> bool:
        """Whether the client has got the calls of the turn that was taken last."""
        return self._turns[self._n_taken - 1].n_events < self._n_events

    def is_call_sent(self, call: str) -> bool:
        return call in self._ended and self._ended[call][1] < self._n_events

    def find_outcome(self, call: str) -> ToolOutcome | None:
        return self._ended[call][0] if call in self._ended else None

    def has_begun(self, call: str) -> bool:
        return call in self._begun

    def is_interrupted(self, call: str) -> bool:
        """Whether a process died while it made a call."""
        return call in self._begun and call not in self._ended

    async def add_turn(self, turn: TurnEnded, number: int) -> None:
        if self.commit is not None:
            await self.commit(turn, f"turn_{number}")

    async def begin_call(self, call: str, *changes: Change) -> None:
        if self.commit is not None and call not in self._begun:
            await self.commit(CallBegun(call), f"begun_{call}", *changes)

    async def end_call(self, call: str, outcome: ToolOutcome) -> None:
        if self.commit is not None:
            await self.commit(CallEnded(call, outcome), f"ended_{call}")
