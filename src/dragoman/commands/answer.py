"""An answer while it is printed: text, reasoning and tool calls, on terminals and in pipes."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from typing import IO, Any

from .api_client import AnswerEnd, Piece, TextPiece, ToolCallPiece

DIM, RESET = "\x1b[2m", "\x1b[0m"
# The C1 controls (0x80 to 0x9F) too: 0x9B alone begins an escape sequence on terminals that honour them.
_CONTROLS = {code: None for code in (*range(32), 127, *range(0x80, 0xA0)) if chr(code) not in "\n\t"}
"""A model's control characters must not reach a terminal, which would obey them."""


@dataclass
class CalledTool:
    """A tool call as far as it has arrived."""

    id: str = ""
    name: str = ""
    arguments: str = ""

    def build_message_part(self) -> dict[str, Any]:
        """The call in an assistant's message."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


class AnswerPrinter:
    """Prints the pieces of one answer as they arrive, and collects them.

    text: what has arrived of the text. calls: the tool calls, in order. finish_reason: empty until the end.
    """

    def __init__(self, text_out: IO[str], notes_out: IO[str] | None, *, shows_reasoning: bool = True) -> None:
        """notes_out: for reasoning and tool calls; None prints neither."""
        self.text = ""
        self.calls: list[CalledTool] = []
        self.finish_reason = ""
        self._text_out, self._notes_out = text_out, notes_out
        self._shows_reasoning = shows_reasoning
        self._last_kind = ""
        self._ends_line = True

    def print(self, pieces: Generator[Piece]) -> None:
        """Raises what the pieces raise; what has arrived until then stays collected."""
        # Closing the pieces closes the connection, which cancels the answer on the server.
        with closing(pieces):
            for piece in pieces:
                self._print_piece(piece)
        # Only at the end: the arguments of a call come in pieces, and those of several calls may alternate.
        for call in self.calls:
            self.end_line()
            self._write_note(f"-> {call.name}({call.arguments})\n")

    def end_line(self) -> None:
        """Begin a new line, unless the last one has ended."""
        if not self._ends_line:
            self._ends_line = True
            out = self._text_out if self._last_kind == "text" else self._notes_out
            if out is not None:
                out.write("\n")
                out.flush()

    def _print_piece(self, piece: Piece) -> None:
        match piece:
            case TextPiece("text", text):
                self.text += text
                self._write_part("text", text)
            case TextPiece(_, text):
                self._write_part("reasoning", text)
            case ToolCallPiece():
                while len(self.calls) <= piece.index:
                    self.calls.append(CalledTool())
                call = self.calls[piece.index]
                call.id, call.name = piece.id or call.id, piece.name or call.name
                call.arguments += piece.arguments
            case AnswerEnd(reason):
                self.finish_reason = reason

    def _write_part(self, kind: str, text: str) -> None:
        # Without notes only text is printed, and a line end between two pieces of it would change what a pipe gets.
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
    """Whether to use colours: on a terminal, unless NO_COLOR is set (https://no-color.org)."""
    return out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
