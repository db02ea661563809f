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
from .script import Call, Chunks, Fail, Part, Pieces, Refuse, Say, Think, Wait
from .spelling import borders, joined, spell

Step = Delta | ChoiceFinished | Wait | Fail


class Rules(Struct, frozen=True):
    """What the request asks of every choice.

    max_tokens, max_reasoning: None is no limit. stop: only visible text is searched. custom: names of free-form tools.
    """

    max_tokens: int | None = None
    max_reasoning: int | None = None
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    logprobs: int | None = None
    custom: frozenset[str] = frozenset()


class _Stop(Struct, frozen=True):
    """A stop string in a text. start, end: bytes of the text."""

    text: str
    start: int
    end: int


class Speech:
    """One choice being said. `steps` may be asked for once; completion and reasoning count the tokens so far."""

    def __init__(
        self, choice: int, rules: Rules, tokenizer: Tokenizer, chunks: Chunks, new_id: Callable[[], str]
    ) -> None:
        self._choice, self._rules, self._tokenizer = choice, rules, tokenizer
        self._chunks: Chunks = chunks
        self._new_id = new_id
        self._end: FinishReason | None = None
        self._stopped_by: str | None = None
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
        yield ChoiceFinished(self._choice, self._end or finish, self._stopped_by, self._loose)

    def _part(self, part: Part) -> Iterator[Step]:
        match part:
            case Say(pieces):
                stop = _first_stop(joined(pieces), self._rules.stop)
                return self._pour(pieces, lambda text, tokens: TextDelta(self._choice, text, tokens), stop=stop)
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
        *,
        stop: _Stop | None = None,
        most: int | None = None,
    ) -> Iterator[Step]:
        """Say a text up to a stop string. most: tokens after which the part ends and the next one begins."""
        spelling = spell(joined(pieces), self._tokenizer, self._rules.logprobs)
        wanted = len(spelling.tokens) if stop is None else spelling.tokens_until(stop.end)
        wanted = wanted if most is None else min(wanted, most)
        count = self._allowed(wanted)
        end = spelling.written(count)
        if count < wanted:
            self._end = FinishReason.LENGTH
        elif stop is not None:
            self._end, self._stopped_by = FinishReason.STOP, stop.text
            end = stop.end if self._rules.include_stop else stop.start
        self.completion += count
        carried = 0
        for cut in spelling.cuts(borders(spelling, pieces, self._chunks), count=count, end=end):
            carried += len(cut.tokens)
            tokens, self._loose = (*self._loose, *cut.tokens), ()
            yield event(cut.text, tokens)
        self._loose += spelling.tokens[carried:count]


def _first_stop(text: str, stops: tuple[str, ...]) -> _Stop | None:
    """The stop string that is complete first; of two that end together the longer."""
    found = [(at + len(stop), at, stop) for stop in stops if (at := text.find(stop)) >= 0]
    if not found:
        return None
    end, start, stop = min(found)
    return _Stop(stop, len(text[:start].encode()), len(text[:end].encode()))


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
