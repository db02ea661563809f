"""Constrained answers are closed validly within their token limit."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from random import Random
from typing import Any

import jsonschema_rs
import pytest
from tests.prompts import vocabularies

from dragoman.constraints.closing_matcher import ClosingMatcher
from dragoman.constraints.grammar_compiler import Compiler
from dragoman.constraints.grammar_matcher import CompiledGrammar
from dragoman.core.tokenizer import Tokenizer
from dragoman.prompts.hf_tokenizer import HfTokenizer

from .conftest import EOS
from .walks import advance, list_allowed, text

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 5},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"enum": ["alpha", "b"]}, "minItems": 2},
        "more": {"$ref": "#"},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
ANY: dict[str, Any] = {"type": "object"}
SCHEMAS = (PERSON, ANY, {"type": "array", "items": ANY, "minItems": 3})


def closing(compiler: Compiler, grammar: str, limit: int) -> ClosingMatcher:
    matcher = compiler.compile_text(grammar, None).build_closing_matcher(compiler.endings, limit)
    assert isinstance(matcher, ClosingMatcher)
    return matcher


def json_grammar(schema: dict[str, Any]) -> str:
    return "start: answer\nanswer: %json " + json.dumps(schema)


def sample(
    matcher: ClosingMatcher, tokenizer: Tokenizer, eos: int, limit: int, random: Random
) -> list[int]:
    """Sample at random, as an engine does: apply the mask, and let the matcher replace
    the sampled token.
    """
    ids: list[int] = []
    while len(ids) < limit and not matcher.finished:
        token = matcher.replace(random.choice(list_allowed(matcher, tokenizer.vocab_size)))
        assert matcher.allows(token)
        assert matcher.advance(token)
        if token == eos:
            break
        ids.append(token)
    return ids


@pytest.mark.parametrize("schema", SCHEMAS, ids=("person", "any", "array"))
@pytest.mark.parametrize("limit", [36, 80, pytest.param(200, marks=pytest.mark.long)])
def test_closing_matcher_at_token_limit_gives_valid_json(
    embedded: HfTokenizer, compiler: Compiler, schema: dict[str, Any], limit: int
):
    eos = compiler.vocabulary.eos[0]
    closed = 0
    for seed in range(6):
        matcher = closing(compiler, json_grammar(schema), limit)
        ids = sample(matcher, embedded, eos, limit, Random(seed))
        jsonschema_rs.validate(schema, json.loads(text(embedded, ids)))
        assert len(ids) <= limit
        closed += matcher.was_closed
    assert closed, "random answers are longer than the limit"


@pytest.mark.parametrize(
    "pattern",
    [r'[a-z]*x"', r"\d{3}-\d{4}", r"(ab)+c", r"[a-q]{3,40}zz", r"(yes|no), because .{10,200}\."],
)
@pytest.mark.parametrize("limit", [20, 33])
def test_closing_matcher_at_token_limit_matches_pattern(
    embedded: HfTokenizer, compiler: Compiler, pattern: str, limit: int
):
    eos = compiler.vocabulary.eos[0]
    for seed in range(4):
        matcher = closing(compiler, f"start: /{pattern}/", limit)
        assert re.fullmatch(
            pattern, text(embedded, sample(matcher, embedded, eos, limit, Random(seed)))
        )


def test_closing_matcher_keeps_tokens_while_answer_fits(embedded: HfTokenizer, compiler: Compiler):
    """An answer that fits keeps the model's tokens. A few tokens may remain unused:
    endings are not minimal.
    """
    ids = embedded.encode(
        '{"name":"Susan and her many brothers","age":3,"tags":["alpha","b"]}', special=False
    )
    for limit in (len(ids) + 6, 500):
        matcher = closing(compiler, json_grammar(PERSON), limit)
        for token in ids:
            assert matcher.replace(token) == token
            assert matcher.advance(token)
        assert not matcher.was_closed
    matcher = closing(compiler, json_grammar(PERSON), len(ids) - 1)
    for token in ids[:-1]:
        assert matcher.advance(matcher.replace(token))
    assert matcher.was_closed
    assert matcher.finished


def test_closing_matcher_without_room_truncates_answer(embedded: HfTokenizer, compiler: Compiler):
    matcher = closing(compiler, json_grammar(PERSON), 5)
    ids = sample(matcher, embedded, compiler.vocabulary.eos[0], 5, Random(1))
    assert len(ids) == 5
    assert not matcher.was_closed


def test_closing_matcher_mask_allows_only_ending(embedded: HfTokenizer, compiler: Compiler):
    """Engines that only check sampled tokens, as llama.cpp's is, sample again from the
    mask.
    """
    ids = embedded.encode('{"a": {"b": {"c": {', special=False)
    matcher = closing(compiler, json_grammar(ANY), len(ids) + 5)
    assert advance(matcher, ids)
    opener = embedded.encode('"dddd', special=False)[0]
    found: list[int] = []
    while not matcher.finished:
        token = opener
        if not matcher.allows(token):
            token = next(
                id for id in list_allowed(matcher, embedded.vocab_size) if matcher.allows(id)
            )
        assert matcher.advance(token)
        found.append(token)
    assert json.loads(text(embedded, [*ids, *found]))
    assert len(found) <= 5
    assert matcher.was_closed


def test_closing_matcher_supports_plain_vocabulary(plain: HfTokenizer, plain_compiler: Compiler):
    for seed in range(6):
        matcher = closing(plain_compiler, json_grammar(PERSON), 60)
        ids = sample(matcher, plain, plain_compiler.vocabulary.eos[0], 60, Random(seed))
        jsonschema_rs.validate(PERSON, json.loads(text(plain, ids)))


JOINS = (
    '":',
    '"}',
    '"]',
    '",',
    "{}",
    "[]",
    '""',
    "}}",
    "],",
    '{"',
    '["',
    "ab",
    "aba",
    "},",
    "}]",
    "tr",
    "true",
    "null",
    "10",
)
AB: dict[str, Any] = {"type": "string", "pattern": "^[ab]*$"}
SMALL: tuple[dict[str, Any] | str, ...] = (
    {
        "type": "object",
        "properties": {"a": AB, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
    {
        "type": "object",
        "properties": {
            "a": {"type": "array", "items": {"enum": ["a", "bb", "aba"]}, "minItems": 2},
            "b": {"$ref": "#"},
        },
        "required": ["a"],
        "additionalProperties": False,
    },
    {
        "type": "array",
        "items": {"anyOf": [{"type": "null"}, {"enum": ["abab", "b"]}, {"type": "integer"}]},
        "minItems": 2,
    },
    "(ab)*c{3}",
    "[ab]{2,7}(true|b)",
    "(a|b[ab]{3}|abab){2,4}!",
    '"(a|ab|aba)+":(10)+000',
)
MOST = 7


@pytest.fixture(scope="module")
def small() -> HfTokenizer:
    """A vocabulary of bytes, and of tokens that close several objects at once."""
    data = vocabularies.byte_level_data((EOS,))
    words = [vocabularies.BYTES[byte] for byte in range(256)]
    merges: list[list[str]] = []
    for join in JOINS:
        letters = [vocabularies.BYTES[byte] for byte in join.encode()]
        for end in range(1, len(letters)):
            head = "".join(letters[:end])
            last = letters[end]
            if head + last not in words:
                words.append(head + last)
                merges.append([head, last])
    words.append(EOS)
    data["model"] |= {"vocab": {word: id for id, word in enumerate(words)}, "merges": merges}
    data["added_tokens"] = [vocabularies.added(len(words) - 1, EOS)]
    return vocabularies.build_tokenizer(data)


def count_to_end(
    grammar: CompiledGrammar, tokenizer: HfTokenizer, ids: Sequence[int]
) -> int | None:
    """Return the length of the shortest ending of all for an answer that begins with
    `ids`; None if it exceeds MOST.
    """
    eos = tokenizer.special_tokens[EOS]
    level: dict[bytes, list[int]] = {b"": []}
    seen = {b""}
    for count in range(MOST + 1):
        following: dict[bytes, list[int]] = {}
        for written, path in level.items():
            state = grammar.build_matcher()
            assert advance(state, [*ids, *path])
            choices = list_allowed(state, tokenizer.vocab_size)
            if eos in choices:
                return count
            for id in choices:
                longer = written + tokenizer.token_bytes(id)
                if longer not in seen:
                    seen.add(longer)
                    following[longer] = [*path, id]
        level = following
    return None


@pytest.mark.parametrize(
    "rule", SMALL, ids=("flat", "nested", "array", "tail", "word", "repeated", "overlaps")
)
def test_closing_matcher_closes_late_with_shortest_ending(small: HfTokenizer, rule: Any):
    """Compared with an exhaustive search."""
    eos = small.special_tokens[EOS]
    decided = 0
    compiler = Compiler(small, [eos])
    compact = {"x-guidance": {"whitespace_flexible": False}}
    rule_text = f"start: /{rule}/" if isinstance(rule, str) else json_grammar({**rule, **compact})
    grammar = compiler.compile_text(rule_text, None)
    for seed in range(12):
        random = Random(seed)
        limit = random.randrange(2, 20)
        ids = list[int]()
        matcher = grammar.build_closing_matcher(compiler.endings, limit)
        assert isinstance(matcher, ClosingMatcher)
        while len(ids) < limit and not matcher.finished and not matcher.was_closed:
            choices = [id for id in list_allowed(matcher, small.vocab_size) if id != eos] or [eos]
            token = random.choice(choices)
            chosen = matcher.replace(token)
            assert matcher.advance(chosen)
            if matcher.was_closed:
                decided += 1
                fewest = count_to_end(grammar, small, ids)
                rest = int(chosen != eos)
                while not matcher.finished and (last := matcher.replace(token)) != eos:
                    assert matcher.advance(last)
                    rest += 1
                assert rest == fewest, "not the shortest"
                after = count_to_end(grammar, small, [*ids, token])
                assert after is None or after > limit - len(ids) - 1, (
                    "an ending would fit after the sampled token"
                )
            ids.append(chosen)
        if not matcher.was_closed and not matcher.finished:
            fewest = count_to_end(grammar, small, [])
            is_whole = count_to_end(grammar, small, ids) == 0
            assert is_whole or fewest is None or fewest > limit, (
                "truncated although an ending would fit"
            )
    assert decided, "no answer was closed"
