"""Where the text of a region goes. Each says what the text comes to; none knows delimiters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from ...core.events import Event, FinishReason, TextDelta, Token, ToolCallDelta, ToolCallStart
from ...core.message import Tool
from .calls import WholeCall, read_calls
from .template import Field

Tokens = tuple[Token, ...]
Make = Callable[[int, str, Tokens], Event]
Emit = Callable[[Make, str, Sequence[Token]], None]
"""Makes an event of a text; without any text the tokens ride on the next one."""


class Closing(Struct, frozen=True):
    """A closing delimiter as it was written, and what its groups have captured."""

    text: str
    tokens: Tokens
    captures: Mapping[str, str]


class Sink(Protocol):
    """The region that is open."""

    @property
    def said(self) -> bool:
        """Something of it was released."""
        ...

    def prompt(self, text: str) -> None:
        """Text of the region that stood in the prompt: it counts, but is not said again."""
        ...

    def body(self, text: str, tokens: Tokens) -> None:
        """The next text of the region."""
        ...

    def close(self, closing: Closing) -> None:
        """Its closing delimiter was read."""
        ...

    def end(self, reason: FinishReason | None) -> None:
        """The region ends without one: the answer does, or another region begins."""
        ...


class Nothing:
    """Text that means nothing: outside of all regions, or behind a call."""

    said = False

    def __init__(self, emit: Emit) -> None:
        self._emit = emit

    def prompt(self, text: str) -> None:
        pass

    def body(self, text: str, tokens: Tokens) -> None:  # noqa: ARG002
        self._emit(TextDelta, "", tokens)

    def close(self, closing: Closing) -> None:
        self._emit(TextDelta, "", closing.tokens)

    def end(self, reason: FinishReason | None) -> None:
        pass


class Verbatim(Nothing):
    """What was no call after all: text, with its delimiters."""

    def body(self, text: str, tokens: Tokens) -> None:
        self._emit(TextDelta, text, tokens)

    def close(self, closing: Closing) -> None:
        self._emit(TextDelta, closing.text, closing.tokens)


class Words(Nothing):
    """Text that streams. White space around it is no part of it, if it is stripped.

    before: what comes in front of the first word. begun: the beginning is already said, so that only white space
    at the end is stripped.
    """

    def __init__(self, emit: Emit, make: Make, *, strip: bool, before: str = "", begun: bool = False) -> None:
        super().__init__(emit)
        self._make = make
        self._strip = strip
        self._before = before
        self._begun = begun
        self._blanks: list[str] = []

    @property
    def said(self) -> bool:
        return self._begun

    @property
    def flows(self) -> bool:
        """Text without white space at its end passes as it is."""
        return self._begun and not self._blanks

    @property
    def make(self) -> Make:
        return self._make

    def prompt(self, text: str) -> None:
        self._begun = self._begun or bool(text.strip() if self._strip else text)

    def body(self, text: str, tokens: Tokens) -> None:
        body, blanks = text, ""
        if self._strip:
            text = text if self._begun else text.lstrip()
            body = text.rstrip()
            blanks = text[len(body) :]
        if not body:
            self._emit(self._make, "", tokens)
        else:
            self._emit(self._make, "".join([self._before, *self._blanks, body]), tokens)
            self._begun, self._before = True, ""
            self._blanks.clear()
        if blanks:
            self._blanks.append(blanks)


class Collected(Nothing):
    """A region with calls that can only be read when it is whole. head: its opening delimiter."""

    def __init__(
        self,
        emit: Emit,
        field: Field,
        tools: Mapping[str, Tool],
        new_id: Callable[[], str],
        captures: Mapping[str, str],
    ) -> None:
        super().__init__(emit)
        self._field = field
        self._tools = tools
        self._new_id = new_id
        self._captures = captures
        self._head = ""
        self._from_prompt: list[str] = []
        self._pieces: list[str] = []
        self._tokens: list[Token] = []

    def head(self, text: str, tokens: Tokens) -> None:
        self._head = text
        self._tokens.extend(tokens)

    def prompt(self, text: str) -> None:
        self._from_prompt.append(text)

    def body(self, text: str, tokens: Tokens) -> None:
        self._pieces.append(text)
        self._tokens.extend(tokens)

    def close(self, closing: Closing) -> None:
        self._tokens.extend(closing.tokens)
        self._read({**self._captures, **closing.captures}, closing.text)

    def end(self, reason: FinishReason | None) -> None:
        """A model may end its answer instead of the call; one that was cut off is not to be trusted."""
        if reason is FinishReason.STOP:
            self._read(self._captures, "")
        else:
            self._give_up("")

    def _read(self, captures: Mapping[str, str], closing: str) -> None:
        body = "".join([*self._from_prompt, *self._pieces])
        try:
            calls = read_calls(self._field, body, captures, self._tools)
        except ValueError:
            self._give_up(closing)
            return
        self._emit(TextDelta, "", self._tokens)
        for call in calls:
            self._emit(self._start(call), call.name, ())
            self._emit(ToolCallDelta, call.arguments, ())

    def _start(self, call: WholeCall) -> Make:
        return lambda choice, _, tokens: ToolCallStart(choice, self._new_id(), call.name, tokens, call.custom)

    def _give_up(self, closing: str) -> None:
        self._emit(TextDelta, "".join([self._head, *self._pieces, closing]), self._tokens)
