"""`dragoman run`: prints one answer of a model to standard output. `chat` prints its
answers with the same class.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any

import msgspec
import typer

from .api_client import AnswerEnd, ApiError, Piece, TextPiece, ToolCallPiece
from .connection import RequestOptions, connect
from .options import build_command, print_error, print_warning

HELP = """Print one answer of a model.

The prompt is the argument, the standard input, or both: the input first, then the argument. Without --url a server for
MODEL runs until the answer is complete; its settings come from the environment, as for `dragoman serve`.

Exit codes: 0 after a complete answer, 1 after a failed one, 2 if nothing could be asked, 130 after Ctrl-C.
"""


@dataclass(frozen=True, kw_only=True)
class RunOptions(RequestOptions):
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="As for `dragoman serve`; or the URL of a running server."
        ),
    ]
    prompt: Annotated[
        list[str] | None,
        typer.Argument(metavar="PROMPT", help="What to ask; words are joined by spaces."),
    ] = None
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="JSON Schema that the answer must follow.", show_default=False
        ),
    ] = None
    json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print the whole response as JSON, with the usage, instead of the text."
        ),
    ] = False


def _run(options: RunOptions) -> None:
    prompt = join_prompt(" ".join(options.prompt or ()), sys.stdin)
    if not prompt:
        raise ValueError("no prompt: pass it after MODEL or on standard input")
    messages = [{"role": "user", "content": prompt}]
    if options.system is not None:
        messages.insert(0, {"role": "system", "content": options.system})
    body: dict[str, object] = {"messages": messages, **options.build_parameters()}
    if options.schema is not None:
        schema = {"name": "answer", "strict": True, "schema": read_json(options.schema)}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    printer = AnswerPrinter(sys.stdout, sys.stderr if sys.stderr.isatty() else None)
    code = 0
    with connect(options.model, options) as connection:
        body["model"] = connection.model.id
        try:
            if options.json:
                typer.echo(connection.client.create_chat_completion(body).strip())
            else:
                printer.print(connection.client.stream_chat_completion(body))
        except ApiError as error:
            printer.end_line()
            print_error(connection.explain(error))
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            # A shell's exit code after SIGINT: 128 plus the signal's number.
            code = 130
        printer.end_line()
        if printer.finish_reason not in ("stop", "tool_calls", ""):
            print_warning(f"the answer is incomplete (finish_reason: {printer.finish_reason})")
        raise typer.Exit(code)


def join_prompt(argument: str, stdin: IO[str]) -> str:
    """Join piped input and the argument to a prompt, as for `dragoman run MODEL
    "Summarize this." < notes.txt`.
    """
    piped = "" if stdin.isatty() else stdin.read().rstrip("\n")
    return "\n\n".join(part for part in (piped, argument) if part.strip())


def read_json(path: str) -> Any:  # noqa: ANN401 - any JSON
    """Read a JSON file. Raises ValueError with the file's name, and OSError."""
    try:
        return msgspec.json.decode(Path(path).read_bytes())
    except msgspec.DecodeError as error:
        raise ValueError(f"{path}: {error}") from error


run = build_command(RunOptions, _run, about=HELP)


# Printing of an answer: text, reasoning and tool calls, to terminals and pipes.

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
