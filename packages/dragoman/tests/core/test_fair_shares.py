"""The shares of a limit."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.fair_shares import compute_allowance


def fill(limit: int, owner: str, owners: list[str], used: Counter[str]) -> None:
    """Take one after the other until the owner gets no more."""
    while used[owner] < compute_allowance(limit, owner, owners, used):
        used[owner] += 1


@pytest.mark.parametrize("owners", [[], ["b"]])
def test_single_owner_may_take_whole_limit(owners: list[str]):
    assert compute_allowance(64, "b", owners, {}) == 64


@pytest.mark.parametrize(
    ("n_owners", "first", "second"), [(2, 48, 16), (3, 44, 10), (8, 36, 4), (100, 32, 1)]
)
def test_flood_leaves_share_of_others(n_owners: int, first: int, second: int):
    owners = [f"o{number}" for number in range(n_owners)]
    used = Counter[str]()
    fill(64, "o0", owners, used)
    fill(64, "o1", owners, used)
    assert used["o0"] == first
    assert used["o1"] >= second
    if n_owners > 2:
        fill(64, "o2", owners, used)
        assert used["o2"] >= second


@given(
    limit=st.integers(1, 200),
    n_owners=st.integers(1, 12),
    order=st.permutations(range(12)),
    stranger=st.integers(0, 20),
)
def test_allowances_never_exceed_limit(limit: int, n_owners: int, order: list[int], stranger: int):
    owners = [f"o{number}" for number in range(n_owners)]
    used = Counter({"unlisted": min(stranger, limit)})
    for number in order:
        if number < n_owners:
            fill(limit, f"o{number}", owners, used)
    assert used.total() == limit


@given(limit=st.integers(24, 400), n_owners=st.integers(2, 12), order=st.permutations(range(12)))
def test_every_owner_gets_its_share_in_any_order(limit: int, n_owners: int, order: list[int]):
    owners = [f"o{number}" for number in range(n_owners)]
    used = Counter[str]()
    for number in order:
        if number < n_owners:
            fill(limit, f"o{number}", owners, used)
    assert min(used[owner] for owner in owners) >= limit // (2 * n_owners)
