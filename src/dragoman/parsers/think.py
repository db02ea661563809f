"""Reasoning between two marks, `<think>...</think>`: DeepSeek-R1, Qwen3, and most open models since."""

from __future__ import annotations

from collections.abc import Callable, Collection

from ..core.events import Event, FinishReason, ReasoningDelta, TextDelta
from ..core.syntax import ParseContext, Parser, ThoughtSyntax
from .base import Found, Lead, TextParser
from .marks import Marks


class ThinkFormat:
    """begin, end: the marks. after: what the template writes behind the end mark; as much of it as the model repeats
    is not part of the answer's text. Nor is one newline behind the begin mark and one before the end mark.

    unopened: the model thinks even if neither the template nor the model itself has written the begin mark, so that
    everything up to the end mark is reasoning (the first DeepSeek-R1). added: texts of the vocabulary's added tokens;
    a mark among them counts only where it is that one token.
    """

    def __init__(
        self,
        begin: str = "<think>",
        end: str = "</think>",
        after: str = "\n\n",
        *,
        unopened: bool = False,
        added: Collection[str] = (),
    ) -> None:
        self._thought = ThoughtSyntax(begin, end, after)
        self._unopened = unopened
        self._single = frozenset({begin, end} & set(added))
        self._ends = Marks([end, "\n" + end])

    @property
    def thought(self) -> ThoughtSyntax:
        return self._thought

    def parser(self, context: ParseContext) -> Parser:
        """The prompt's tail decides where to begin: in a thought that it leaves open, behind one that it has closed,
        or before one that may come."""
        parser = ThinkParser(self._thought, self._ends, self._single)
        tail, begin = context.prompt_tail, self._thought.begin
        opened, closed = tail.rfind(begin), tail.rfind(self._thought.end)
        if closed > opened:
            parser.skip()
        elif opened >= 0:
            parser.think(bare=opened + len(begin) == len(tail))
        elif self._unopened:
            parser.think(bare=True)
        return parser


class ThinkParser(TextParser):
    """Before the thought, in it, behind it (where `after` is dropped), and then nothing but text."""

    def __init__(self, thought: ThoughtSyntax, ends: Marks, single: Collection[str]) -> None:
        super().__init__(single)
        self._thought = thought
        self._ends = ends
        self._state: Callable[[ThinkParser, str, int], int] = ThinkParser._before
        self._lead = Lead(thought.begin)
        self._opened = False
        self._bare = False  # the begin mark came last, so that a newline now belongs to it
        self._search = 0
        self._after = 0

    def skip(self) -> None:
        """The prompt has already ended the thought."""
        self._state = ThinkParser._answer

    def think(self, *, bare: bool) -> None:
        """The thought is open, although the model may write its begin mark once more."""
        self._opened = True
        self._bare = bare

    def _quick(self, event: TextDelta) -> Event | None:
        if self._state is ThinkParser._answer:
            return event
        if (
            self._state is ThinkParser._inside
            and not self._bare
            and not self._search
            and not self._ends.occurs(event.text)
        ):
            return ReasoningDelta(event.choice, event.text, event.tokens)
        return None

    def _step(self, text: str, at: int) -> int:
        return self._state(self, text, at)

    def _before(self, text: str, at: int) -> int:
        at, found = self._lead.read(text, at)
        if found is Found.MORE:
            return at
        if found is Found.MARK and self._buffer.is_mark(self._thought.begin, len(text) - at):
            self._drop(self._read(text, at))
            self._bare = True
            self._state = ThinkParser._inside
            return at
        self._state = ThinkParser._inside if self._opened else ThinkParser._answer
        return self._again(text, at)

    def _inside(self, text: str, at: int) -> int:
        if self._bare:
            self._bare = False
            if text[at] == "\n":
                self._drop(1)
                return at + 1
        end, self._search = self._ends.search(text, at, self._search)
        if end < 0:
            self._release(ReasoningDelta, len(self._buffer) - self._ends.held[self._search])
            return len(text)
        if self._buffer.is_mark(self._thought.end, len(text) - end):
            mark = self._ends.ending[self._search]
            self._release(ReasoningDelta, self._read(text, end) - mark)
            self._drop(mark)
            self._state = ThinkParser._behind
        return end

    def _behind(self, text: str, at: int) -> int:
        after = self._thought.after
        while self._after < len(after) and at < len(text) and text[at] == after[self._after]:
            self._drop(1)
            self._after += 1
            at += 1
        if at < len(text) or self._after == len(after):
            self._state = ThinkParser._answer
        return at

    def _answer(self, text: str, at: int) -> int:  # noqa: ARG002
        self._release(TextDelta, len(self._buffer))
        return len(text)

    def _finish(self, reason: FinishReason | None) -> None:  # noqa: ARG002
        inside = self._opened or self._state is ThinkParser._inside
        self._release(ReasoningDelta if inside else TextDelta, len(self._buffer))

    def _interrupt(self) -> None:
        if self._buffer:
            self._finish(None)
            self._state = ThinkParser._answer
