"""All pairs of tokens that join to a token, which SentencePiece may merge."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

_Ints = NDArray[np.int64]
_Hashes = NDArray[np.uint64]

_MULTIPLIER = 0x9E3779B97F4A7C15
"""Odd, so that it has an inverse modulo 2^64."""
_FILTER_BITS = 24


class TokenPairs(Struct, frozen=True):
    """Pairs as indexes of tokens. wholes: the tokens that they join to."""

    lefts: _Ints
    rights: _Ints
    wholes: _Ints


def find_token_pairs(tokens: Sequence[str]) -> TokenPairs:
    """Find every pair of tokens that joins to one of them.

    tokens: different ones, none empty.

    Every token is cut at each position, and both parts are looked up by a hash of 64
    bits. Gemma's 262,144 tokens have 1.4 million cuts: in strings and a dictionary they
    take six times as long. Two different parts of it have the same hash with a chance
    of 10^-7, and a false pair is then refused by the `tokenizers` library, since it
    joins to no token.
    """
    text = np.frombuffer("".join(tokens).encode("utf-32-le", "surrogatepass"), np.uint32)
    sizes = np.fromiter(map(len, tokens), np.int64, len(tokens))
    ends = np.cumsum(sizes)
    starts = ends - sizes
    hashes = _PartHashes(text)
    table = _HashTable(hashes.compute(starts, ends))
    is_cut = np.ones(len(text), np.bool_)
    is_cut[starts] = False
    cuts = np.flatnonzero(is_cut)
    wholes = np.repeat(np.arange(len(tokens)), sizes - 1)
    for is_left in (True, False):
        # The second time only those whose left part is a token.
        borders = (starts[wholes], cuts) if is_left else (cuts, ends[wholes])
        is_possible = table.may_have(hashes.compute(*borders))
        cuts = cuts[is_possible]
        wholes = wholes[is_possible]
    lefts = table.find(hashes.compute(starts[wholes], cuts))
    rights = table.find(hashes.compute(cuts, ends[wholes]))
    is_pair = (lefts >= 0) & (rights >= 0)
    return TokenPairs(lefts[is_pair], rights[is_pair], wholes[is_pair])


class _PartHashes:
    """Hashes of the parts of a text: the sum of each character times the multiplier to
    the power of its place in the part, modulo 2^64.
    """

    def __init__(self, text: NDArray[np.uint32]) -> None:
        # Character 0 must count, too.
        terms = (text + np.uint64(1)) * _compute_powers(_MULTIPLIER, len(text))
        self._sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms)])
        self._inverses = _compute_powers(pow(_MULTIPLIER, -1, 1 << 64), len(text) + 1)

    def compute(self, begins: _Ints, ends: _Ints) -> _Hashes:
        return (self._sums[ends] - self._sums[begins]) * self._inverses[begins]


def _compute_powers(base: int, count: int) -> _Hashes:
    factors = np.full(count, base, np.uint64)
    factors[:1] = 1
    return np.cumprod(factors)


class _HashTable:
    """The places of hashes in a list."""

    def __init__(self, hashes: _Hashes) -> None:
        self._order = np.argsort(hashes)
        self._sorted = hashes[self._order]
        self._filter = np.zeros(1 << _FILTER_BITS, np.bool_)
        self._filter[hashes >> np.uint64(64 - _FILTER_BITS)] = True

    def may_have(self, hashes: _Hashes) -> NDArray[np.bool_]:
        """Whether each may be in the list; cheaper than `find`."""
        return self._filter[hashes >> np.uint64(64 - _FILTER_BITS)]

    def find(self, hashes: _Hashes) -> _Ints:
        """Find the place of each; -1 if it is not in the list."""
        spots = np.minimum(np.searchsorted(self._sorted, hashes), len(self._sorted) - 1)
        return np.where(self._sorted[spots] == hashes, self._order[spots], -1)
