"""Finds short legal endings of a constrained answer.

llguidance does not tell the distance to the end of a grammar, so a bounded search finds
the endings; it prefers tokens that close something. Before an answer is closed, a
second search looks for the shortest ending among all tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import llguidance

    from .vocabulary import GrammarVocabulary

Ending = tuple[int, ...]

_CLOSERS = frozenset(b"\"'`]})>")
_PUNCTUATION = frozenset(b"\"'`[]{}(),:;<>/=|.")
_WORDS = (b"true", b"false", b"null", b"0", b"1")
_WIDTH = 4
"""Beam width: states of each length that the search expands, after a first search that
expands only one.
"""
_MAX_STATES = 1_500
"""Maximum states that a search visits, at 20 microseconds each with the embedded
vocabulary.
"""
_SHORTEST_WIDTH = 32
_SHORTEST_STATES = 1_000
_MAX_CHOICES = 128
_MAX_ALIKE = 3
"""Limits of the search for the shortest ending: states of each length that it expands,
states that it visits, allowed tokens up to which it tries all of them, and states with
the same mask that it keeps.
"""


class EndingSearch:
    """Finds endings for the grammars of one vocabulary. Thread-safe."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self.eos = vocabulary.eos
        self._vocabulary = vocabulary

    @cached_property
    def _preferences(self) -> tuple[tuple[NDArray[np.int64], int], ...]:
        """Groups of token ids that may continue an ending, and how many of each group
        are tried.

        Punctuation is grouped by its first byte: only one quotation mark ends a string.
        """
        special = set(self._vocabulary.special_token_ids)
        tokens = self._vocabulary.tokens
        closing: dict[int, list[int]] = {byte: [] for byte in _CLOSERS}
        opening: dict[int, list[int]] = {byte: [] for byte in _PUNCTUATION}
        controls, words, letters, long, continuation_bytes = (list[int]() for _ in range(5))
        for id, token in enumerate(tokens):
            if id in special:
                controls.append(id)
            elif _PUNCTUATION.issuperset(token) and token:
                (closing if _CLOSERS.issuperset(token) else opening)[token[0]].append(id)
            elif token in _WORDS:
                words.append(id)
            elif len(token) == 1 and 0x80 <= token[0] < 0xC0:
                continuation_bytes.append(id)  # UTF-8: they complete a character that has begun.
            elif token.isalnum():
                (letters if len(token) == 1 else long).append(id)
        for group in (*closing.values(), *opening.values()):
            # A short token leaves more ways to end than a long one that opens something
            # new after its bracket.
            group.sort(key=lambda id: len(tokens[id]))
        long.sort(key=lambda id: -len(tokens[id]))
        # A few of each kind suffice: whether an answer can end depends on the kind,
        # rarely on the token.
        limits = [(group, 2) for group in closing.values()] + [
            (group, 1) for group in opening.values()
        ]
        limits += [(controls, 8), (words, 3), (letters, 2), (long, 2), (continuation_bytes, 2)]
        return tuple((np.array(group, np.int64), limit) for group, limit in limits if group)

    @cached_property
    def _bytes(self) -> NDArray[np.int64]:
        special = set(self._vocabulary.special_token_ids)
        single = [
            id
            for id, token in enumerate(self._vocabulary.tokens)
            if len(token) == 1 or id in special
        ]
        return np.array(single, np.int64)

    def find(self, state: llguidance.LLMatcher, max_tokens: int) -> Ending | None:
        """Find a short ending of at most `max_tokens` tokens; None if none is found.
        Does not change the state.
        """
        probe = state.deep_copy()
        if probe.is_accepting():
            return ()
        return (
            # From cheap to expensive: in nearly every grammar, closing what is open is
            # enough, and the first search finds that.
            self._search(probe, max_tokens, 1, narrow=True)
            or self._search(probe, max_tokens, _WIDTH, narrow=True)
            or self._search(probe, max_tokens, _WIDTH, narrow=False)
        )

    def find_shortest(self, state: llguidance.LLMatcher, max_tokens: int) -> Ending | None:
        """Find the shortest ending of at most `max_tokens` tokens; None if there is
        none, or the search gives up.

        It tries every token where a state allows few of them, so it costs more than
        `find`. Does not change the state.
        """
        probe = state.deep_copy()
        if probe.is_accepting():
            return ()
        visited = 0
        seen = {b""}
        level: list[tuple[bytes, Ending]] = [(probe.compute_bitmask(), ())]
        for _ in range(max_tokens):
            longer: dict[bytes, list[Ending]] = {}
            for mask, path in level:
                text = self._join(path)
                probe.try_consume_tokens(list(path))
                for id in self._choose(mask):
                    # Different tokens that write the same text lead to the same state.
                    if (key := text + self._join((id,))) in seen:
                        continue
                    seen.add(key)
                    visited += 1
                    if visited > _SHORTEST_STATES:
                        return None
                    probe.try_consume_tokens([id])
                    if probe.is_accepting():
                        return (*path, id)
                    longer.setdefault(probe.compute_bitmask(), []).append((*path, id))
                    probe.rollback(1)
                probe.rollback(len(path))
            # States with one mask may differ in how many repetitions they need; more
            # text is nearer to a minimum.
            level = sorted(
                (
                    (mask, path)
                    for mask, paths in longer.items()
                    for path in sorted(paths, key=lambda path: -len(self._join(path)))[:_MAX_ALIKE]
                ),
                key=self._rank,
            )[:_SHORTEST_WIDTH]
        return None

    def _join(self, path: Ending) -> bytes:
        """Return the bytes of these tokens. A control token becomes 0xFF and its id,
        which differs from all text.
        """
        special = self._special
        tokens = self._vocabulary.tokens
        return b"".join(b"\xff%d" % id if id in special else tokens[id] for id in path)

    @cached_property
    def _special(self) -> frozenset[int]:
        return frozenset(self._vocabulary.special_token_ids)

    def _choose(self, mask: bytes) -> list[int]:
        """Return the tokens that the mask allows, or a few of each kind if there are
        too many; longest first.
        """
        allowed = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
        candidates: list[int] = np.flatnonzero(allowed).tolist()
        if len(candidates) > _MAX_CHOICES:
            candidates = self._prefer(allowed)
        tokens = self._vocabulary.tokens
        return sorted(
            (id for id in candidates if id < len(tokens)), key=lambda id: -len(tokens[id])
        )

    def _prefer(self, allowed: NDArray[np.uint8]) -> list[int]:
        """Return a few of the allowed tokens of each kind."""
        ids: list[int] = []
        for group, limit in self._preferences:
            ids += group[allowed[group] != 0][:limit].tolist()
        return ids

    def _search(
        self, probe: llguidance.LLMatcher, max_tokens: int, width: int, *, narrow: bool
    ) -> Ending | None:
        """Run a beam search that prefers states whose mask allows few tokens: inside a
        string, nearly all are allowed.

        States of one length with the same mask count as equal; the one with the most
        text is kept, because it is nearer to a minimum length.

        width: the beam width: states of each length that it expands.
        narrow: try a few tokens of each kind; False tries all tokens of one byte, and
            the control tokens.
        """
        level: dict[int, dict[bytes, Ending]] = {0: {probe.compute_bitmask(): ()}}
        visited = 0
        for length in range(max_tokens):
            states = level.pop(length, {})
            for mask, path in sorted(states.items(), key=self._rank)[:width]:
                for continuation in self._continue(probe, path, mask, narrow=narrow):
                    visited += 1
                    if visited > _MAX_STATES:
                        return None
                    longer = (*path, *continuation)
                    if len(longer) > max_tokens:
                        continue
                    probe.try_consume_tokens(list(longer))
                    try:
                        if probe.is_accepting():
                            return longer
                        level.setdefault(len(longer), {}).setdefault(
                            probe.compute_bitmask(), longer
                        )
                    finally:
                        probe.rollback(len(longer))
        return None

    def _rank(self, state: tuple[bytes, Ending]) -> tuple[int, int]:
        """Sort key of a state: few allowed tokens first; inside a string, where most
        are allowed, the longest text.
        """
        mask, path = state
        allowed = int.from_bytes(mask, "little").bit_count()
        tokens = self._vocabulary.tokens
        return min(allowed, len(tokens) // 2), -sum(len(tokens[id]) for id in path)

    def _continue(
        self, probe: llguidance.LLMatcher, path: Ending, mask: bytes, *, narrow: bool
    ) -> Iterator[Sequence[int]]:
        """Yield the continuations of a path: the tokens that the grammar forces, or
        single ones, words first.
        """
        if path:
            probe.try_consume_tokens(list(path))
        # Text that has no alternative costs one state instead of one for each of its
        # tokens. llguidance writes a control token as 0xFF and its id; it is one of the
        # candidates.
        forced_bytes = probe.compute_ff_bytes().partition(b"\xff")[0]
        forced: list[int] = []
        if len(forced_bytes) > 1:
            with suppress(UnicodeDecodeError):
                forced = self._vocabulary(forced_bytes)
        is_forced = bool(forced) and probe.validate_tokens(forced) == len(forced)
        if path:
            probe.rollback(len(path))
        if is_forced:
            yield forced
            return
        allowed = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
        if not narrow:
            yield from ((id,) for id in self._bytes[allowed[self._bytes] != 0].tolist())
            return
        tokens = self._vocabulary.tokens
        candidates = sorted(
            self._prefer(allowed), key=lambda id: (not tokens[id].isalnum(), -len(tokens[id]))
        )
        yield from ((id,) for id in candidates)
