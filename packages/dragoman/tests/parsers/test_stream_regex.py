"""The patterns of response templates match as in Python's `re`, in one pass, with any
chunking.
"""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from dragoman.parsers.stream_regex import (
    PatternMatch,
    PatternSearch,
    Program,
    UnsupportedPattern,
    can_be_empty,
    find_literals,
    find_matches,
    parse_pattern,
    render_pattern,
)
from dragoman.parsers.stream_regex.pike_vm import MAX_STABLE_PATTERNS

atoms = st.sampled_from(
    ["a", "b", "<", r"\<", r"\w", r"\s", "[^<]", "[ab]", "[]a]", ".", r"\x61", "\n", "^", "$"]
)
counts = st.sampled_from(
    ["*", "+", "?", "*?", "+?", "??", "{2}", "{1,2}", "{,2}?", "{1,}", "{,}", "{}"]
)
patterns = st.recursive(
    atoms,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map("".join)
        | st.tuples(inner, inner).map("(?:{0[0]}|{0[1]})".format)
        | st.tuples(inner, counts).map("(?:{0[0]}){0[1]}".format)
        | inner.map("(?P<g>{})".format)
    ),
    max_leaves=6,
)


def program(source: str) -> Program:
    """Compile a pattern with the syntax that templates may use."""
    assume(source.count("<g>") < 2)
    try:
        node = parse_pattern(source)
    except UnsupportedPattern:
        assume(False)
        raise
    assume(not can_be_empty(node))
    return Program([node])


def first(compiled: Program, pieces: list[str]) -> PatternMatch | None:
    search = PatternSearch(compiled, 0, at_start=True)
    for piece in pieces:
        found = search.read(piece, 0)
        if found is not None:
            return found
    return search.close()


def by_re(found: re.Match[str]) -> tuple[int, int, tuple[tuple[str, int, int], ...]]:
    captures = (
        (name, *found.span(name)) for name, part in found.groupdict().items() if part is not None
    )
    return found.start(), found.end(), tuple(captures)


@given(patterns, st.text("ab< \n", max_size=12))
@example(".b", "xb xxbaa")
@example("(?P<g>.)*?<", "aab <")
@example("a{,}b", "aab")
def test_pattern_search_matches_python_re(source: str, text: str):
    assume(
        "$" not in source or not ("^" in source or text.endswith("\n"))
    )  # there re's $ means more
    compiled = program(source)
    found = first(compiled, [text])
    expected = re.search(source, text, re.DOTALL)
    assert (found and (found.start, found.end, found.captures)) == (expected and by_re(expected))
    if "^" not in source and "$" not in source:
        every = [(one.start, one.end, one.captures) for one in find_matches(compiled, text)]
        assert every == [by_re(one) for one in re.finditer(source, text, re.DOTALL)]


@given(patterns, st.lists(st.text("ab< \n", min_size=1, max_size=4), max_size=5))
def test_pattern_search_is_independent_of_chunking(source: str, pieces: list[str]):
    compiled = program(source)
    assert first(compiled, pieces) == first(compiled, ["".join(pieces)])


@pytest.mark.parametrize(
    "source",
    [
        "(?=a)",
        "(?!a)",
        "(?<=a)b",
        r"(a)\1",
        r"(?P<x>a)(?P=x)",
        r"\bword\b",
        "a*+",
        "(?>a)",
        "(?i)a",
        "(a*)*",
        "a{999}",
        "a{99999999999}",
        r"\012",
        "(" * 300 + ")" * 300,
        "(" * 3000 + ")" * 3000,
        "(",
    ],
)
def test_parse_pattern_multi_pass_syntax_is_rejected(source: str):
    with pytest.raises(UnsupportedPattern):
        parse_pattern(source)


def test_pattern_search_prefers_leftmost_longest_first():
    assert first(Program([parse_pattern("bc"), parse_pattern("abcd")]), ["xabcd"]) == PatternMatch(
        1, 1, 5, ()
    )
    assert first(Program([parse_pattern("bc"), parse_pattern("abcd")]), ["xabce"]) == PatternMatch(
        0, 2, 4, ()
    )
    assert first(Program([parse_pattern("ab"), parse_pattern("abc")]), ["ab", "c"]) == PatternMatch(
        1, 0, 3, ()
    )
    assert first(Program([parse_pattern("ab"), parse_pattern(r"a\w")]), ["ab"]) == PatternMatch(
        0, 0, 2, ()
    )


def test_pattern_search_over_max_length_is_abandoned():
    search = PatternSearch(Program([parse_pattern("<.*?>")]), 0, at_start=True, max_length=10)
    assert search.read("<" + "a" * 8, 0) is None
    assert search.pending == 0
    assert search.read("aaa", 0) is None
    assert search.pending == 12
    assert search.read("<a>", 0) == PatternMatch(0, 12, 15, ())


@pytest.mark.parametrize(
    ("source", "spelled", "runs"),
    [
        (r"</think>\s*", "</think>", ["</think>"]),
        (r"(?:^|<think>\s*)", "<think>", ["<think>"]),
        (r"to=(?P<name>\w+).*?<\|m\|>", "to=f<|m|>", ["to=", "<|m|>"]),
        (r"<\w+>", None, ["<", ">"]),
    ],
)
def test_render_pattern_returns_literal_text(source: str, spelled: str | None, runs: list[str]):
    node = parse_pattern(source)
    assert render_pattern(node, {"name": "f"}) == spelled
    assert find_literals(node) == runs


HOSTILE = [
    "(?:a|a)(?:a|a)*b",
    "a+a+a+a+a+a+b",
    "(?:a+b?)+c",
    "(?:a|ab|abc){100}d",
    "a{1,400}b",
    "(?:.a?){100}b",
    "(?:[^b]|a|.){200}b",
]
"""Patterns for which a backtracking matcher needs exponential or polynomial time."""


@pytest.mark.parametrize("source", HOSTILE)
def test_pattern_search_of_hostile_pattern_has_bounded_threads(source: str) -> None:
    compiled = Program([parse_pattern(source)])
    search = PatternSearch(compiled, 0, at_start=True)
    for _ in range(40):
        search.read("a" * 20 + "ca", 0)
        # Each step visits each thread once, and each has its own instruction.
        positions = [thread.instruction for thread in search.threads]
        assert len(set(positions)) == len(positions) <= len(compiled.code)


@pytest.mark.parametrize("source", ["a?" * 2000 + "b", "(?:a?b?){1}" * 700 + "c", "a" * 6000])
def test_program_of_too_large_pattern_is_rejected(source: str) -> None:
    with pytest.raises(UnsupportedPattern, match="too"):
        Program([parse_pattern(source)])


def test_program_caches_bounded_number_of_thread_sets() -> None:
    # Which threads live tells at which of the last fourteen characters an `a` was.
    compiled = Program([parse_pattern("a.{14}b")])
    search = PatternSearch(compiled, 0, at_start=True, max_length=100)
    bits = itertools.chain.from_iterable(f"{number:08b}" for number in range(300))
    search.read("".join("a" if bit == "1" else "c" for bit in bits), 0)
    assert compiled.num_cached <= MAX_STABLE_PATTERNS
