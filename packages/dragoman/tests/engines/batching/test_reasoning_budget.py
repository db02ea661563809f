"""The reasoning budget: when the end of reasoning is forced, and when it is not."""

from __future__ import annotations

from dragoman.core.engine import ReasoningBudget
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


def test_the_close_is_forced_once_the_budget_is_used() -> None:
    assert say(thought(2), 1, 1, 5, 8, 6, 1) == [None, None, 5, 8, 6, None, None]


def test_no_budget_closes_at_once() -> None:
    assert say(thought(0), 5, 8, 6) == [5, 8, 6, None]


def test_a_thought_that_ends_by_itself_is_left_alone() -> None:
    assert say(thought(2), 1, 8, 1, 1, 1) == [None] * 6


def test_an_end_of_several_tokens_counts_when_it_is_whole() -> None:
    assert say(thought(3, end=(8, 9)), 8, 9, 1, 1, 1) == [None] * 6
    assert say(thought(3, end=(8, 9)), 8, 1, 9) == [None, None, None, 5]


def test_tokens_before_the_thought_do_not_count() -> None:
    assert say(thought(1, open=False), 1, 1, 7, 1, 5) == [None, None, None, None, 5, 8]


def test_a_second_thought_has_what_the_first_has_left() -> None:
    assert say(thought(2), 1, 8, 7, 1) == [None, None, None, None, 5]


def test_a_close_that_is_refused_at_its_beginning_is_tried_again() -> None:
    late = thought(1)
    say(late, 1)
    late.reject_forced()
    assert say(late, 1, 5) == [5, 5, 8]


def test_a_close_that_is_refused_halfway_is_given_up() -> None:
    broken = thought(1)
    say(broken, 1, 5)
    broken.reject_forced()
    assert say(broken, 1, 1) == [None, None, None]
