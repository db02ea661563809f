"""A scripted reply truncated to the request's limits. Pure: parts in, steps out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import zip_longest

from msgspec import Struct

from ...core.engine import Tokenizer
from ...core.events import (
    ChoiceFinished,
    Delta,
    FinishReason,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    Token,
    ToolCallDelta,
    ToolCallStart,
)
from ..script.script import CallTool, Chunks, Fail, Part, Pieces, Refuse, Say, Think, Wait, join_pieces
from .tokenized_text import find_boundaries, tokenize_text

Step = Delta | ChoiceFinished | Wait | Fail


class ChoiceLimits(Struct, frozen=True):
    """Limits of every choice.

    max_tokens, max_reasoning: tokens; None is no limit.
    custom_tools: names of custom tools.

    Stop strings are not handled here: the pipeline detects them, as for token engines.
    """

    max_tokens: int | None = None
    max_reasoning: int | None = None
    logprobs: int | None = None
    custom_tools: frozenset[str] = frozenset()


class ChoiceEvents:
    """The events of one choice. `generate_steps` is called once; the completion and reasoning counts are of tokens so
    far."""

    def __init__(
        self, choice: int, limits: ChoiceLimits, tokenizer: Tokenizer, chunks: Chunks, new_id: Callable[[], str]
    ) -> None:
        self._choice, self._limits, self._tokenizer = choice, limits, tokenizer
        self._chunks: Chunks = chunks
        self._new_id = new_id
        self._end: FinishReason | None = None
        self._pending_tokens: tuple[Token, ...] = ()
        """Tokens without text yet, such as half a character at the limit."""
        self.completion_tokens = self.reasoning_tokens = 0

    def generate_steps(self, parts: tuple[Part, ...], finish: FinishReason) -> Iterator[Step]:
        for part in parts:
            yield from self._generate_part(part)
            if isinstance(part, Fail):
                return
            if self._end is not None:
                break
        yield ChoiceFinished(self._choice, self._end or finish, tokens=self._pending_tokens)

    def _generate_part(self, part: Part) -> Iterator[Step]:
        match part:
            case Say(pieces):
                return self._generate_text(pieces, lambda text, tokens: TextDelta(self._choice, text, tokens))
            case Think(pieces):
                return self._generate_reasoning(pieces)
            case Refuse(pieces):
                return self._generate_text(pieces, lambda text, tokens: RefusalDelta(self._choice, text, tokens))
            case CallTool():
                return self._generate_call(part)
            case Wait() | Fail():
                return iter((part,))

    def _generate_reasoning(self, pieces: Pieces) -> Iterator[Step]:
        before = self.completion_tokens
        max_tokens = None if self._limits.max_reasoning is None else self._limits.max_reasoning - self.reasoning_tokens
        yield from self._generate_text(
            pieces, lambda text, tokens: ReasoningDelta(self._choice, text, tokens), max_tokens=max_tokens
        )
        self.reasoning_tokens += self.completion_tokens - before

    def _generate_call(self, call: CallTool) -> Iterator[Step]:
        name = tokenize_text(call.name, self._tokenizer, self._limits.logprobs).tokens
        allowed = self._limit_tokens(len(name))
        self.completion_tokens += allowed
        tokens, self._pending_tokens = (*self._pending_tokens, *name[:allowed]), ()
        if allowed < len(name):
            self._pending_tokens, self._end = tokens, FinishReason.LENGTH
            return
        custom = call.name in self._limits.custom_tools
        yield ToolCallStart(self._choice, call.id or self._new_id(), call.name, tokens, custom)
        yield from self._generate_text(call.arguments, lambda text, tokens: ToolCallDelta(self._choice, text, tokens))

    def _limit_tokens(self, requested: int) -> int:
        if self._limits.max_tokens is None:
            return requested
        return min(requested, self._limits.max_tokens - self.completion_tokens)

    def _generate_text(
        self,
        pieces: Pieces,
        build_event: Callable[[str, tuple[Token, ...]], Delta],
        max_tokens: int | None = None,
    ) -> Iterator[Step]:
        """Generate a text. max_tokens: after which the part ends and the next one begins."""
        tokenized = tokenize_text(join_pieces(pieces), self._tokenizer, self._limits.logprobs)
        requested = len(tokenized.tokens) if max_tokens is None else min(len(tokenized.tokens), max_tokens)
        count = self._limit_tokens(requested)
        if count < requested:
            self._end = FinishReason.LENGTH
        self.completion_tokens += count
        emitted = 0
        for cut in tokenized.split(find_boundaries(tokenized, pieces, self._chunks), count=count):
            emitted += len(cut.tokens)
            tokens, self._pending_tokens = (*self._pending_tokens, *cut.tokens), ()
            yield build_event(cut.text, tokens)
        # Tokens without text of their own (the last bytes of a cut-off character) go with the next part.
        self._pending_tokens += tokenized.tokens[emitted:count]


def interleave(choices: list[Iterator[Step]], pace: float) -> Iterator[Step]:
    """Interleave choices, one step of each in turn; the first error ends all.

    pace: seconds before each round with output. Delays of the choices overlap.
    """
    for turn in zip_longest(*choices):
        steps = [step for step in turn if step is not None and not isinstance(step, Wait)]
        # The choices are generated side by side, so their waits overlap.
        pause = max((step.seconds for step in turn if isinstance(step, Wait)), default=0.0)
        if any(not isinstance(step, ChoiceFinished | Fail) for step in steps):
            pause += pace
        if pause:
            yield Wait(pause)
        for step in steps:
            yield step
            if isinstance(step, Fail):
                return
