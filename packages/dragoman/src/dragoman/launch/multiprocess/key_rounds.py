"""Requests to read the API keys again, until all workers have answered. Reads no clock
and sends nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ...serving.key_reloader import KeysReport

OnReport = Callable[[KeysReport], None]


@dataclass(slots=True, eq=False)
class _Round:
    """A request of an administrator.

    number: the number of the request to the workers.
    missing: numbers of the workers that have not answered yet.
    answer: called with the result.
    """

    number: int
    missing: set[int]
    answer: OnReport
    processes: int = 0
    problem: str | None = None
    late: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class KeyRounds:
    """Waits for the workers' answers, and reports the result to those who asked."""

    latest: int = 0
    """Number of the latest request to the workers."""
    _rounds: list[_Round] = field(default_factory=list[_Round])

    def start(self, workers: Iterable[int], answer: OnReport) -> None:
        """Wait for the answers to the latest request. answer: called with the result."""
        self._rounds.append(_Round(self.latest, set(workers), answer))
        self._finish()

    def note_read(self, worker: int, number: int, problem: str | None) -> None:
        """Record an answer.

        number: the number of the request that the worker answers.
        problem: the reason why it cannot use the file.
        """
        for item in self._rounds:
            # The answer to an earlier request may be older than the file.
            if worker in item.missing and item.number <= number:
                item.missing.discard(worker)
                item.processes += problem is None
                item.problem = item.problem or problem
        self._finish()

    def note_late(self, worker: int, name: str) -> None:
        """Record that a worker has not read the keys in time."""
        for item in self._rounds:
            if worker in item.missing:
                item.missing.discard(worker)
                item.late.append(name)
        self._finish()

    def forget(self, worker: int) -> None:
        """Record that a worker has died: the next one with its number reads the file at
        its start.
        """
        for item in self._rounds:
            item.missing.discard(worker)
        self._finish()

    def _finish(self) -> None:
        finished = [item for item in self._rounds if not item.missing]
        self._rounds = [item for item in self._rounds if item.missing]
        for item in finished:
            item.answer(KeysReport(item.processes, item.problem, tuple(item.late)))
