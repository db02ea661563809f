"""OpenAI's harmony, the format of gpt-oss: an answer is messages, each in a channel and perhaps to a function.

    <|channel|>analysis<|message|>Let me look.<|end|>
    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"x": 1}<|call|>

What stands in the channel `analysis` is reasoning, what is sent to a function is a call, everything else is text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from ..core.events import Event, FinishReason, ReasoningDelta, TextDelta, ToolCallDelta
from ..core.message import Tool
from ..core.syntax import JsonValue, ParseContext, Parser, Piece, ThoughtSyntax, Verbatim
from .base import Found, Lead
from .calls import CallParser, HeadedCall
from .json_text import Seen
from .marks import Marks
from .parameters import schema_of

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>")
EVERY = (START, CHANNEL, CONSTRAIN, MESSAGE, *ENDS)
_NEXT = Marks([START, CHANNEL, *ENDS])
_AFTER_HEADER = Marks([MESSAGE, *ENDS])


class HarmonyFormat:
    """Both of reasoning and of calls. calls: False leaves calls in the text. added: texts of the vocabulary's added
    tokens; a mark among them counts only as that one token.
    """

    def __init__(self, *, calls: bool = True, added: Collection[str] = ()) -> None:
        self._calls = calls
        self._single = frozenset(EVERY) & frozenset(added)

    @property
    def thought(self) -> ThoughtSyntax:
        return ThoughtSyntax(f"{CHANNEL}analysis{MESSAGE}", "<|end|>", f"{START}assistant", f"{CHANNEL}final{MESSAGE}")

    @property
    def markers(self) -> tuple[str, ...]:
        return EVERY

    @property
    def openers(self) -> tuple[str, ...]:
        """None: the same marks begin every message."""
        return ()

    @property
    def around(self) -> tuple[str, str]:
        return "", ""

    @property
    def between(self) -> str:
        return f"<|end|>{START}assistant"

    @property
    def leading(self) -> bool:
        return False

    def call(self, tool: Tool) -> tuple[Piece, ...]:
        head = f"{CHANNEL}commentary to=functions.{tool.name} {CONSTRAIN}json{MESSAGE}"
        return Verbatim(head), JsonValue(schema_of(tool))

    def parser(self, context: ParseContext) -> Parser:
        if not self._calls:
            context = ParseContext(context.prompt_tail, (), context.new_id)
        return HarmonyParser(context, self._single)


class HarmonyParser(CallParser):
    """Before a message, in its header, in its text, in a call, in a call that is malformed.

    A header is held until it is whole. A message to a function that is not declared is text, with its header.
    """

    def __init__(self, context: ParseContext, single: Collection[str]) -> None:
        super().__init__(context, single)
        self._state: Callable[[HarmonyParser, str, int], int] = HarmonyParser._before
        self._make: Callable[..., Event] = TextDelta
        self._lead = Lead((CHANNEL, START, "to="))
        self._search = 0
        self._said = False  # a message is over: white space behind it is no text
        self._headed = False  # the header has begun in the prompt, which is not said again
        self._begin_with(context.prompt_tail)

    def _begin_with(self, tail: str) -> None:
        """What of the message stands in the prompt decides the state, and is not said again."""
        start = tail.rfind(START)
        header = tail[start:].removeprefix(f"{START}assistant") if start >= 0 else ""
        if header:
            self._text(TextDelta(0, header))
            self._out.clear()
            self._headed = bool(self._buffer)

    def _quick(self, event: TextDelta) -> Event | None:
        if self._state is HarmonyParser._in_message and not self._search and not _NEXT.occurs(event.text):
            return self._make(event.choice, event.text, event.tokens)
        return self._quick_call(event) if self._state is HarmonyParser._in_call else None

    def _step(self, text: str, at: int) -> int:
        return self._state(self, text, at)

    def _before(self, text: str, at: int) -> int:
        at, found = self._lead.read(text, at)
        if found is Found.MORE:
            return at
        mark = self._lead.mark
        if found is Found.OTHER or not self._buffer.is_mark(mark, len(text) - at):
            self._enter(TextDelta)
            return self._again(text, at)
        if mark in ENDS:
            self._drop(self._read(text, at))
            self._expect()
        else:
            self._state, self._search = HarmonyParser._in_header, 0
        return at

    def _expect(self) -> None:
        """A message is over."""
        self._state, self._lead, self._said = HarmonyParser._before, Lead((CHANNEL, START, *ENDS)), True

    def _enter(self, make: Callable[..., Event]) -> None:
        self._state, self._make, self._search = HarmonyParser._in_message, make, 0

    def _in_header(self, text: str, at: int) -> int:
        end, self._search = _AFTER_HEADER.search(text, at, self._search)
        if end < 0:
            return len(text)
        mark = _AFTER_HEADER.text[self._search]
        if not self._buffer.is_mark(mark, len(text) - end):
            return end
        size = self._read(text, end)
        if mark == MESSAGE:
            self._open(self._buffer.peek(size), size)
        else:
            self._release(TextDelta, size)
            self._expect()
        return end

    def _open(self, header: str, size: int) -> None:
        """The header is whole: what kind of message this is."""
        recipient = _word(header, "to=")
        name = recipient.removeprefix("functions.")
        if recipient and name in self._tools:
            self._call, self._state = HeadedCall(name, self._tools[name]), HarmonyParser._in_call
        elif recipient:
            self._headed = False
            self._release(TextDelta, size)
            self._enter(TextDelta)
        else:
            self._drop(size)
            self._enter(ReasoningDelta if _word(header, CHANNEL) == "analysis" else TextDelta)

    def _in_message(self, text: str, at: int) -> int:
        end, self._search = _NEXT.search(text, at, self._search)
        if end < 0:
            self._release(self._make, len(self._buffer) - _NEXT.held[self._search])
            return len(text)
        mark = _NEXT.text[self._search]
        if not self._buffer.is_mark(mark, len(text) - end):
            return end
        self._release(self._make, self._read(text, end) - len(mark))
        self._next(mark)
        return end

    def _next(self, mark: str) -> None:
        """The buffer begins with a mark that ends the message."""
        if mark in ENDS:
            self._drop(len(mark))
            self._expect()
        else:
            self._state, self._search = HarmonyParser._in_header, 0

    def _in_call(self, text: str, at: int) -> int:
        at, seen = self._read_call(text, at)
        if seen is not Seen.MORE and self._call.complete:
            self._expect()
        elif seen is not Seen.MORE:
            self._enter(ToolCallDelta)
        return at

    def _finish(self, reason: FinishReason | None) -> None:  # noqa: ARG002
        held = len(self._buffer)
        if self._state is HarmonyParser._in_call:
            self._end_call()
        elif self._state is HarmonyParser._in_message:
            self._release(self._make, held)
        elif self._headed or (self._said and self._state is HarmonyParser._before and not self._lead.matched):
            self._drop(held)
        else:
            self._release(TextDelta, held)

    def _interrupt(self) -> None:
        if self._buffer or self._state is not HarmonyParser._before:
            self._finish(None)
            self._enter(TextDelta)


def _word(header: str, mark: str) -> str:
    """What stands behind a mark of the header, up to a blank or another mark."""
    _, _, rest = header.partition(mark)
    for end in ("<", " ", "\n", "\t"):
        rest = rest.partition(end)[0]
    return rest
