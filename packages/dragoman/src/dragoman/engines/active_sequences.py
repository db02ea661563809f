"""The active sequences of a token engine, by id, to which it delivers its outputs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterator
from typing import Generic, TypeVar

from ..core.errors import QueueFull
from ..core.events import FinishReason
from ..core.token_engine import (
    Ended,
    Failed,
    OutputCallback,
    PromptLogprobs,
    Rejected,
    Sampled,
    Scheduled,
    TokenOutput,
    TokenRequest,
)

SHUTTING_DOWN = "The engine is shutting down."


class ActiveSequence:
    """A sequence that has not ended. Engines extend it with their own fields.

    has_started: whether Scheduled was delivered.
    """

    __slots__ = ("_awaits_prompt_logprobs", "deliver", "has_started", "id", "request")

    def __init__(self, request: TokenRequest, deliver: OutputCallback) -> None:
        self.id = request.id
        self.request = request
        self.deliver = deliver
        self.has_started = False
        self._awaits_prompt_logprobs = request.prompt_logprobs is not None

    def send(self, output: TokenOutput) -> None:
        """Deliver an output. A receiver that raises does not affect other sequences."""
        try:
            self.deliver(output)
        except Exception as error:
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"the receiver of {self.id} raised", "exception": error}
            )

    def record(self, output: TokenOutput) -> None:
        """Update the state for an output that is delivered; tokens do not change it."""
        if isinstance(output, Scheduled):
            self.has_started = True
        elif isinstance(output, PromptLogprobs):
            self._awaits_prompt_logprobs = False

    def send_abort(self) -> None:
        """Deliver the end of an aborted sequence, which is not a failure; prompt
        logprobs that are due are all None.
        """
        if not self.has_started:
            self.send(Scheduled(self.id, 0, 0))
        if self._awaits_prompt_logprobs:
            self.send(PromptLogprobs(self.id, (None,) * len(self.request.prompt)))
        self.send(Ended(self.id, FinishReason.ABORT))


T = TypeVar("T", bound=ActiveSequence)


class ActiveSequences(Generic[T]):
    """The active sequences of an engine, by id.

    The id of a sequence that has ended or was aborted may be in use again while its
    last outputs are still in flight. These are dropped, because sequences are compared
    by identity and not by id.
    """

    def __init__(self) -> None:
        self._by_id: dict[str, T] = {}
        self.get = self._by_id.get
        """Returns the sequence of an id, or None."""

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[T]:
        return iter(self._by_id.values())

    def __contains__(self, sequence: T) -> bool:
        return self._by_id.get(sequence.id) is sequence

    @property
    def num_started(self) -> int:
        return sum(sequence.has_started for sequence in self._by_id.values())

    def check_admission(self, id: str, limit: int | None = None, count: int | None = None) -> None:
        """See `check_admission`. count: None counts all active sequences."""
        check_admission(id, self._by_id, limit, len(self._by_id) if count is None else count)

    def add(self, sequence: T) -> None:
        self._by_id[sequence.id] = sequence

    def pop(self, id: str) -> T | None:
        """Remove a sequence, so that nothing more is delivered to it. None for an
        unknown id.
        """
        return self._by_id.pop(id, None)

    def deliver(self, sequence: T, output: TokenOutput) -> None:
        """Deliver an output, unless the sequence has ended. The last one removes it."""
        if self._by_id.get(sequence.id) is not sequence:
            return
        if type(output) is not Sampled:
            sequence.record(output)
            if isinstance(output, Ended | Failed | Rejected):
                # Before the delivery: the receiver may add another sequence with this
                # id.
                del self._by_id[sequence.id]
        sequence.send(output)

    def pop_all(self) -> list[T]:
        sequences = list(self._by_id.values())
        self._by_id.clear()
        return sequences

    def fail_all(self, message: str = SHUTTING_DOWN) -> list[T]:
        """End every sequence with an error, and return them."""
        sequences = self.pop_all()
        for sequence in sequences:
            sequence.send(Failed(sequence.id, message))
        return sequences

    def abort_all(self, abort: Callable[[str], object]) -> int:
        """Abort every sequence: each ends with its output so far. Returns how many
        there were.

        abort: the engine's own function, which frees the sequence with this id and
            delivers nothing.
        """
        sequences = list(self._by_id.values())
        for sequence in sequences:
            abort(sequence.id)
            sequence.send_abort()
        return len(sequences)


def check_admission(id: str, active: Container[str], limit: int | None, count: int) -> None:
    """Check that a sequence can be added.

    active: the ids of the active sequences.
    limit: the exclusive maximum of `count`; None means no limit.
    count: number of sequences that the limit applies to.

    Raises: ValueError for an id in use, QueueFull at the limit.
    """
    if id in active:
        raise ValueError(f"a sequence {id!r} is already running")
    if limit is not None and count >= limit:
        raise QueueFull(f"The engine has reached its limit of {limit} sequences; retry later.")
