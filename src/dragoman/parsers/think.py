"""Reasoning between two marks, `<think>...</think>`: DeepSeek-R1, Qwen3, and most open models since."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cache

from ..core.events import Event, FinishReason, ReasoningDelta, TextDelta
from ..core.syntax import ParseContext, Parser, ThoughtSyntax
from .base import Found, Lead, TextParser, chain
from .marks import Marks


class ThinkFormat:
    """begin, end: the marks. after: what the template writes behind the end mark. dropped: as much of this as the model
    writes there is not part of the answer's text. Nor is one newline behind the begin mark and one before the end mark.

    unopened: the model thinks even if neither the template nor the model itself has written the begin mark, so that
    everything up to the end mark is reasoning (the first DeepSeek-R1). variants: other spellings of the marks, a begin
    and an end each. answer: tags around the answer's text behind the thought, which are no part of it.
    added: texts of the vocabulary's added tokens; a mark among them counts only where it is that one token.
    """

    def __init__(
        self,
        begin: str = "<think>",
        end: str = "</think>",
        after: str = "\n\n",
        *,
        dropped: str | None = None,
        unopened: bool = False,
        variants: Sequence[tuple[str, str]] = (),
        answer: tuple[str, str] | None = None,
        added: Collection[str] = (),
    ) -> None:
        self._thought = ThoughtSyntax(begin, end, after, answer[0] if answer else "")
        self._begins = (begin, *(other for other, _ in variants))
        self._answer = answer
        self._dropped = after if dropped is None else dropped
        self._unopened = unopened
        self._added = frozenset(added)
        self._single = frozenset({begin, end}) & self._added
        self._end_marks = (end, *(other for _, other in variants))
        self._ends = cache(self._compile_ends)

    @property
    def thought(self) -> ThoughtSyntax:
        return self._thought

    @property
    def markers(self) -> tuple[str, ...]:
        return self._thought.begin, self._thought.end, *(self._answer or ())

    def _compile_ends(self, calls: tuple[str, ...]) -> Marks:
        plain = (one for one in calls if one in self._added or one.startswith(("<|", "<\uff5c")))
        ends = (*self._end_marks, *plain)
        return Marks(list(dict.fromkeys([*ends, *("\n" + one for one in (*ends, *calls))])))

    def parser(self, context: ParseContext, calls: Sequence[str] = ()) -> Parser:
        """The prompt's tail decides where to begin: in a thought that it leaves open, behind one that it has closed,
        or before one that may come.

        calls: marks that begin a call. One of them ends the thought too, since models forget to end it (as in vLLM).
        A thought may also speak of a mark: where the vocabulary is known it must be one token of it, else begin a line
        or be one that nobody writes in running text.
        """
        known = tuple(mark for mark in calls if mark in self._added or not self._added)
        parser = ThinkParser(self._begins, self._dropped, self._ends(known), self._single | set(known), known)
        tail, begin = context.prompt_tail, self._thought.begin
        opened, closed = tail.rfind(begin), tail.rfind(self._thought.end)
        if closed > opened:
            parser.skip()
        elif opened >= 0:
            parser.think(bare=opened + len(begin) == len(tail))
        elif self._unopened:
            parser.think(bare=True)
        return parser if self._answer is None else chain((parser, TaggedAnswer(*self._answer)))


class ThinkParser(TextParser):
    """Before the thought, in it, behind it, and then nothing but text."""

    def __init__(
        self,
        begins: Sequence[str],
        dropped: str,
        ends: Marks,
        single: Collection[str],
        calls: Collection[str] = (),
    ) -> None:
        super().__init__(single)
        self._dropped = dropped
        self._calls = calls
        self._ends = ends
        self._state: Callable[[ThinkParser, str, int], int] = ThinkParser._before
        self._lead = Lead(begins)
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
        if found is Found.MARK and self._buffer.is_mark(self._lead.mark, len(text) - at):
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
        word = self._ends.text[self._search].removeprefix("\n")
        if self._buffer.is_mark(word, len(text) - end):
            mark = self._ends.ending[self._search]
            if word in self._calls:
                self._release(ReasoningDelta, self._read(text, end) - mark)
                self._drop(mark - len(word))
                self._state = ThinkParser._answer
                return end - len(word)
            self._release(ReasoningDelta, self._read(text, end) - mark)
            self._drop(mark)
            self._state = ThinkParser._behind
        return end

    def _behind(self, text: str, at: int) -> int:
        after = self._dropped
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


class TaggedAnswer(TextParser):
    """Takes the tags off an answer that begins with one: `<answer>Yes.</answer>` is `Yes.`"""

    def __init__(self, begin: str, end: str) -> None:
        super().__init__()
        self._lead = Lead((begin,))
        self._ends = Marks([end, "\n" + end])
        self._search = 0
        self._bare = False
        self._state: Callable[[TaggedAnswer, str, int], int] = TaggedAnswer._before

    def _quick(self, event: TextDelta) -> Event | None:
        if self._state is TaggedAnswer._plain:
            return event
        inside = self._state is TaggedAnswer._inside and not self._search and not self._bare
        return event if inside and not self._ends.occurs(event.text) else None

    def _step(self, text: str, at: int) -> int:
        return self._state(self, text, at)

    def _before(self, text: str, at: int) -> int:
        at, found = self._lead.read(text, at)
        match found:
            case Found.MORE:
                return at
            case Found.MARK:
                self._drop(self._read(text, at))
                self._bare, self._state = True, TaggedAnswer._inside
                return at
            case Found.OTHER:
                self._state = TaggedAnswer._plain
                return self._again(text, at)

    def _inside(self, text: str, at: int) -> int:
        if self._bare:
            self._bare = False
            if text[at] == "\n":
                self._drop(1)
                return at + 1
        end, self._search = self._ends.search(text, at, self._search)
        if end < 0:
            self._release(TextDelta, len(self._buffer) - self._ends.held[self._search])
            return len(text)
        mark = self._ends.ending[self._search]
        self._release(TextDelta, self._read(text, end) - mark)
        self._drop(mark)
        self._state = TaggedAnswer._behind
        return end

    def _behind(self, text: str, at: int) -> int:
        """White space at the very end is the template's."""
        if not text[at:].isspace():
            self._state = TaggedAnswer._plain
            return self._again(text, at)
        return len(text)

    def _plain(self, text: str, at: int) -> int:  # noqa: ARG002
        self._release(TextDelta, len(self._buffer))
        return len(text)

    def _finish(self, reason: FinishReason | None) -> None:  # noqa: ARG002
        if self._state is TaggedAnswer._behind:
            self._drop(len(self._buffer))
        else:
            self._release(TextDelta, len(self._buffer))

    def _interrupt(self) -> None:
        if self._buffer:
            self._finish(None)
            self._state = TaggedAnswer._plain


class KeptThinkFormat(ThinkFormat):
    """Reasoning stays in the text, for clients that send it back as it came; only the begin mark, which the template
    wrote, is put before it."""

    def parser(self, context: ParseContext, calls: Sequence[str] = ()) -> Parser:  # noqa: ARG002
        tail, thought = context.prompt_tail, self.thought
        return KeptThink(thought.begin if tail.rfind(thought.begin) > tail.rfind(thought.end) else "")


class KeptThink:
    def __init__(self, begin: str) -> None:
        self._begin = begin

    def feed(self, event: Event) -> list[Event]:
        if self._begin and isinstance(event, TextDelta) and event.text:
            event = TextDelta(event.choice, self._begin + event.text, event.tokens)
            self._begin = ""
        return [event]
