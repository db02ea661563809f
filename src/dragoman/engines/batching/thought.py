"""Watches a sequence's reasoning and says which token must come next once its budget is used up. Pure."""

from __future__ import annotations

from ...core.engine import ThoughtLimit


class Thought:
    """The state of one sequence under a ThoughtLimit. The budget covers all thoughts of the answer together.

    `forced` may be refused (a grammar may not allow the token): then nothing changes, and an end that is
    already begun is given up.
    """

    def __init__(self, limit: ThoughtLimit) -> None:
        self._limit = limit
        self._open = limit.open
        self._used = 0
        self._closing = 0
        self._recent: tuple[int, ...] = ()

    @property
    def forced(self) -> int | None:
        """The token that has to come next."""
        if not self._open or not self._limit.close:
            return None
        if self._closing == 0 and self._used < self._limit.tokens:
            return None
        return self._limit.close[self._closing]

    def refuse(self) -> None:
        """The forced token cannot come."""
        if self._closing:
            self._end()

    def observe(self, token: int) -> None:
        """A token was sampled, or forced."""
        forced = self.forced
        kept = max(len(self._limit.begin), len(self._limit.end))
        self._recent = (*self._recent, token)[-kept:] if kept else ()
        if not self._open:
            if self._ends_with(self._limit.begin):
                self._open, self._recent = True, ()
        elif token == forced:
            self._closing += 1
            if self._closing == len(self._limit.close):
                self._end()
        elif self._ends_with(self._limit.end):
            self._end()
        else:
            self._used += 1
            self._closing = 0

    def _end(self) -> None:
        self._open, self._closing, self._recent = False, 0, ()

    def _ends_with(self, ids: tuple[int, ...]) -> bool:
        return bool(ids) and self._recent[-len(ids) :] == ids
