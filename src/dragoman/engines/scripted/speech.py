"""A reply as the request allows it: cut where its limits end it. Pure: parts in, steps out; knows no clock."""

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
from ..script.script import Call, Chunks, Fail, Part, Pieces, Refuse, Say, Think, Wait, joined
from .spelling import borders, spell

Step = Delta | ChoiceFinished | Wait | Fail


class Rules(Struct, frozen=True):
    """What the request asks of every choice.

    max_tokens, max_reasoning: None is no limit. custom: names of free-form tools. Stop strings are not said here:
    the pipeline finds them, as it does for engines of tokens.
    """

    max_tokens: int | None = None
    max_reasoning: int | None = None
    logprobs: int | None = None
    custom: frozenset[str] = frozenset()


class Speech:
    """One choice being said. `steps` may be asked for once; completion and reasoning count the tokens so far."""

    def __init__(
        self, choice: int, rules: Rules, tokenizer: Tokenizer, chunks: Chunks, new_id: Callable[[], str]
    ) -> None:
        self._choice, self._rules, self._tokenizer = choice, rules, tokenizer
        self._chunks: Chunks = chunks
        self._new_id = new_id
        self._end: FinishReason | None = None
        self._loose: tuple[Token, ...] = ()
        """Tokens that have been said and released no text yet, such as half a character at the limit."""
        self.completion = self.reasoning = 0

    def steps(self, parts: tuple[Part, ...], finish: FinishReason) -> Iterator[Step]:
        for part in parts:
            yield from self._part(part)
            if isinstance(part, Fail):
                return
            if self._end is not None:
                break
        yield ChoiceFinished(self._choice, self._end or finish, tokens=self._loose)

    def _part(self, part: Part) -> Iterator[Step]:
        match part:
            case Say(pieces):
                return self._pour(pieces, lambda text, tokens: TextDelta(self._choice, text, tokens))
            case Think(pieces):
                return self._think(pieces)
            case Refuse(pieces):
                return self._pour(pieces, lambda text, tokens: RefusalDelta(self._choice, text, tokens))
            case Call():
                return self._call(part)
            case Wait() | Fail():
                return iter((part,))

    def _think(self, pieces: Pieces) -> Iterator[Step]:
        before = self.completion
        most = None if self._rules.max_reasoning is None else self._rules.max_reasoning - self.reasoning
        yield from self._pour(pieces, lambda text, tokens: ReasoningDelta(self._choice, text, tokens), most=most)
        self.reasoning += self.completion - before

    def _call(self, call: Call) -> Iterator[Step]:
        name = spell(call.name, self._tokenizer, self._rules.logprobs).tokens
        allowed = self._allowed(len(name))
        self.completion += allowed
        tokens, self._loose = (*self._loose, *name[:allowed]), ()
        if allowed < len(name):
            self._loose, self._end = tokens, FinishReason.LENGTH
            return
        custom = call.name in self._rules.custom
        yield ToolCallStart(self._choice, call.id or self._new_id(), call.name, tokens, custom)
        yield from self._pour(call.arguments, lambda text, tokens: ToolCallDelta(self._choice, text, tokens))

    def _allowed(self, wanted: int) -> int:
        if self._rules.max_tokens is None:
            return wanted
        return min(wanted, self._rules.max_tokens - self.completion)

    def _pour(
        self,
        pieces: Pieces,
        event: Callable[[str, tuple[Token, ...]], Delta],
        most: int | None = None,
    ) -> Iterator[Step]:
        """Say a text. most: tokens after which the part ends and the next one begins."""
        spelling = spell(joined(pieces), self._tokenizer, self._rules.logprobs)
        wanted = len(spelling.tokens) if most is None else min(len(spelling.tokens), most)
        count = self._allowed(wanted)
        if count < wanted:
            self._end = FinishReason.LENGTH
        self.completion += count
        carried = 0
        for cut in spelling.cuts(borders(spelling, pieces, self._chunks), count=count):
            carried += len(cut.tokens)
            tokens, self._loose = (*self._loose, *cut.tokens), ()
            yield event(cut.text, tokens)
        self._loose += spelling.tokens[carried:count]


def together(choices: list[Iterator[Step]], pace: float) -> Iterator[Step]:
    """All choices at once, a step of each in turn; the first error ends all.

    pace: seconds before each turn that says something. What the choices wait, they wait together.
    """
    for turn in zip_longest(*choices):
        steps = [step for step in turn if step is not None and not isinstance(step, Wait)]
        pause = max((step.seconds for step in turn if isinstance(step, Wait)), default=0.0)
        if any(not isinstance(step, ChoiceFinished | Fail) for step in steps):
            pause += pace
        if pause:
            yield Wait(pause)
        for step in steps:
            yield step
            if isinstance(step, Fail):
                return
