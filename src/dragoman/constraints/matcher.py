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
from .lark import Grammar, control_names

if TYPE_CHECKING:
    import llguidance


class CompilerLimits(Struct, frozen=True):
    """grammars, characters: of what is kept compiled. The others: see llguidance's LLParserLimits."""

    grammars: int = 1024
    characters: int = 16 * 1024 * 1024
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
            raise ValueError("constraints require an end-of-sequence token")
        self._limits = limits or CompilerLimits()
        self._vocabulary, self._eos = _Vocabulary(tokenizer, eos, vocab_size or 0), list(eos)
        self._made: tuple[llguidance.LLTokenizer, llguidance.LLParserLimits] | None = None
        self._kept: OrderedDict[str, Compiled] = OrderedDict()
        self._characters = 0
        self._lock, self._making = Lock(), Lock()

    def compile(self, grammar: Grammar) -> Compiled:
        """Blocking; to be called in a worker thread.

        Raises RequestError with the param of the constraint that is at fault: invalid, unsupported, unsatisfiable,
        or too much work.
        """
        for param, text in grammar.parts:  # each by itself: beside others it would not show that nothing satisfies it
            self._cached(text, param)
        return self._cached(grammar.text, grammar.parts[0][0] if grammar.parts else None)

    def _cached(self, text: str, param: str | None) -> Compiled:
        with self._lock:
            known = self._kept.get(text)
            if known is not None:
                self._kept.move_to_end(text)
                return known
        try:
            compiled = self._compiled(text)
        except _Rejected as rejected:
            raise RequestError(rejected.message, param=param) from rejected
        self._keep(text, compiled)
        return compiled

    def _keep(self, text: str, compiled: Compiled) -> None:
        with self._lock:
            if text not in self._kept:
                self._characters += len(text)
            self._kept[text] = compiled
            while len(self._kept) > self._limits.grammars or self._characters > self._limits.characters:
                dropped, _ = self._kept.popitem(last=False)
                self._characters -= len(dropped)

    def _tools(self) -> tuple[llguidance.LLTokenizer, llguidance.LLParserLimits]:
        """Made for the first grammar: a large vocabulary takes a while, and many servers never constrain anything."""
        import llguidance  # noqa: PLC0415

        with self._making:
            if self._made is None:
                limits = llguidance.LLParserLimits(
                    initial_lexer_fuel=self._limits.initial_fuel,
                    step_lexer_fuel=self._limits.step_fuel,
                    step_max_items=self._limits.step_items,
                    max_lexer_states=self._limits.lexer_states,
                    max_grammar_size=self._limits.grammar_size,
                    verbose_errors=False,
                )
                tokenizer = llguidance.LLTokenizer(self._vocabulary, eos_token=self._eos)  # pyright: ignore[reportArgumentType]
                self._made = tokenizer, limits
            return self._made

    def _compiled(self, text: str) -> Compiled:
        import llguidance  # noqa: PLC0415

        tokenizer, limits = self._tools()
        with _no_panic():
            pristine = llguidance.LLMatcher(tokenizer, text, log_level=0, limits=limits)
            _check(pristine)
            warnings = tuple(pristine.get_grammar_warnings())
            first = pristine.deep_copy()  # that nothing at all matches shows in the first mask only
            first.compute_bitmask()
            _check(first)
        return Compiled(text, pristine, warnings)


class Compiled:
    """A grammar ready for use. text: itself, as llguidance reads it. warnings: what of it is not enforced."""

    def __init__(self, text: str, pristine: llguidance.LLMatcher, warnings: tuple[str, ...]) -> None:
        self.text, self.warnings = text, warnings
        self._pristine, self._lock = pristine, Lock()

    def matcher(self) -> Matcher:
        """The state of a new answer. Takes microseconds."""
        with self._lock, _no_panic():
            return _Matcher(self._pristine.deep_copy())


class _Matcher:
    """See `core.engine.Matcher`. `mask` raises RequestError where the grammar leads nowhere or grows too complex."""

    def __init__(self, inner: llguidance.LLMatcher) -> None:
        self._inner = inner

    def mask(self) -> bytes:
        with _no_panic():
            mask = self._inner.compute_bitmask()
            if self._inner.is_error():  # the mask would let the answer end here, as if it were whole
                _check_panic(self._inner)
                raise RequestError(f"The constraint cannot be satisfied: {_reason(self._inner)}")
            return mask

    def allows(self, token: int) -> bool:
        with _no_panic():
            return self._inner.validate_tokens([token]) == 1

    def advance(self, token: int) -> bool:
        with _no_panic():
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
        self.special_token_ids = sorted({special[name] for name in control_names(special)} | set(eos))
        self.tokens = [tokenizer.token_bytes(id) for id in range(size)]
        self._encode: Callable[[str], list[int]] = lambda text: tokenizer.encode(text, special=False)

    def __call__(self, text: str | bytes) -> list[int]:
        return self._encode(text if isinstance(text, str) else text.decode())


class _Rejected(Exception):
    """llguidance does not take the grammar."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


def _check(matcher: llguidance.LLMatcher) -> None:
    if not matcher.is_error():
        return
    _check_panic(matcher)
    if matcher.get_error().startswith("NoExtension"):
        raise _Rejected("Invalid constraint: no answer can satisfy it.")
    raise _Rejected(f"Invalid or unsupported constraint: {_reason(matcher)}")


def _check_panic(matcher: llguidance.LLMatcher) -> None:
    if matcher.get_error().startswith("panic"):
        raise EngineError("The grammar engine failed.")


def _reason(matcher: llguidance.LLMatcher) -> str:
    """The message without positions in a text that the client has never seen."""
    lines = matcher.get_error().partition("\n<")[0].splitlines()
    kept = [line for line in lines if " | " not in line and line.strip(" ^")]
    text = " ".join(line.strip() for line in kept)
    place, colon, rest = text.partition("): ")
    if colon and (place.startswith("at ") or place[:1].isdigit()):
        text = rest
    return text.removeprefix("failed to compile JSON schema: ")[:1000]


@contextmanager
def _no_panic() -> Generator[None]:
    """A panic in Rust is a BaseException; it must not end the process."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise EngineError("The grammar engine failed.") from error
