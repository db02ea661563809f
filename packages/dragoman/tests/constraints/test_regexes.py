"""Patterns of schemas follow ECMA-262, and formats of dates RFC 3339."""

from __future__ import annotations

import json
import re
from calendar import monthrange
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from tests.constraints.conftest import EOS
from tests.constraints.walks import accepts

from dragoman.constraints.date_formats import DATE_PATTERNS
from dragoman.constraints.ecma_regex import convert_ecma_regex
from dragoman.constraints.grammar_compiler import Compiler
from dragoman.constraints.response_grammar import (
    CallForm,
    ConstraintGrammar,
    ToolCallRules,
    compose_grammar,
)
from dragoman.core.request import JsonSchema
from dragoman.core.syntax import FreeText, LiteralText
from dragoman.prompts.hf_tokenizer import HfTokenizer

ECMA_SPACES = "\t\n\v\f\r \u00a0\u1680\u2000\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
OTHERS = "a_Z9-/`\u0085\u180e\u200b\u00e9\u4e2d\u0660\U0001f600"
CLASSES = {
    r"\s": set(ECMA_SPACES),
    r"\d": set("9"),
    r"\w": set("a_Z9"),
    r"[\s\d]": {*ECMA_SPACES, "9"},
    r"[^\s]": set(OTHERS),
    r"[\S]": set(OTHERS),
    r"[^\W]": set("a_Z9"),
    ".": {*ECMA_SPACES, *OTHERS} - set("\n\r\u2028\u2029"),
    "[^]": {*ECMA_SPACES, *OTHERS},
    r"[+--]": set("-"),
    r"[+-\d]": set("9-"),
    r"[\w-z]": set("a_Z9-"),
    r"[\w-\.]": set("a_Z9-"),
    r"[!-\s]": {*ECMA_SPACES, "-"},
    r"[\d-\w]": set("a_Z9-"),
    r"[\d-Y-a]": set("9-a"),
    r"[\W-Z]": {*ECMA_SPACES, *OTHERS} - set("a_9"),
    r"[^-\d]": {*ECMA_SPACES, *OTHERS} - set("9-"),
    r"[-\d/]": set("9-/"),
    r"[\d/-]": set("9-/"),
    r"[_-a]": set("_`a"),
    r"\ud83d\ude00": {"\U0001f600"},
    r"\u4e2d": {"\u4e2d"},
    r"\cI": {"\t"},
    r"[\cI\u0085]": {"\t", "\u0085"},
}


def build_grammar(tokenizer: HfTokenizer, schema: dict[str, Any]) -> ConstraintGrammar:
    return compose_grammar(tokenizer.special_tokens, body=JsonSchema(json.dumps(schema)))


def allows(tokenizer: HfTokenizer, compiler: Compiler, schema: dict[str, Any], value: Any) -> bool:
    ids = tokenizer.encode(json.dumps(value, ensure_ascii=False), special=False)
    grammar = build_grammar(tokenizer, schema)
    return accepts(compiler, grammar, ids, tokenizer.special_tokens[EOS])


@pytest.mark.parametrize(
    "expression", [*CLASSES, *(name.upper() for name in (r"\s", r"\d", r"\w"))]
)
def test_pattern_class_has_characters_of_ecma(
    expression: str, embedded: HfTokenizer, compiler: Compiler
) -> None:
    everything = {*ECMA_SPACES, *OTHERS}
    wanted = CLASSES.get(expression)
    if wanted is None:
        wanted = everything - CLASSES[expression.lower()]
    for keyword in ("pattern", "patternProperties"):
        for char in everything:
            schema: dict[str, Any] = {"type": "string", "pattern": f"^{expression}$"}
            value: Any = char
            if keyword == "patternProperties":
                schema = {
                    "type": "object",
                    "patternProperties": {f"^{expression}$": {"const": 1}},
                    "additionalProperties": False,
                    "minProperties": 1,
                }
                value = {char: 1}
            assert allows(embedded, compiler, schema, value) == (char in wanted), (keyword, char)


def test_pattern_of_text_argument_follows_ecma(embedded: HfTokenizer, compiler: Compiler) -> None:
    text = FreeText("</p>", pattern=r"(?s:.*)(?:x\S)(?s:.*)")
    form = CallForm((LiteralText("<p>"), text))
    rules = ToolCallRules((form,), is_required=True)
    grammar = compose_grammar(embedded.special_tokens, calls=rules)
    for value, is_allowed in (("\nxa\n", True), ("x\u0085", True), ("x\ufeff", False)):
        ids = embedded.encode(f"<p>{value}</p>", special=False)
        assert accepts(compiler, grammar, ids, embedded.special_tokens[EOS]) == is_allowed


@pytest.mark.parametrize(
    "pattern",
    ["^a$", r"\/\-\.", "a{2,3}", r"[^a-z\]]+", r"\p{L}", r"(?:a|b)?", r"\\s", r"[\\]", "(?<n>a)"],
)
def test_pattern_of_both_syntaxes_stays_as_it_is(pattern: str) -> None:
    assert convert_ecma_regex(pattern) == pattern


@pytest.mark.parametrize("year", [1900, 1999, 2000, 2020, 2021, 2100, 2400])
def test_date_format_allows_only_days_of_calendar(year: int) -> None:
    for month in range(14):
        for day in range(33):
            is_valid = 1 <= month <= 12 and 1 <= day <= monthrange(year, month)[1]
            text = f"{year}-{month:02}-{day:02}"
            assert bool(re.fullmatch(DATE_PATTERNS["date"], text)) == is_valid, text
            for time in ("T00:00:00Z", "t23:59:59.5+05:30"):
                assert bool(re.fullmatch(DATE_PATTERNS["date-time"], text + time)) == is_valid


def list_leap_seconds(day: date) -> list[str]:
    """List this day's leap second in several time zones."""
    minute = datetime(day.year, day.month, day.day, 23, 59, tzinfo=UTC)
    texts = [f"{minute:%Y-%m-%dT%H:%M}:60Z", f"{minute:%Y-%m-%dT%H:%M}:60.25+00:00"]
    for sign in (1, -1):
        for hours, minutes in ((0, 15), (1, 0), (5, 45), (8, 0), (12, 0), (14, 0), (23, 30)):
            local = minute + sign * timedelta(hours=hours, minutes=minutes)
            offset = f"{'+' if sign > 0 else '-'}{hours:02}:{minutes:02}"
            texts.append(f"{local:%Y-%m-%dT%H:%M}:60{offset}")
    return texts


@pytest.mark.parametrize(
    ("day", "is_valid"),
    [
        (date(1998, 12, 31), True),
        (date(1990, 6, 30), True),
        (date(2020, 2, 29), True),
        (date(1998, 12, 30), False),
        (date(1990, 7, 1), False),
        (date(2020, 2, 28), False),
    ],
)
def test_leap_second_ends_month_in_utc(day: date, is_valid: bool) -> None:
    for text in list_leap_seconds(day):
        assert bool(re.fullmatch(DATE_PATTERNS["date-time"], text)) == is_valid, text
        assert re.fullmatch(DATE_PATTERNS["time"], text[11:]), text


@pytest.mark.parametrize(
    "time",
    [
        "22:27:60Z",
        "23:58:60Z",
        "00:59:60Z",
        "23:59:60+01:00",
        "15:59:60+08:00",
        "23:59:61Z",
        "24:00:00Z",
    ],
)
def test_second_60_at_other_times_is_rejected(time: str) -> None:
    assert not re.fullmatch(DATE_PATTERNS["time"], time)
    assert not re.fullmatch(DATE_PATTERNS["date-time"], f"1998-12-31T{time}")


@pytest.mark.parametrize(
    ("schema", "value", "is_allowed"),
    [
        ({"type": "string", "format": "date"}, "2021-02-28", True),
        ({"type": "string", "format": "date"}, "2021-02-29", False),
        ({"type": "string", "format": "date-time"}, "9631-11-30t20:01:60Z", False),
        ({"type": "string", "format": "date-time"}, "1998-12-31T15:59:60.123-08:00", True),
        ({"type": "string", "format": "time"}, "22:27:60Z", False),
        ({"type": "string", "format": "time"}, "23:59:60Z", True),
        ({"type": "string", "format": "date", "pattern": "-31$"}, "2021-01-31", True),
        ({"type": "string", "format": "date", "pattern": "-31$"}, "2021-01-30", False),
        ({"type": "string", "format": "date", "pattern": "-31$"}, "2021-02-31", False),
        ({"anyOf": [{"format": "date", "type": "string"}]}, "2021-04-31", False),
    ],
)
def test_date_format_is_enforced_in_schema(
    schema: dict[str, Any],
    value: str,
    is_allowed: bool,
    embedded: HfTokenizer,
    compiler: Compiler,
) -> None:
    assert allows(embedded, compiler, schema, value) == is_allowed
