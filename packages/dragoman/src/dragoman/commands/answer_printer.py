"""Printing of an answer: text, reasoning and tool calls, to terminals and pipes."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from typing import IO, Any

from .api_client import AnswerEnd, Piece, TextPiece, ToolCallPiece

DIM = "\x1b[2m"


RESET = "\x1b[0m"


# Includes the C1 controls (0x80 to 0x9F): 0x9B alone begins an escape sequence on
# terminals that support them.
_CONTROLS = {
    code: None for code in (*range(32), 127, *range(0x80, 0xA0)) if chr(code) not in "\n\t"
}
"""Translation table that removes control characters of the model's text, which a
terminal would execute.
"""


@dataclass
class CalledTool:
    """A tool call, as received so far. arguments: JSON text."""

    id: str = ""
    name: str = ""
    arguments: str = ""

    def build_message_part(self) -> dict[str, Any]:
        """Build the entry of an assistant message's `tool_calls`."""
        return {
            "id": self.id,
            "type": "function",
            "function": {"name": self.name, "arguments": self.arguments},
        }


class AnswerPrinter:
    """Prints the pieces of one answer as they arrive, and collects them.

    text: the text received so far.
    calls: the tool calls, in order.
    finish_reason: empty until the end.
    """

    def __init__(
        self, text_out: IO[str], notes_out: IO[str] | None, *, shows_reasoning: bool = True
    ) -> None:
        """Create a printer.

        text_out: stream for the text.
        notes_out: stream for reasoning and tool calls; None prints neither.
        """
        self.text = ""
        self.calls: list[CalledTool] = []
        self.finish_reason = ""
        self._text_out = text_out
        self._notes_out = notes_out
        self._shows_reasoning = shows_reasoning
        self._last_kind = ""
        self._ends_line = True

    def print(self, pieces: Generator[Piece]) -> None:
        """Print the pieces, and then the tool calls. If the generator raises, the
        pieces received so far are kept.
        """
        # Closing the pieces closes the connection, which cancels the answer on the
        # server.
        with closing(pieces):
            for piece in pieces:
                match piece:
                    case TextPiece("text", text):
                        self.text += text
                        self._write_part("text", text)
                    case TextPiece(_, text):
                        self._write_part("reasoning", text)
                    case ToolCallPiece():
                        self.calls += (
                            CalledTool() for _ in range(len(self.calls), piece.index + 1)
                        )
                        call = self.calls[piece.index]
                        call.id = piece.id or call.id
                        call.name = piece.name or call.name
                        call.arguments += piece.arguments
                    case AnswerEnd(reason):
                        self.finish_reason = reason
        # Printed at the end: arguments arrive in pieces, and those of several calls may
        # alternate.
        for call in self.calls:
            self.end_line()
            self._write_note(f"-> {call.name}({call.arguments})\n")

    def end_line(self) -> None:
        """End the current line, unless it is empty."""
        if not self._ends_line:
            self._ends_line = True
            out = self._text_out if self._last_kind == "text" else self._notes_out
            if out is not None:
                out.write("\n")
                out.flush()

    def _write_part(self, kind: str, text: str) -> None:
        # Without notes only the text is printed; a line break between two pieces of it
        # would change piped output.
        if kind != self._last_kind and self._last_kind and self._notes_out is not None:
            self.end_line()
        if kind == "text":
            self._text_out.write(text.translate(_CONTROLS) if self._text_out.isatty() else text)
            self._text_out.flush()
        elif self._notes_out is None or not self._shows_reasoning:
            return
        else:
            self._write_note(text if kind == self._last_kind else f"Thinking: {text}")
        self._last_kind = kind
        self._ends_line = text.endswith("\n")

    def _write_note(self, text: str) -> None:
        out = self._notes_out
        if out is not None:
            text = text.translate(_CONTROLS) if out.isatty() else text
            out.write(f"{DIM}{text}{RESET}" if has_color(out) else text)
            out.flush()


def has_color(out: IO[str]) -> bool:
    """Whether to use colors: on a terminal, unless NO_COLOR is set
    (https://no-color.org).
    """
    return out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
