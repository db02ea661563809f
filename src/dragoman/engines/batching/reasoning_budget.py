"""Reasoning budget of a sequence: forces the end of reasoning once the budget is spent. Pure."""

from __future__ import annotations

from ...core.engine import ReasoningBudget


class ReasoningBudgetState:
    """The state of one sequence under a ReasoningBudget, which covers all reasoning of the output together.

    A grammar may not allow `forced_token`: then `reject_forced` leaves the sequence unchanged and abandons an end that
    was already begun.
    """

    def __init__(self, limit: ReasoningBudget) -> None:
        self._limit = limit
        self._is_reasoning = limit.is_open
        self._used = 0
        self._num_forced = 0
        self._recent: tuple[int, ...] = ()

    @property
    def forced_token(self) -> int | None:
        """The token that must come next; None leaves the choice to the sampler."""
        if not self._is_reasoning or not self._limit.forced_ids:
            return None
        if self._num_forced == 0 and self._used < self._limit.max_tokens:
            return None
        return self._limit.forced_ids[self._num_forced]

    def reject_forced(self) -> None:
        """Report that the forced token is not allowed."""
        if self._num_forced:
            self._end()

    def observe(self, token: int) -> None:
        """Record a sampled or forced token."""
        forced = self.forced_token
        window = max(len(self._limit.begin_ids), len(self._limit.end_ids))
        self._recent = (*self._recent, token)[-window:] if window else ()
        if not self._is_reasoning:
            # Reset, since the same tokens must not be taken for the end as well (markers may overlap).
            if self._ends_with(self._limit.begin_ids):
                self._is_reasoning, self._recent = True, ()
        elif token == forced:
            self._num_forced += 1
            if self._num_forced == len(self._limit.forced_ids):
                self._end()
        elif self._ends_with(self._limit.end_ids):
            self._end()
        else:
            self._used += 1
            self._num_forced = 0

    def _end(self) -> None:
        self._is_reasoning, self._num_forced, self._recent = False, 0, ()

    def _ends_with(self, ids: tuple[int, ...]) -> bool:
        return bool(ids) and self._recent[-len(ids) :] == ids
