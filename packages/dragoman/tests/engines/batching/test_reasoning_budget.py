"""The reasoning budget: when the end of reasoning is forced, and when it is not."""

from __future__ import annotations

from dragoman.core.token_engine import ReasoningBudget
from dragoman.engines.batching.sequence import ReasoningBudgetState

BEGIN = (7,)
END = (8,)
CLOSE = (5, 8, 6)


def thought(tokens: int, *, open: bool = True, end: tuple[int, ...] = END) -> ReasoningBudgetState:
    return ReasoningBudgetState(
        ReasoningBudget(
            max_tokens=tokens, begin_ids=BEGIN, end_ids=end, forced_ids=CLOSE, is_open=open
        )
    )


def say(thought: ReasoningBudgetState, *tokens: int) -> list[int | None]:
    """Return the token that is forced before each token, and after the last one."""
    forced = [thought.forced_token]
    for token in tokens:
        thought.observe(token)
        forced.append(thought.forced_token)
    return forced


def test_exhausted_budget_forces_end_tokens() -> None:
    assert say(thought(2), 1, 1, 5, 8, 6, 1) == [None, None, 5, 8, 6, None, None]


def test_zero_budget_forces_end_tokens_immediately() -> None:
    assert say(thought(0), 5, 8, 6) == [5, 8, 6, None]


def test_reasoning_ending_within_budget_is_not_forced() -> None:
    assert say(thought(2), 1, 8, 1, 1, 1) == [None] * 6


def test_multi_token_end_counts_only_when_complete() -> None:
    assert say(thought(3, end=(8, 9)), 8, 9, 1, 1, 1) == [None] * 6
    assert say(thought(3, end=(8, 9)), 8, 1, 9) == [None, None, None, 5]


def test_tokens_before_reasoning_do_not_use_budget() -> None:
    assert say(thought(1, open=False), 1, 1, 7, 1, 5) == [None, None, None, None, 5, 8]


def test_second_reasoning_block_uses_remaining_budget() -> None:
    assert say(thought(2), 1, 8, 7, 1) == [None, None, None, None, 5]


def test_forced_end_rejected_at_first_token_is_retried() -> None:
    late = thought(1)
    say(late, 1)
    late.reject_forced()
    assert say(late, 1, 5) == [5, 5, 8]


def test_forced_end_rejected_midway_is_abandoned() -> None:
    broken = thought(1)
    say(broken, 1, 5)
    broken.reject_forced()
    assert say(broken, 1, 1) == [None, None, None]
