"""Markers in token mode: the tokens of a vocabulary decide what is a marker, and the
result is that of the text alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pytest

from dragoman.core.events import TextDelta, Token
from dragoman.parsers import registry
from dragoman.parsers.call_families import CALL_FAMILIES
from dragoman.parsers.delimited_calls import DelimitedCallFormat
from dragoman.parsers.reasoning_families import REASONING_FAMILIES
from tests.cases import check_each

from .agreement.cases import find_marks, split_tokens
from .goldens import TOOLS, Case, golden
from .parsing import Shape, context, fold, parse, shape, tool_format
from .slips import FAMILIES, read_transcript

MARKED = tuple(family.names[0] for family in CALL_FAMILIES if not family.delimiters.leading)
DSML = "\uff5cDSML\uff5c"
"""The token that DeepSeek's markers contain."""


def split_by(text: str, tokens: Collection[str]) -> list[str]:
    """Split a text into these tokens and single characters."""
    pieces: list[str] = []
    while text:
        size = max((len(one) for one in tokens if text.startswith(one)), default=1)
        pieces.append(text[:size])
        text = text[size:]
    return pieces


def read(
    family: str,
    pieces: Collection[str],
    added: Collection[str] = (),
    *,
    reasoning: str | None = None,
    tail: str = "assistant\n",
) -> Shape:
    """Parse pieces. With added tokens each piece is a token, without any it is text."""
    thought = None if reasoning is None else registry.find_reasoning_format(reasoning, added)
    parser = registry.create_parser(thought, tool_format(family, added), context(*TOOLS, tail=tail))
    deltas = [
        TextDelta(0, piece, (Token(number, piece, special=piece in added),) if added else ())
        for number, piece in enumerate(pieces)
    ]
    return shape(fold(parse(parser, deltas)))


def list_cases() -> Iterator[object]:
    for family in FAMILIES:
        for number, case in enumerate(golden(family)):
            yield pytest.param(family, case, id=f"{family} {number}")


def list_reasoning_cases() -> Iterator[object]:
    for family in REASONING_FAMILIES:
        for number, case in enumerate(golden(f"reasoning/{family.names[0]}")):
            yield pytest.param(family.names[0], case, id=f"{family.names[0]} {number}")


@pytest.mark.parametrize(("family", "case"), [*list_cases()])
def test_transcript_with_vocabulary_reads_like_text(family: str, case: Case):
    expected = read(family, [case.raw], tail=case.tail)
    assert read(family, split_tokens(case.raw), find_marks(), tail=case.tail) == expected


@pytest.mark.parametrize(("family", "case"), [*list_reasoning_cases()])
def test_reasoning_with_vocabulary_reads_like_text(family: str, case: Case):
    def parse_with(added: Collection[str]) -> Shape:
        found = registry.find_reasoning_format(family, added)
        assert found is not None
        pieces = split_tokens(case.raw)
        deltas = [
            TextDelta(0, piece, (Token(number, piece),) if added else ())
            for number, piece in enumerate(pieces)
        ]
        return shape(fold(parse(found.create_parser(context(tail=case.tail)), deltas)))

    assert parse_with(find_marks()) == parse_with(())


def read_call(family: str) -> str:
    """Return a transcript without the text before its first call."""
    raw, _ = read_transcript(family)
    found = tool_format(family)
    assert isinstance(found, DelimitedCallFormat)
    return raw[min(raw.index(opener) for opener in found.call_openers if opener in raw) :]


def vocabularies(family: str) -> dict[str, tuple[str, ...]]:
    """Return vocabularies in which the markers of calls are tokens, contain tokens, or
    are plain text.
    """
    parts = (DSML, "\uff5cGCML\uff5c", "<|open|>", "<|close|>", "<|sep|>", "<|role_sep|>")
    openers = tool_format(family).call_openers
    plain = tuple(mark for mark in find_marks() if not any(mark in one for one in openers))
    return {"tokens": find_marks(), "contained": (*plain, *parts), "plain text": plain}


@pytest.mark.parametrize("family", MARKED)
def test_call_in_open_reasoning_is_found(family: str):
    call = read_call(family)
    calls = [part for part in read(family, [call]) if part[0] == "call"]

    def check(case: tuple[str, list[str], tuple[str, ...]]) -> None:
        before, pieces, added = case
        parts = read(family, pieces, added, reasoning="think", tail="<think>")
        assert [part for part in parts if part[0] == "call"] == calls
        assert [part for part in parts if part[0] == "reasoning"] == (
            [("reasoning", before.removesuffix("\n"))] if before else []
        )

    cases: dict[str, tuple[str, list[str], tuple[str, ...]]] = {}
    for before in ("Let me see.\n", "Let me see: ", ""):
        text = before + call
        cases[f"{before!r}, undivided"] = (before, [text], ())
        for name, added in vocabularies(family).items():
            cases[f"{before!r}, {name}"] = (before, split_by(text, added), added)
    check_each(cases, check)


@pytest.mark.parametrize("family", MARKED)
def test_spelled_marker_in_open_reasoning_is_reasoning(family: str):
    """A marker that is a token of the vocabulary counts only as that token."""
    added = [*tool_format(family).call_openers, "<think>", "</think>"]
    text = "Let me see.\n" + read_call(family)
    assert read(family, [*text], added, reasoning="think", tail="<think>") == [("reasoning", text)]


@pytest.mark.parametrize(
    "text",
    [
        "I use <tool_call> and then <tool_call>\n for it. ",
        'I write <tool_call>{"name": "other"}. ',
        "The tag <tool_call>get_weather is next. ",
    ],
)
@pytest.mark.parametrize("family", ["hermes", "glm47"])
def test_marker_mentioned_in_reasoning_is_reasoning(family: str, text: str):
    for added in ((), ("<think>", "</think>")):
        assert read(
            family, [*text, "</think>", "Yes"], added, reasoning="think", tail="<think>"
        ) == [
            ("reasoning", text),
            ("text", "Yes"),
        ]


def test_marker_with_spelled_token_is_reasoning():
    added = ("<think>", "</think>", DSML)
    text = f'Let me see.\n<{DSML}tool_calls>\n<{DSML}invoke name="get_weather">\n'
    assert read("deepseek_v4", [*text], added, reasoning="deepseek_v4", tail="<think>") == [
        ("reasoning", text)
    ]
