"""All pairs of tokens that join to a token."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dragoman.prompts.token_pairs import find_token_pairs


@given(st.lists(st.text("ab\0\ud800\U0010ffff", min_size=1, max_size=6), min_size=1, unique=True))
def test_find_token_pairs_matches_trial_of_each_pair(tokens: list[str]) -> None:
    ids = {token: id for id, token in enumerate(tokens)}
    expected = {
        (left, right, ids[one + other])
        for one, left in ids.items()
        for other, right in ids.items()
        if one + other in ids
    }
    pairs = find_token_pairs(tokens)
    found = list(
        zip(pairs.lefts.tolist(), pairs.rights.tolist(), pairs.wholes.tolist(), strict=True)
    )
    assert set(found) == expected
    assert len(found) == len(expected)
