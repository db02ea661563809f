"""`dragoman run`: prints one answer of a model to standard output."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any

import click
import msgspec

from dragoman_cli import Argument, Option, build_command, print_error, print_warning

from .answer_printer import AnswerPrinter
from .api_client import ApiError
from .client_options import RequestOptions
from .errors import COMMAND_ERRORS
from .foreign_flags import explain_ask_flag
from .server_connection import connect

HELP = """Print one answer of a model.

The prompt is the argument, the standard input, or both: the input first, then the
argument. Without --url a server for MODEL runs until the answer is complete; its
settings come from the environment, as for `dragoman serve`.

Exit codes: 0 after a complete answer, 1 after a failed one, 2 if nothing could be
asked, 130 after Ctrl-C.
"""


@dataclass(frozen=True, kw_only=True)
class RunOptions(RequestOptions):
    model: Annotated[
        str,
        Argument(metavar="MODEL", help="As for `dragoman serve`; or the URL of a running server."),
    ]
    prompt: Annotated[
        tuple[str, ...],
        Argument(metavar="PROMPT", help="What to ask; words are joined by spaces."),
    ] = ()
    schema: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="JSON Schema that the answer must follow.",
        ),
    ] = None
    json: Annotated[
        bool,
        Option(
            "--json", help="Print the whole response as JSON, with the usage, instead of the text."
        ),
    ] = False


def _run(options: RunOptions) -> None:
    prompt = join_prompt(" ".join(options.prompt), sys.stdin)
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
                click.echo(connection.client.create_chat_completion(body).strip())
            else:
                printer.print(connection.client.stream_chat_completion(body))
        except ApiError as error:
            printer.end_line()
            print_error(connection.explain(error))
            raise click.exceptions.Exit(1) from None
        except KeyboardInterrupt:
            # A shell's exit code after SIGINT: 128 plus the signal's number.
            code = 130
        printer.end_line()
        if printer.finish_reason not in ("stop", "tool_calls", ""):
            print_warning(f"the answer is incomplete (finish_reason: {printer.finish_reason})")
        raise click.exceptions.Exit(code)


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


COMMAND = build_command(
    "run",
    RunOptions,
    _run,
    help=HELP,
    errors=COMMAND_ERRORS,
    explain_option=explain_ask_flag,
)
