"""The format of reasoning between two markers, `<think>...</think>`: DeepSeek-R1,
Qwen3, and most open models since.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Sequence
from functools import cache

from msgspec import Struct

from ..core.events import Event, FinishReason, ReasoningDelta, TextDelta
from ..core.syntax import ParseContext, Parser, ReasoningSyntax
from .aho_corasick import AhoCorasick
from .parser_chain import chain_parsers
from .prefix_matcher import PrefixMatcher, PrefixResult
from .text_buffer import MarkerTokens
from .text_parser import TextParser

_MIN_ANCHOR_CHARS = 4


class ReasoningEnds(Struct, frozen=True):
    """What may end reasoning.

    patterns: the end markers and the markers of calls, also after a newline.
    calls: the markers that begin a call.
    inline_calls: those that count in the middle of a line.
    markers: the markers of all of these that only their tokens make valid.
    """

    patterns: AhoCorasick
    calls: tuple[str, ...]
    inline_calls: frozenset[str]
    markers: MarkerTokens


class ThinkFormat:
    """The format of reasoning between markers.

    One newline after the begin marker and one before the end marker are stripped.

    begin_marker, end_marker: the markers.
    template_suffix: the text that the template writes after the end marker.
    stripped_suffix: stripped after the end marker, as far as the model writes it; None
        means `template_suffix`.
    starts_implicitly: reasoning begins without a begin marker, so everything up to the
    end marker is reasoning (the first DeepSeek-R1).
    marker_variants: other spellings of the markers, pairs of begin and end.
    answer_tags: tags around the answer after the reasoning, which are stripped.
    message_end: text that the model writes after the answer and its calls, which is
        stripped too.
    added_tokens: texts of the vocabulary's added tokens; a marker among them counts
        only as that single token.
    """

    def __init__(
        self,
        begin_marker: str = "<think>",
        end_marker: str = "</think>",
        template_suffix: str = "\n\n",
        *,
        stripped_suffix: str | None = None,
        starts_implicitly: bool = False,
        marker_variants: Sequence[tuple[str, str]] = (),
        answer_tags: tuple[str, str] | None = None,
        message_end: str = "",
        added_tokens: Collection[str] = (),
    ) -> None:
        self._syntax = ReasoningSyntax(
            begin_marker, end_marker, template_suffix, answer_tags[0] if answer_tags else ""
        )
        self._begin_markers = (begin_marker, *(variant for variant, _ in marker_variants))
        self._begin_letters = frozenset(marker[0] for marker in self._begin_markers)
        self._answer_tags = answer_tags
        self._message_end = message_end
        self._stripped_suffix = template_suffix if stripped_suffix is None else stripped_suffix
        self._starts_implicitly = starts_implicitly
        self._added = frozenset(added_tokens)
        self._end_marks = (end_marker, *(variant for _, variant in marker_variants))
        self._single_tokens = frozenset((*self._begin_markers, *self._end_marks)) & self._added
        self._end_patterns = cache(self._compile_ends)

    @property
    def syntax(self) -> ReasoningSyntax:
        return self._syntax

    @property
    def markers(self) -> tuple[str, ...]:
        closing = (self._message_end,) if self._message_end else ()
        return self._syntax.begin, self._syntax.end, *(self._answer_tags or ()), *closing

    def _compile_ends(self, calls: tuple[str, ...]) -> ReasoningEnds:
        anchors = {
            marker: found
            for marker in calls
            if marker not in self._added and (found := _find_anchor(marker, self._added))
        }
        # `<|` and its full-width form (DeepSeek) do not occur in prose; `<tool_call>`
        # may, when a model reasons about its format.
        inline_calls = frozenset(
            marker
            for marker in calls
            if marker in self._added or marker in anchors or marker.startswith(("<|", "<\uff5c"))
        )
        ends = (*self._end_marks, *calls)
        patterns = AhoCorasick(list(dict.fromkeys([*ends, *("\n" + marker for marker in ends)])))
        single_tokens = self._single_tokens | (frozenset(calls) & self._added)
        return ReasoningEnds(patterns, calls, inline_calls, MarkerTokens(single_tokens, anchors))

    def create_parser(
        self,
        context: ParseContext,
        calls: Sequence[str] = (),
        list_call_heads: Callable[[str], Sequence[str]] = lambda _: (),
    ) -> Parser:
        """Create a parser. The prompt's tail decides its initial state: inside
        reasoning, after it, or before it.

        calls: markers that begin a call. They end the reasoning too, as in vLLM, since
        models forget to end it. As reasoning may also mention a marker, it must be or
        contain a token of the vocabulary, begin a line, be a text that is unlikely in
        prose, or be followed by what only a call has. A marker that is a token of the
        vocabulary must be that token.
        list_call_heads: returns the texts after a marker that only a call has.
        """
        parser = ThinkParser(
            self._begin_markers,
            self._begin_letters,
            self._stripped_suffix,
            self._end_patterns(tuple(calls)),
            list_call_heads,
        )
        # Depending on the request's options, templates of hybrid models write `<think>`
        # or an empty `<think></think>` into the prompt.
        tail = context.prompt_tail
        begin = self._syntax.begin
        opened_pos = tail.rfind(begin)
        closed_pos = tail.rfind(self._syntax.end)
        if closed_pos > opened_pos:
            parser.begin_answer()
        elif opened_pos >= 0:
            written = tail[opened_pos + len(begin) :]
            parser.begin_reasoning(may_skip_newline=not written, has_text=bool(written.strip()))
        elif self._starts_implicitly:
            parser.begin_reasoning(may_skip_newline=True)
        if self._answer_tags is None:
            return parser
        is_open = tail.endswith(self._answer_tags[0])
        return chain_parsers(
            (parser, AnswerTagParser(*self._answer_tags, self._message_end, is_open=is_open))
        )


def _find_anchor(marker: str, added_tokens: Collection[str]) -> tuple[str, int] | None:
    """Return the longest token of the vocabulary in a marker, and the number of
    characters after it. Short tokens and words may be part of any text.
    """
    tokens = [
        token
        for token in added_tokens
        if token in marker and len(token) >= _MIN_ANCHOR_CHARS and not token.isalnum()
    ]
    if not tokens:
        return None
    token = max(tokens, key=len)
    return token, len(marker) - marker.rindex(token) - len(token)


class ThinkParser(TextParser):
    """Parses reasoning between markers. States: before the reasoning, in it, in the
    suffix after it, in the answer.

    begin_letters: the first characters of the begin markers.
    """

    def __init__(
        self,
        begin_markers: Sequence[str],
        begin_letters: Container[str],
        stripped_suffix: str,
        ends: ReasoningEnds,
        list_call_heads: Callable[[str], Sequence[str]],
    ) -> None:
        super().__init__(ends.markers)
        self._stripped_suffix = stripped_suffix
        self._ends = ends
        self._end_patterns = ends.patterns
        self._list_call_heads = list_call_heads
        self._has_text = False  # Reasoning has begun, with more than white space.
        self._call_marker = ""  # The marker of what may be a call.
        self._state: Callable[[ThinkParser, str, int], int] = ThinkParser._parse_start
        self._begin_letters = begin_letters
        self._prefix_matcher = PrefixMatcher(begin_markers)
        self._is_open = False
        self._may_skip_newline = (
            False  # The begin marker came last, so a newline now belongs to it.
        )
        self._search_state = 0
        self._stripped_length = 0

    def begin_answer(self) -> None:
        """Start in the answer, as the prompt has already ended the reasoning."""
        self._state = ThinkParser._parse_answer

    def begin_reasoning(self, *, may_skip_newline: bool, has_text: bool = False) -> None:
        """Start in the reasoning; the model may repeat the begin marker.

        may_skip_newline: a newline that comes first is not part of the reasoning.
        has_text: the prompt has the beginning of the reasoning.
        """
        self._is_open = True
        self._has_text = has_text
        self._may_skip_newline = may_skip_newline

    def _fast_path(self, event: TextDelta) -> Event | None:
        if (
            self._state is ThinkParser._parse_start
            and (text := event.text.lstrip(" \t\r\n"))
            and text[0] not in self._begin_letters
        ):
            # The same as `_parse_start`, which would read the delta through the buffer.
            self._state = (
                ThinkParser._parse_reasoning if self._is_open else ThinkParser._parse_answer
            )
        # Nearly all deltas are in one of these two states, which need no buffer.
        if self._state is ThinkParser._parse_answer:
            # No marker counts any more, but a token without text may still be held.
            self.is_done = self._buffer.is_empty
            return event
        if (
            self._state is ThinkParser._parse_reasoning
            and not self._may_skip_newline
            and not self._search_state
            and not self._end_patterns.can_start_in(event.text)
        ):
            self._has_text = self._has_text or not event.text.isspace()
            return ReasoningDelta(event.choice, event.text, event.tokens)
        return None

    def _step(self, text: str, pos: int) -> int:
        return self._state(self, text, pos)

    def _parse_start(self, text: str, pos: int) -> int:
        pos, result = self._prefix_matcher.read(text, pos)
        if result is PrefixResult.INCOMPLETE:
            return pos
        if result is PrefixResult.MATCHED and self._buffer.is_marker(
            self._prefix_matcher.marker, len(text) - pos
        ):
            self._drop(self._count_consumed(text, pos))
            self._may_skip_newline = True
            self._state = ThinkParser._parse_reasoning
            return pos
        self._state = ThinkParser._parse_reasoning if self._is_open else ThinkParser._parse_answer
        return self._rewind(text, pos)

    def _parse_reasoning(self, text: str, pos: int) -> int:
        if self._may_skip_newline:
            self._may_skip_newline = False
            if text[pos] == "\n":
                self._drop(1)
                return pos + 1
        patterns = self._end_patterns
        end, self._search_state = patterns.search(text, pos, self._search_state)
        if end < 0:
            self._emit_reasoning(len(self._buffer) - patterns.pending_lengths[self._search_state])
            return len(text)
        matched = patterns.match_texts[self._search_state]
        marker = matched.removeprefix("\n")
        if not self._buffer.is_marker(marker, len(text) - end):
            return end
        self._emit_reasoning(self._count_consumed(text, end) - len(matched))
        if marker not in self._ends.calls:
            self._drop(len(matched))
            self._state = ThinkParser._parse_suffix
            return end
        # Some models begin a call without ending their reasoning; the call's marker
        # stays for the parser of calls.
        self._search_state = 0
        if marker in self._ends.inline_calls or matched != marker or not self._has_text:
            self._drop(len(matched) - len(marker))
            self._state = ThinkParser._parse_answer
            return end - len(marker)
        self._call_marker = marker
        self._prefix_matcher = PrefixMatcher(self._list_call_heads(marker))
        self._state = ThinkParser._parse_call_head
        return end

    def _emit_reasoning(self, n: int) -> None:
        self._has_text = self._has_text or not self._buffer.peek(n).isspace()
        self._emit_buffered(ReasoningDelta, n)

    def _parse_call_head(self, text: str, pos: int) -> int:
        """Decide by what follows a marker whether it begins a call or is mentioned."""
        pos, result = self._prefix_matcher.read(text, pos)
        if result is PrefixResult.INCOMPLETE:
            return pos
        if result is PrefixResult.MATCHED:
            self._state = ThinkParser._parse_answer
        else:
            self._emit_reasoning(len(self._call_marker))
            self._state = ThinkParser._parse_reasoning
        return self._rewind(text, pos)

    def _parse_suffix(self, text: str, pos: int) -> int:
        suffix = self._stripped_suffix
        # One character at a time: a model may write only one of the two newlines, and a
        # delta may end between them.
        while (
            self._stripped_length < len(suffix)
            and pos < len(text)
            and text[pos] == suffix[self._stripped_length]
        ):
            self._drop(1)
            self._stripped_length += 1
            pos += 1
        if pos < len(text) or self._stripped_length == len(suffix):
            self._state = ThinkParser._parse_answer
        return pos

    def _parse_answer(self, text: str, pos: int) -> int:  # noqa: ARG002
        self._emit_buffered(TextDelta, len(self._buffer))
        return len(text)

    def _finish(self, reason: FinishReason | None) -> None:  # noqa: ARG002
        # `_is_open` stays set after the reasoning. That is harmless, as in the answer
        # the buffer is empty.
        in_reasoning = self._is_open or self._state in (
            ThinkParser._parse_reasoning,
            ThinkParser._parse_call_head,
        )
        self._emit_buffered(ReasoningDelta if in_reasoning else TextDelta, len(self._buffer))

    def _interrupt(self) -> None:
        if self._buffer:
            self._finish(None)
            self._state = ThinkParser._parse_answer


class AnswerTagParser(TextParser):
    """Strips the tags of an answer that begins with one: `<answer>Yes.</answer>` is
    `Yes.`

    message_end: text that is stripped wherever it occurs; "" for none.
    is_open: the begin tag is in the prompt.
    """

    def __init__(
        self, begin_tag: str, end_tag: str, message_end: str = "", *, is_open: bool = False
    ) -> None:
        super().__init__()
        self._prefix_matcher = PrefixMatcher((begin_tag,))
        closing = [message_end] if message_end else []
        self._end_patterns = AhoCorasick([end_tag, "\n" + end_tag, *closing])
        self._message_end = AhoCorasick(closing) if message_end else None
        self._search_state = 0
        self._may_skip_newline = False
        self._state: Callable[[AnswerTagParser, str, int], int] = (
            AnswerTagParser._parse_tagged if is_open else AnswerTagParser._parse_start
        )

    def _fast_path(self, event: TextDelta) -> Event | None:
        if self._state is AnswerTagParser._parse_untagged:
            ends = self._message_end
            return (
                event
                if ends is None or not (self._search_state or ends.can_start_in(event.text))
                else None
            )
        in_tags = (
            self._state is AnswerTagParser._parse_tagged
            and not self._search_state
            and not self._may_skip_newline
        )
        return event if in_tags and not self._end_patterns.can_start_in(event.text) else None

    def _step(self, text: str, pos: int) -> int:
        return self._state(self, text, pos)

    def _parse_start(self, text: str, pos: int) -> int:
        pos, result = self._prefix_matcher.read(text, pos)
        match result:
            case PrefixResult.INCOMPLETE:
                return pos
            case PrefixResult.MATCHED:
                self._drop(self._count_consumed(text, pos))
                self._may_skip_newline = True
                self._state = AnswerTagParser._parse_tagged
                return pos
            case PrefixResult.NO_MATCH:
                self._state = AnswerTagParser._parse_untagged
                return self._rewind(text, pos)

    def _parse_tagged(self, text: str, pos: int) -> int:
        if self._may_skip_newline:
            self._may_skip_newline = False
            if text[pos] == "\n":
                self._drop(1)
                return pos + 1
        end, self._search_state = self._end_patterns.search(text, pos, self._search_state)
        if end < 0:
            self._emit_buffered(
                TextDelta,
                len(self._buffer) - self._end_patterns.pending_lengths[self._search_state],
            )
            return len(text)
        marker_length = self._end_patterns.match_lengths[self._search_state]
        self._emit_buffered(TextDelta, self._count_consumed(text, end) - marker_length)
        self._drop(marker_length)
        self._search_state = 0
        self._state = AnswerTagParser._parse_trailing_space
        return end

    def _parse_trailing_space(self, text: str, pos: int) -> int:
        """Hold back white space: at the end of the response it belongs to the template
        and is dropped.
        """
        if not text[pos:].isspace():
            self._state = AnswerTagParser._parse_untagged
            return self._rewind(text, pos)
        return len(text)

    def _parse_untagged(self, text: str, pos: int) -> int:
        ends = self._message_end
        if ends is None:
            self._emit_buffered(TextDelta, len(self._buffer))
            return len(text)
        end, self._search_state = ends.search(text, pos, self._search_state)
        if end < 0:
            self._emit_buffered(
                TextDelta, len(self._buffer) - ends.pending_lengths[self._search_state]
            )
            return len(text)
        length = ends.match_lengths[self._search_state]
        self._emit_buffered(TextDelta, self._count_consumed(text, end) - length)
        self._drop(length)
        self._search_state = 0
        return end

    def _finish(self, reason: FinishReason | None) -> None:  # noqa: ARG002
        if self._state is AnswerTagParser._parse_trailing_space:
            self._drop(len(self._buffer))
        else:
            self._emit_buffered(TextDelta, len(self._buffer))

    def _interrupt(self) -> None:
        if self._buffer:
            self._finish(None)
            self._state = AnswerTagParser._parse_untagged


class InlineThinkFormat(ThinkFormat):
    """The format that leaves reasoning in the text, for clients that send it back
    unchanged.

    A begin marker that the template writes into the prompt is prepended.
    """

    def create_parser(
        self,
        context: ParseContext,
        calls: Sequence[str] = (),  # noqa: ARG002
        list_call_heads: Callable[[str], Sequence[str]] = lambda _: (),  # noqa: ARG002
    ) -> Parser:
        tail = context.prompt_tail
        syntax = self.syntax
        return InlineThinkParser(
            syntax.begin if tail.rfind(syntax.begin) > tail.rfind(syntax.end) else ""
        )


class InlineThinkParser:
    """Prepends the begin marker to the first text."""

    def __init__(self, begin_marker: str) -> None:
        self._begin_marker = begin_marker
        self.is_done = not begin_marker

    def feed(self, event: Event) -> list[Event]:
        if not self.is_done and isinstance(event, TextDelta) and event.text:
            event = TextDelta(event.choice, self._begin_marker + event.text, event.tokens)
            self.is_done = True
        return [event]
