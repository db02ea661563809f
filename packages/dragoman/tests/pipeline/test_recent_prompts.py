"""The recent prompts of each owner: the closest is found, and their number is limited."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dragoman.pipeline.recent_prompts import RecentPrompts, count_common_prefix

ids = st.lists(st.integers(0, 2), max_size=12).map(tuple)


@given(ids, ids)
def test_count_common_prefix_returns_shared_length(one: tuple[int, ...], other: tuple[int, ...]):
    shared = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        shared += 1
    assert count_common_prefix(one, other) == shared


def test_find_closest_searches_only_own_prompts():
    recent = RecentPrompts()
    for prompt in ((1, 2, 3), (1, 2, 4), (9,)):
        recent.remember("me", "m", prompt)
    recent.remember("you", "m", (1, 2, 3, 4, 5))
    assert recent.find_closest("me", "m", (1, 2, 4, 7)) == (1, 2, 4)
    assert recent.find_closest("me", "m", (5,)) == (9,), "the latest of equal ones"
    assert recent.find_closest("me", "other", (1,)) is None
    assert recent.find_closest("nobody", "m", (1,)) is None


def test_recent_prompts_are_bounded_by_owners_count_and_tokens():
    recent = RecentPrompts(max_owners=2, max_prompts=2, max_tokens=3)
    recent.remember("a", "m", (1, 2, 3, 4))
    assert recent.find_closest("a", "m", (1,)) is None, "too long to be stored"
    for prompt in ((1,), (2,), (3,)):
        recent.remember("a", "m", prompt)
    assert recent.find_closest("a", "m", (1,)) == (3,), "the first was evicted"
    recent.remember("b", "m", (1,))
    recent.remember("c", "m", (1,))
    assert recent.find_closest("a", "m", (3,)) is None
