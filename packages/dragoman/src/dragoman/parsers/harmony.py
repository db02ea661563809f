"""The harmony format of gpt-oss: a response is a series of messages, each in a channel
and optionally to a function.

    <|channel|>analysis<|message|>Let me look.<|end|>
    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json
        <|message|>{"x": 1}<|call|>

Text in the channel `analysis` is reasoning, a message to a function is a call,
everything else is text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from ..core.events import Event, FinishReason, ReasoningDelta, TextDelta, ToolCallDelta
from ..core.message import Tool
from ..core.syntax import JsonPiece, LiteralText, ParseContext, Parser, ReasoningSyntax, SyntaxPiece
from .aho_corasick import AhoCorasick
from .call_parser import CallParser
from .family_types import Fingerprints
from .json_call_reader import ArgumentsReader
from .json_scanner import ReadStatus
from .prefix_matcher import PrefixMatcher, PrefixResult
from .text_buffer import MarkerTokens
from .tool_parameters import build_arguments_schema

START = "<|start|>"
CHANNEL = "<|channel|>"
CONSTRAIN = "<|constrain|>"
MESSAGE = "<|message|>"
END_MARKERS = ("<|end|>", "<|call|>", "<|return|>")
ALL_MARKERS = (START, CHANNEL, CONSTRAIN, MESSAGE, *END_MARKERS)
_MESSAGE_BOUNDARIES = AhoCorasick([START, CHANNEL, *END_MARKERS])
_HEADER_ENDS = AhoCorasick([MESSAGE, *END_MARKERS])


class HarmonyFormat:
    """The format of both reasoning and calls.

    parses_calls: False leaves calls in the text.
    added_tokens: texts of the vocabulary's added tokens; a marker among them counts
        only as that single token.
    """

    def __init__(self, *, parses_calls: bool = True, added_tokens: Collection[str] = ()) -> None:
        self._parses_calls = parses_calls
        self._markers = MarkerTokens(frozenset(ALL_MARKERS) & frozenset(added_tokens))

    @property
    def syntax(self) -> ReasoningSyntax:
        return ReasoningSyntax(
            f"{CHANNEL}analysis{MESSAGE}",
            "<|end|>",
            f"{START}assistant",
            f"{CHANNEL}final{MESSAGE}",
        )

    @property
    def markers(self) -> tuple[str, ...]:
        return ALL_MARKERS

    @property
    def call_openers(self) -> tuple[str, ...]:
        """None: the same markers begin every message."""
        return ()

    @property
    def section_delimiters(self) -> tuple[str, str]:
        return "", ""

    @property
    def call_separator(self) -> str:
        return f"<|end|>{START}assistant"

    @property
    def has_unmarked_calls(self) -> bool:
        return False

    def build_call_syntax(self, tool: Tool) -> tuple[SyntaxPiece, ...]:
        header = f"{CHANNEL}commentary to=functions.{tool.name} {CONSTRAIN}json{MESSAGE}"
        return LiteralText(header), JsonPiece(build_arguments_schema(tool))

    def create_parser(self, context: ParseContext) -> Parser:
        if not self._parses_calls:
            # Without declared tools every call is one to an undeclared function, which
            # stays text.
            context = ParseContext(context.prompt_tail, (), context.new_id)
        return HarmonyParser(context, self._markers)


class HarmonyParser(CallParser):
    """Parses the messages of a response.

    States: before a message, in its header, in its text, in a call, in a malformed
    call. A header is buffered until it is complete. A message to an undeclared function
    is text, with its header.
    """

    def __init__(self, context: ParseContext, markers: MarkerTokens) -> None:
        super().__init__(context, markers)
        self._state: Callable[[HarmonyParser, str, int], int] = HarmonyParser._parse_message_start
        self._build_event: Callable[..., Event] = TextDelta
        self._prefix_matcher = PrefixMatcher((CHANNEL, START, "to="))
        self._search_state = 0
        self._follows_message = False  # A message has ended: white space after it is not text.
        self._has_prompt_header = (
            False  # The header begins in the prompt, whose text is not emitted.
        )
        # The part of the message that is in the prompt sets the state; its text is not
        # emitted.
        start = context.prompt_tail.rfind(START)
        header = context.prompt_tail[start:].removeprefix(f"{START}assistant") if start >= 0 else ""
        if header:
            self._feed_text(TextDelta(0, header))
            self._events.clear()
            self._has_prompt_header = bool(self._buffer)

    def _fast_path(self, event: TextDelta) -> Event | None:
        if (
            self._state is HarmonyParser._parse_message
            and not self._search_state
            and not _MESSAGE_BOUNDARIES.can_start_in(event.text)
        ):
            return self._build_event(event.choice, event.text, event.tokens)
        return self._call_fast_path(event) if self._state is HarmonyParser._parse_call else None

    def _step(self, text: str, pos: int) -> int:
        return self._state(self, text, pos)

    def _parse_message_start(self, text: str, pos: int) -> int:
        pos, result = self._prefix_matcher.read(text, pos)
        if result is PrefixResult.INCOMPLETE:
            return pos
        marker = self._prefix_matcher.marker
        # The text has no header: a template or a stop token may have removed it. It is
        # emitted as text, not dropped.
        if result is PrefixResult.NO_MATCH or not self._buffer.is_marker(marker, len(text) - pos):
            self._begin_message(TextDelta)
            return self._rewind(text, pos)
        if marker in END_MARKERS:
            self._drop(self._count_consumed(text, pos))
            self._expect_message()
        else:
            self._state = HarmonyParser._parse_header
            self._search_state = 0
        return pos

    def _expect_message(self) -> None:
        """Expect another message, after the end of one."""
        self._state = HarmonyParser._parse_message_start
        self._prefix_matcher = PrefixMatcher((CHANNEL, START, *END_MARKERS))
        self._follows_message = True

    def _begin_message(self, build_event: Callable[..., Event]) -> None:
        self._state = HarmonyParser._parse_message
        self._build_event = build_event
        self._search_state = 0

    def _parse_header(self, text: str, pos: int) -> int:
        end, self._search_state = _HEADER_ENDS.search(text, pos, self._search_state)
        if end < 0:
            return len(text)
        marker = _HEADER_ENDS.match_texts[self._search_state]
        if not self._buffer.is_marker(marker, len(text) - end):
            return end
        size = self._count_consumed(text, end)
        if marker != MESSAGE:
            self._emit_buffered(TextDelta, size)
            self._expect_message()
            return end
        header = self._buffer.peek(size)
        # `to=functions.f` may come before or after `<|channel|>`; OpenAI's description
        # of the format has both orders.
        recipient = _read_header_word(header, "to=")
        name = recipient.removeprefix("functions.")
        if recipient and name in self._tools:
            self._call = ArgumentsReader(name, self._tools[name])
            self._state = HarmonyParser._parse_call
        elif recipient:
            self._has_prompt_header = False
            self._emit_buffered(TextDelta, size)
            self._begin_message(TextDelta)
        else:
            self._drop(size)
            self._begin_message(
                ReasoningDelta if _read_header_word(header, CHANNEL) == "analysis" else TextDelta
            )
        return end

    def _parse_message(self, text: str, pos: int) -> int:
        end, self._search_state = _MESSAGE_BOUNDARIES.search(text, pos, self._search_state)
        if end < 0:
            self._emit_buffered(
                self._build_event,
                len(self._buffer) - _MESSAGE_BOUNDARIES.pending_lengths[self._search_state],
            )
            return len(text)
        marker = _MESSAGE_BOUNDARIES.match_texts[self._search_state]
        if not self._buffer.is_marker(marker, len(text) - end):
            return end
        self._emit_buffered(self._build_event, self._count_consumed(text, end) - len(marker))
        if marker in END_MARKERS:
            self._drop(len(marker))
            self._expect_message()
        else:
            self._state = HarmonyParser._parse_header
            self._search_state = 0
        return end

    def _parse_call(self, text: str, pos: int) -> int:
        pos, status = self._read_call(text, pos)
        if status is not ReadStatus.MORE and self._call.is_complete:
            self._expect_message()
        # The arguments are not JSON. They stream unparsed up to the next marker, as the
        # call's name is already known.
        elif status is not ReadStatus.MORE:
            self._begin_message(ToolCallDelta)
        return pos

    def _finish(self, reason: FinishReason | None) -> None:
        buffered_length = len(self._buffer)
        if self._state is HarmonyParser._parse_call:
            self._end_call(reason)
        elif self._state is HarmonyParser._parse_message:
            self._emit_buffered(self._build_event, buffered_length)
        elif self._has_prompt_header or (
            self._follows_message
            and self._state is HarmonyParser._parse_message_start
            and not self._prefix_matcher.matched
        ):
            self._drop(buffered_length)
        else:
            self._emit_buffered(TextDelta, buffered_length)

    def _interrupt(self) -> None:
        if self._buffer or self._state is not HarmonyParser._parse_message_start:
            self._finish(None)
            self._begin_message(TextDelta)


def _read_header_word(header: str, marker: str) -> str:
    """Return the text after a marker of the header, up to white space or the next
    marker.
    """
    word = header.partition(marker)[2]
    for end in ("<", " ", "\n", "\t"):
        word = word.partition(end)[0]
    return word


HARMONY_REASONING_NAMES = ("openai_gptoss", "gpt_oss", "gpt-oss")


HARMONY_TOOL_NAMES = ("openai", "gpt_oss", "gpt-oss", "harmony")
"""Names of the gpt-oss format. Its markers separate messages instead of enclosing
reasoning or calls, so it has its own parser.
"""


HARMONY_FINGERPRINTS: Fingerprints = (("<|channel|>", "<|message|>", "<|start|>"),)
