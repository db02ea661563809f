"""Texts are parsed as by vLLM's parsers, except for the differences that
docs/parsers.md lists with reasons.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from .cases import (
    Case,
    Reading,
    load_cases,
    load_differences,
    read_reasoning,
    read_tools,
    read_tools_behind_reasoning,
)

READERS: dict[str, Callable[[Case], tuple[Reading, ...]]] = {
    "tools": read_tools,
    "reasoning": read_reasoning,
}
every_kind = pytest.mark.parametrize("kind", READERS)


@cache
def read_cases(kind: str) -> list[tuple[Case, tuple[Reading, ...]]]:
    """Return the cases with what our parsers read in them, once for all tests."""
    return [(case, READERS[kind](case)) for case in load_cases(kind)]


@every_kind
def test_texts_parse_like_vllm_except_listed_differences(kind: str):
    explained = {
        id
        for difference in load_differences()
        if difference.kind == kind
        for id in difference.cases
    }
    different: dict[str, object] = {}
    for case, (ours, *_) in read_cases(kind):
        meanings = {ours.meaning}
        if kind == "tools":
            meanings.update(reading.meaning for reading in read_tools_behind_reasoning(case))
        if meanings.isdisjoint(reading.meaning for reading in case.readings):
            different[case.id] = case.text, case.readings, ours
    assert {id: found for id, found in different.items() if id not in explained} == {}, (
        "list them in differences.json or fix them"
    )
    assert explained - different.keys() == set(), (
        "these agree now: remove them from differences.json"
    )


@every_kind
def test_parse_result_is_independent_of_chunking(kind: str):
    for case, (full, streamed) in read_cases(kind):
        assert full == streamed, case


@pytest.mark.parametrize(
    ("kind", "number", "agreeing"), [("tools", 675, 587), ("reasoning", 220, 206)]
)
def test_agreement_with_vllm_does_not_decrease(kind: str, number: int, agreeing: int):
    differing = sum(
        len(difference.cases) for difference in load_differences() if difference.kind == kind
    )
    assert len(load_cases(kind)) == number
    assert number - differing >= agreeing


@every_kind
def test_agreement_cases_are_unique_and_name_source(kind: str):
    cases = load_cases(kind)
    assert len({case.id for case in cases}) == len(cases)
    assert all(case.source.startswith("tests/") for case in cases)
