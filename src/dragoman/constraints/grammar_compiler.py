"""Grammars made ready for a vocabulary, and the state of an answer that follows one. The only user of llguidance.

It runs no clock: the limits below bound the work of every step, and that of compiling, by counting it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING

from msgspec import Struct

from ..core.engine import Matcher, Tokenizer
from ..core.errors import EngineError, RequestError
from .lark import ConstraintGrammar, find_control_names

if TYPE_CHECKING:
    import llguidance


class CompilerLimits(Struct, frozen=True):
    """grammars, characters: of what is kept compiled. The others: see llguidance's LLParserLimits."""

    max_cached_grammars: int = 1024
    max_cached_chars: int = 16 * 1024 * 1024
    lexer_states: int = 50_000
    grammar_size: int = 200_000
    initial_fuel: int = 1_000_000
    step_fuel: int = 200_000
    step_items: int = 50_000


class Compiler:
    """Compiles grammars for one vocabulary and keeps them. Safe to use from several threads.

    eos: ids that end an answer, at least one. vocab_size: of the model, where it is padded beyond the tokenizer's.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        eos: Sequence[int],
        vocab_size: int | None = None,
        limits: CompilerLimits | None = None,
    ) -> None:
        if not eos:
            raise ValueError("constraints need a token that ends an answer")
        self._limits = limits or CompilerLimits()
        self._vocabulary, self._eos = _Vocabulary(tokenizer, eos, vocab_size or 0), list(eos)
        self._tools_cache: tuple[llguidance.LLTokenizer, llguidance.LLParserLimits] | None = None
        self._cache: OrderedDict[str, CompiledGrammar] = OrderedDict()
        self._cached_chars = 0
        self._lock, self._tools_lock = Lock(), Lock()

    def compile(self, grammar: ConstraintGrammar) -> CompiledGrammar:
        """Blocking; to be called in a worker thread.

        Raises RequestError with the param of the constraint that is at fault: invalid, unsupported, unsatisfiable,
        or too much work.
        """
        for param, text in grammar.parts:  # each by itself: beside others it would not show that nothing satisfies it
            self._find_or_compile(text, param)
        return self._find_or_compile(grammar.text, grammar.parts[0][0] if grammar.parts else None)

    def _find_or_compile(self, text: str, param: str | None) -> CompiledGrammar:
        with self._lock:
            cached = self._cache.get(text)
            if cached is not None:
                self._cache.move_to_end(text)
                return cached
        try:
            compiled = self._compile_text(text)
        except _Rejected as rejected:
            raise RequestError(rejected.message, param=param) from rejected
        self._store(text, compiled)
        return compiled

    def _store(self, text: str, compiled: CompiledGrammar) -> None:
        with self._lock:
            if text not in self._cache:
                self._cached_chars += len(text)
            self._cache[text] = compiled
            while (
                len(self._cache) > self._limits.max_cached_grammars
                or self._cached_chars > self._limits.max_cached_chars
            ):
                evicted, _ = self._cache.popitem(last=False)
                self._cached_chars -= len(evicted)

    def _load_tools(self) -> tuple[llguidance.LLTokenizer, llguidance.LLParserLimits]:
        """Made for the first grammar: a large vocabulary takes a while, and many servers never constrain anything."""
        import llguidance  # noqa: PLC0415

        with self._tools_lock:
            if self._tools_cache is None:
                limits = llguidance.LLParserLimits(
                    initial_lexer_fuel=self._limits.initial_fuel,
                    step_lexer_fuel=self._limits.step_fuel,
                    step_max_items=self._limits.step_items,
                    max_lexer_states=self._limits.lexer_states,
                    max_grammar_size=self._limits.grammar_size,
                    verbose_errors=False,
                )
                tokenizer = llguidance.LLTokenizer(self._vocabulary, eos_token=self._eos)  # pyright: ignore[reportArgumentType]
                self._tools_cache = tokenizer, limits
            return self._tools_cache

    def _compile_text(self, text: str) -> CompiledGrammar:
        import llguidance  # noqa: PLC0415

        tokenizer, limits = self._load_tools()
        with _convert_panics():
            pristine = llguidance.LLMatcher(tokenizer, text, log_level=0, limits=limits)
            _check_matcher(pristine)
            warnings = tuple(pristine.get_grammar_warnings())
            probe = pristine.deep_copy()  # that nothing at all matches shows in the first mask only
            probe.compute_bitmask()
            _check_matcher(probe)
        return CompiledGrammar(text, pristine, warnings)


class CompiledGrammar:
    """A grammar ready for use. text: itself, as llguidance reads it. warnings: what of it is not enforced."""

    def __init__(self, text: str, initial_matcher: llguidance.LLMatcher, warnings: tuple[str, ...]) -> None:
        self.text, self.warnings = text, warnings
        self._initial_matcher, self._lock = initial_matcher, Lock()

    def build_matcher(self) -> Matcher:
        """The state of a new answer. Takes microseconds."""
        with self._lock, _convert_panics():
            return _Matcher(self._initial_matcher.deep_copy())


class _Matcher:
    """See `core.engine.Matcher`. `mask` raises RequestError where the grammar leads nowhere or grows too complex."""

    def __init__(self, inner: llguidance.LLMatcher) -> None:
        self._inner = inner

    def mask(self) -> bytes:
        with _convert_panics():
            mask = self._inner.compute_bitmask()
            if self._inner.is_error():  # the mask would let the answer end here, as if it were whole
                _check_panic(self._inner)
                raise RequestError(f"The constraint cannot be followed any further: {_find_reason(self._inner)}")
            return mask

    def allows(self, token: int) -> bool:
        with _convert_panics():
            return self._inner.validate_tokens([token]) == 1

    def advance(self, token: int) -> bool:
        with _convert_panics():
            return self._inner.consume_token(token)

    @property
    def finished(self) -> bool:
        return self._inner.is_stopped() and not self._inner.is_error()


class _Vocabulary:
    """A tokenizer as llguidance reads one (see its TokenizerWrapper).

    Control tokens are special to it: no text in a grammar matches one.
    """

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, eos: Sequence[int], vocab_size: int) -> None:
        size = max(tokenizer.vocab_size, vocab_size, *(id + 1 for id in eos))
        special = tokenizer.special_tokens
        self.eos_token_id = eos[0]
        self.special_token_ids = sorted({special[name] for name in find_control_names(special)} | set(eos))
        self.tokens = [tokenizer.token_bytes(id) for id in range(size)]
        self._encode: Callable[[str], list[int]] = lambda text: tokenizer.encode(text, special=False)

    def __call__(self, text: str | bytes) -> list[int]:
        return self._encode(text if isinstance(text, str) else text.decode())


class _Rejected(Exception):
    """llguidance does not take the grammar."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


def _check_matcher(matcher: llguidance.LLMatcher) -> None:
    if not matcher.is_error():
        return
    _check_panic(matcher)
    if matcher.get_error().startswith("NoExtension"):
        raise _Rejected("Invalid constraint: no answer can satisfy it.")
    raise _Rejected(f"Invalid or unsupported constraint: {_find_reason(matcher)}")


def _check_panic(matcher: llguidance.LLMatcher) -> None:
    if matcher.get_error().startswith("panic"):
        raise EngineError("The grammar engine failed.")


def _find_reason(matcher: llguidance.LLMatcher) -> str:
    """The message without positions in a text that the client has never seen."""
    lines = matcher.get_error().partition("\n<")[0].splitlines()
    relevant_lines = [line for line in lines if " | " not in line and line.strip(" ^")]
    text = " ".join(line.strip() for line in relevant_lines)
    location, colon, message = text.partition("): ")
    if colon and (location.startswith("at ") or location[:1].isdigit()):
        text = message
    return text.removeprefix("failed to compile JSON schema: ")[:1000]


@contextmanager
def _convert_panics() -> Generator[None]:
    """A panic in Rust is a BaseException; it must not end the process."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise EngineError("The grammar engine failed.") from error
