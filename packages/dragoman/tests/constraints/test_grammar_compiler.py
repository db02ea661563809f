"""Grammars are compiled once and copied for each answer; failures of the compiler are
request errors.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from tests.constraints.conftest import EOS
from tests.constraints.walks import advance, list_allowed

from dragoman.constraints.grammar_compiler import Compiler, CompilerLimits
from dragoman.constraints.response_grammar import ConstraintGrammar, compose_grammar
from dragoman.core.errors import RequestError
from dragoman.core.matcher import Matcher
from dragoman.core.request import ContextFreeGrammar, Regex, StringChoices
from dragoman.core.tokenizer import Tokenizer
from dragoman.prompts.hf_tokenizer import HfTokenizer


def choice(tokenizer: HfTokenizer, *options: str) -> ConstraintGrammar:
    return compose_grammar(tokenizer.special_tokens, body=StringChoices(options))


def test_matchers_of_one_grammar_have_separate_state(
    embedded: HfTokenizer, compiler: Compiler
) -> None:
    compiled = compiler.compile(choice(embedded, "yes", "no"))
    first = compiled.build_matcher()
    second = compiled.build_matcher()
    assert advance(first, embedded.encode("yes", special=False))
    assert first.finished
    assert not second.finished
    assert advance(second, embedded.encode("no", special=False))


def test_compile_returns_cached_grammar(embedded: HfTokenizer, compiler: Compiler) -> None:
    grammar = choice(embedded, "once")
    assert compiler.compile(grammar) is compiler.compile(grammar)


def test_grammar_cache_evicts_least_recently_used(embedded: HfTokenizer) -> None:
    compiler = Compiler(
        embedded, [embedded.special_tokens[EOS]], limits=CompilerLimits(max_cached_grammars=4)
    )
    grammars = [
        choice(embedded, name) for name in "abc"
    ]  # each is kept twice: whole, and as its only part
    a = compiler.compile(grammars[0])
    b = compiler.compile(grammars[1])
    assert compiler.compile(grammars[0]) is a
    compiler.compile(grammars[2])
    assert compiler.compile(grammars[0]) is a
    assert compiler.compile(grammars[1]) is not b


def test_grammar_cache_is_limited_by_size(embedded: HfTokenizer) -> None:
    compiler = Compiler(
        embedded, [embedded.special_tokens[EOS]], limits=CompilerLimits(max_cached_chars=100)
    )
    grammar = choice(embedded, "x" * 200)
    assert compiler.compile(grammar) is not compiler.compile(grammar)


def test_compile_and_match_are_thread_safe(embedded: HfTokenizer, compiler: Compiler) -> None:
    def answer(number: int) -> bool:
        matcher = compiler.compile(choice(embedded, f"answer {number % 3}", "none")).build_matcher()
        ids = embedded.encode(f"answer {number % 3}", special=False)
        return all(
            id in list_allowed(matcher, embedded.vocab_size) and matcher.advance(id) for id in ids
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(answer, range(40)))


def test_matcher_rejects_token_without_affecting_others(
    embedded: HfTokenizer, compiler: Compiler
) -> None:
    compiled = compiler.compile(choice(embedded, "yes"))
    matcher = compiled.build_matcher()
    assert not matcher.advance(embedded.encode("no", special=False)[0])
    assert not matcher.finished
    with pytest.raises(RequestError):
        matcher.mask()
    assert advance(compiled.build_matcher(), embedded.encode("yes", special=False))


def test_matcher_rejects_token_id_beyond_vocabulary(
    embedded: HfTokenizer, compiler: Compiler
) -> None:
    assert not compiler.compile(choice(embedded, "yes")).build_matcher().advance(10**6)


def test_dead_end_grammar_mask_raises_request_error(
    embedded: HfTokenizer, compiler: Compiler
) -> None:
    grammar = compose_grammar(
        embedded.special_tokens, body=ContextFreeGrammar('start: "a" dead\ndead: dead')
    )
    matcher = compiler.compile(grammar).build_matcher()
    assert matcher.advance(embedded.encode("a", special=False)[0])
    with pytest.raises(RequestError, match="cannot be satisfied"):
        matcher.mask()


def test_matcher_accepts_every_end_token(embedded: HfTokenizer) -> None:
    ends = [embedded.special_tokens[EOS], embedded.special_tokens["<|endoftext|>"]]
    matcher = Compiler(embedded, ends).compile(choice(embedded, "a")).build_matcher()
    assert matcher.advance(embedded.encode("a", special=False)[0])
    assert sorted(list_allowed(matcher, embedded.vocab_size)) == sorted(ends)
    assert matcher.advance(ends[1])


def test_mask_excludes_vocabulary_padding(embedded: HfTokenizer) -> None:
    size = embedded.vocab_size + 300
    compiler = Compiler(embedded, [embedded.special_tokens[EOS]], vocab_size=size)
    matcher = compiler.compile(
        compose_grammar(embedded.special_tokens, body=Regex("(?s:.*)"))
    ).build_matcher()
    assert len(matcher.mask()) * 8 >= size
    assert max(list_allowed(matcher, size)) < embedded.vocab_size


def test_compiler_without_end_token_raises_value_error(embedded: HfTokenizer) -> None:
    with pytest.raises(ValueError, match="end-of-sequence token"):
        Compiler(embedded, [])


class BrokenTokenizer:
    """A tokenizer whose `encode` fails when llguidance calls it."""

    vocab_size = 4
    special_tokens: Mapping[str, int] = {"<end>": 3}
    longest_token = 5

    def encode(self, text: str, *, special: bool, add_special_tokens: bool = False) -> list[int]:
        raise RuntimeError("broken")

    def token_bytes(self, id: int) -> bytes:
        return (b"a", b"b", b"ab", b"<end>")[id]

    def is_special(self, id: int) -> bool:
        return id == 3

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        return ""


def test_compiler_panic_raises_request_error() -> None:
    """llguidance panics on some grammars within all its limits: that is a 400, not a
    500.
    """
    tokenizer: Tokenizer = BrokenTokenizer()
    with pytest.raises(RequestError, match="too complex"):
        Compiler(tokenizer, [3]).compile(ConstraintGrammar('start: "abab"'))


def test_forced_text_uses_canonical_tokens(embedded: HfTokenizer, compiler: Compiler) -> None:
    answer = "The weather in London is fine."
    matcher = compiler.compile(choice(embedded, answer)).build_matcher()
    written: list[int] = []
    while not matcher.finished:
        choices = list_allowed(matcher, embedded.vocab_size)
        written.append(choices[0])
        assert matcher.advance(choices[0])
    assert written == embedded.encode(answer, special=False)


def test_grammar_compiler_import_is_silent_and_lazy() -> None:
    code = (
        "import sys, dragoman.constraints.response_grammar, dragoman.constraints.grammar_compiler; "
        "print('llguidance' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_invalid_grammar_prints_no_output(
    capfd: pytest.CaptureFixture[str], embedded: HfTokenizer, compiler: Compiler
) -> None:
    for body in (
        Regex("("),
        ContextFreeGrammar("start: x"),
        ContextFreeGrammar("start: a\na: start"),
    ):
        with pytest.raises(RequestError):
            compiler.compile(compose_grammar(embedded.special_tokens, body=body))
    assert capfd.readouterr() == ("", "")


def test_matcher_mask_changes_after_each_token(embedded: HfTokenizer, compiler: Compiler) -> None:
    matcher: Matcher = compiler.compile(choice(embedded, "The weather", "A dog")).build_matcher()
    masks = [matcher.mask()]
    for id in embedded.encode("The weather", special=False):
        assert matcher.advance(id)
        masks.append(matcher.mask())
    assert all(before != after for before, after in pairwise(masks))
