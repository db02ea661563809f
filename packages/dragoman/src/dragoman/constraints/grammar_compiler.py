"""Compiles grammars for a vocabulary.

`CompilerLimits` bounds the work of each step, but not that of compiling; for that see
`bounded_compiler`.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING

from msgspec import Struct

from ..core.errors import RequestError
from ..core.rust_panics import convert_panics
from ..core.tokenizer import Tokenizer
from .grammar_matcher import CompiledGrammar, find_reason
from .grammar_panics import convert_grammar_panics
from .response_grammar import ConstraintGrammar
from .vocabulary import GrammarVocabulary

if TYPE_CHECKING:
    import llguidance

    from .ending_search import EndingSearch

    Tools = tuple[llguidance.LLTokenizer, llguidance.LLParserLimits]
    """The vocabulary in llguidance's form, and the limits of each parser step."""


class CompilerLimits(Struct, frozen=True):
    """The limits of a compiler.

    max_cached_grammars: maximum compiled grammars in the cache.
    max_cached_chars: maximum total length of their texts in characters.
    bytes: maximum total compiled size in bytes; grammars of unknown size do not count.

    The other fields are passed to llguidance's LLParserLimits.
    """

    max_cached_grammars: int = 1024
    max_cached_chars: int = 16 * 1024 * 1024
    bytes: int = 512 * 1024 * 1024
    lexer_states: int = 50_000
    grammar_size: int = 200_000
    initial_fuel: int = 1_000_000
    step_fuel: int = 200_000
    step_items: int = 50_000
    row_items: int = 16_000


class Compiler:
    """Compiles grammars for one vocabulary and caches them. Thread-safe.

    eos: ids that end a response, at least one.
    vocab_size: size of the model's vocabulary if it is padded beyond the tokenizer's;
        None uses the tokenizer's.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        eos: Sequence[int],
        vocab_size: int | None = None,
        limits: CompilerLimits | None = None,
    ) -> None:
        if not eos:
            raise ValueError("constraints require an end-of-sequence token")
        self._limits = limits or CompilerLimits()
        self._tokenizer = tokenizer
        self._eos = tuple(eos)
        self._vocab_size = vocab_size or 0
        self._tools_cache: Tools | None = None
        self._cache: OrderedDict[str, tuple[CompiledGrammar, int]] = OrderedDict()
        self._cached_chars = self._bytes = 0
        # Two locks, so that a lookup in the cache does not wait for a vocabulary that
        # is being loaded.
        self._lock = Lock()
        self._tools_lock = Lock()

    @cached_property
    def vocabulary(self) -> GrammarVocabulary:
        return GrammarVocabulary.of(self._tokenizer, self._eos, self._vocab_size)

    @cached_property
    def endings(self) -> EndingSearch:
        from .ending_search import EndingSearch  # noqa: PLC0415 - numpy takes long to import

        return EndingSearch(self.vocabulary)

    @property
    def limits(self) -> CompilerLimits:
        return self._limits

    def compile(self, grammar: ConstraintGrammar) -> CompiledGrammar:
        """Compile a grammar. Blocks for an unbounded time: only for grammars that are
        known to be cheap.

        Raises:
            RequestError: the constraint is invalid, unsupported or unsatisfiable;
                `param` names it.
        """
        for (
            param,
            text,
        ) in grammar.parts:  # One by one: alternatives would hide an unsatisfiable part.
            self.compile_text(text, param)
        return self.compile_text(grammar.text, grammar.param)

    def find_compiled(self, text: str) -> CompiledGrammar | None:
        """Return the cached grammar of this text, if any."""
        with self._lock:
            cached = self._cache.get(text)
            if cached is None:
                return None
            self._cache.move_to_end(text)
            return cached[0]

    def compile_text(self, text: str, param: str | None, size: int = 0) -> CompiledGrammar:
        """Compile one grammar text; raises the same errors as `compile`.

        param: the parameter that an error names.
        size: its compiled size in bytes; 0 if unknown.
        """
        cached = self.find_compiled(text)
        if cached is not None:
            return cached
        limits = self._limits
        with self._tools_lock:
            # Loaded on first use: a large vocabulary takes a while, and many servers
            # never constrain a response.
            if self._tools_cache is None:
                self._tools_cache = make_tools(self.vocabulary, limits)
            tools = self._tools_cache
        try:
            compiled = compile_with(tools, text)
        except InvalidGrammar as rejected:
            raise RequestError(rejected.message, param=param) from rejected
        with self._lock:
            if text in self._cache:
                # Another thread has compiled it meanwhile.
                return self._cache[text][0]
            self._cached_chars += len(text)
            self._bytes += size
            self._cache[text] = compiled, size
            while (
                len(self._cache) > limits.max_cached_grammars
                or self._cached_chars > limits.max_cached_chars
                or self._bytes > limits.bytes
            ):
                evicted_text, (_, evicted_bytes) = self._cache.popitem(last=False)
                self._cached_chars -= len(evicted_text)
                self._bytes -= evicted_bytes
        return compiled


def make_tools(vocabulary: GrammarVocabulary, limits: CompilerLimits) -> Tools:
    import llguidance  # noqa: PLC0415

    parser_limits = llguidance.LLParserLimits(
        initial_lexer_fuel=limits.initial_fuel,
        step_lexer_fuel=limits.step_fuel,
        step_max_items=limits.step_items,
        max_items_in_row=limits.row_items,
        max_lexer_states=limits.lexer_states,
        max_grammar_size=limits.grammar_size,
        verbose_errors=False,
    )
    with convert_grammar_panics():
        tokenizer = llguidance.LLTokenizer(vocabulary, eos_token=vocabulary.eos)  # pyright: ignore[reportArgumentType]
    return tokenizer, parser_limits


def compile_with(tools: Tools, text: str) -> CompiledGrammar:
    """Compile a grammar in llguidance's syntax. Raises InvalidGrammar, also where
    llguidance panics.
    """
    import llguidance  # noqa: PLC0415

    tokenizer, limits = tools
    with convert_panics(_build_too_complex_error):
        pristine = llguidance.LLMatcher(tokenizer, text, log_level=0, limits=limits)
        _check_compiled(pristine)
        warnings = _describe_warnings(pristine.get_grammar_warnings())
        probe = (
            pristine.deep_copy()
        )  # A grammar that matches nothing is detected only when the first mask is computed.
        probe.compute_bitmask()
        _check_compiled(probe)
    return CompiledGrammar(text, pristine, warnings)


class InvalidGrammar(Exception):
    """llguidance rejects the grammar."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


def _build_too_complex_error() -> InvalidGrammar:
    return InvalidGrammar("The constraint is too large or too complex to be compiled.")


def _check_compiled(matcher: llguidance.LLMatcher) -> None:
    """Raise InvalidGrammar for a matcher that failed to compile.

    A panic counts as the grammar's fault: llguidance overflows on some grammars within
    its limits.
    """
    if not matcher.is_error():
        return
    if matcher.get_error().startswith("panic"):
        raise _build_too_complex_error()
    if matcher.get_error().startswith("NoExtension"):
        raise InvalidGrammar("Invalid constraint: no answer can satisfy it.")
    raise InvalidGrammar(f"Invalid or unsupported constraint: {find_reason(matcher)}")


def _describe_warnings(warnings: Sequence[str]) -> tuple[str, ...]:
    """Describe what llguidance does not enforce, one text for each keyword, from its
    warnings.
    """
    described: dict[str, None] = {}
    for warning in warnings:
        keys = warning.removeprefix("Unimplemented keys: ")
        if keys != warning:
            described |= {
                f"`{key}` is not supported": None for key in re.findall(r'"([^"]*)"', keys)
            }
        elif warning.startswith("Unknown format: "):
            described[f"format `{warning.removeprefix('Unknown format: ')[:64]}` is unknown"] = None
        elif warning.startswith("oneOf "):
            described["`oneOf` is treated as anyOf"] = None
        else:
            described[warning[:200]] = None
    return tuple(sorted(described))
