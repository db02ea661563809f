"""`dragoman chat`: a conversation with a model, on a terminal or from a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import click
import msgspec

from dragoman_cli import Argument, Option, build_command, print_error

from .answer_printer import AnswerPrinter
from .api_client import ApiError
from .client_options import RequestOptions
from .errors import COMMAND_ERRORS
from .foreign_flags import explain_ask_flag
from .run import read_json
from .server_connection import Connection, connect

HELP = """Chat with a model.

Lines are messages; /help shows the commands. Ctrl-C stops an answer, Ctrl-D ends the
chat. Without a URL a server for MODEL runs until the chat ends; its settings come from
the environment, as for `dragoman serve`.
"""
COMMANDS = '''\
/system [TEXT]  show or set the system prompt
/clear          forget the conversation, not the system prompt
/save FILE      write the conversation as JSON
/help           show this
/exit           end the chat, as Ctrl-D does
"""             begins and ends a message of several lines
'''
LONG_MESSAGE = '"""'


@dataclass(frozen=True, kw_only=True)
class ChatOptions(RequestOptions):
    model: Annotated[
        str | None,
        Argument(
            metavar="MODEL|URL", help="As for `dragoman serve`; or the URL of a running server."
        ),
    ] = None
    tools: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="JSON list of tools, as in a request. Their calls are shown, and you type the "
            "results.",
        ),
    ] = None
    hide_reasoning: Annotated[
        bool, Option("--hide-reasoning", help="Do not show the model's reasoning.")
    ] = False


def _chat(options: ChatOptions) -> None:
    parameters = options.build_parameters()
    if options.tools is not None:
        parameters["tools"] = read_json(options.tools)
    with connect(options.model, options) as connection:
        session = ChatSession(
            connection, parameters, options.system, shows_reasoning=not options.hide_reasoning
        )
        raise click.exceptions.Exit(session.run())


class ChatSession:
    """A conversation with one model: reads lines, runs commands, and prints answers."""

    def __init__(
        self,
        connection: Connection,
        parameters: dict[str, Any],
        system: str | None,
        *,
        shows_reasoning: bool,
    ) -> None:
        self._connection = connection
        self._parameters = parameters
        self._system = system
        self._shows_reasoning = shows_reasoning
        self._messages: list[dict[str, Any]] = []
        self._is_interactive = sys.stdin.isatty()
        self._has_failed = False

    def run(self) -> int:
        """Run the conversation until the input ends. Return the exit code: 1 if an
        answer to piped input failed.
        """
        if self._is_interactive:
            # Importing readline enables line editing and history; some builds of Python
            # lack it.
            with suppress(ImportError):
                import_module("readline")
            click.echo(
                f"{self._connection.model.id} at {self._connection.client.url} (/help shows the "
                f"commands)"
            )
        for line in self._read_lines():
            if line.startswith("/"):
                if not self._run_command(line):
                    break
            elif line.strip():
                self._ask({"role": "user", "content": line})
        return int(self._has_failed and not self._is_interactive)

    def _read_lines(self) -> Iterator[str]:
        """Yield messages and commands until the input ends."""
        while True:
            try:
                line = self._read_line("> ")
                if line.startswith(LONG_MESSAGE):
                    parts = [line.removeprefix(LONG_MESSAGE)]
                    while not parts[-1].rstrip().endswith(LONG_MESSAGE):
                        parts.append(self._read_line(". "))
                    parts[-1] = parts[-1].rstrip().removesuffix(LONG_MESSAGE)
                    line = "\n".join(parts).strip("\n")
            except EOFError:
                if self._is_interactive:
                    click.echo()
                return
            except KeyboardInterrupt:
                click.echo("\n(Ctrl-D or /exit ends the chat)")
                continue
            yield line

    def _read_line(self, prompt: str) -> str:
        return input(prompt if self._is_interactive else "")

    def _run_command(self, line: str) -> bool:
        """Run a line that begins with a slash. Return False if the chat ends."""
        name, _, argument = line.partition(" ")
        argument = argument.strip()
        match name:
            case "/exit" | "/quit" | "/bye":
                return False
            case "/help" | "/?":
                click.echo(COMMANDS, nl=False)
            case "/clear":
                self._messages.clear()
            case "/system" if argument:
                self._system = argument
            case "/system":
                click.echo(self._system or "There is no system prompt.")
            case "/save" if argument:
                path = Path(argument).expanduser()
                conversation = {
                    "model": self._connection.model.id,
                    "messages": self._build_messages(),
                }
                try:
                    path.write_bytes(msgspec.json.format(msgspec.json.encode(conversation)) + b"\n")
                except OSError as error:
                    print_error(f"{path}: {error.strerror}")
                else:
                    click.echo(f"Saved {len(self._messages)} messages to {path}")
            case _:
                print_error(
                    f"unknown command {name}; /help lists the commands. To send the line, begin "
                    f"it with a space"
                )
        return True

    def _build_messages(self) -> list[dict[str, Any]]:
        system = [] if self._system is None else [{"role": "system", "content": self._system}]
        return [*system, *self._messages]

    def _ask(self, message: dict[str, Any]) -> None:
        """Send the message and print the answer; the user types the results of its tool
        calls, until there are none.
        """
        length = len(self._messages)
        self._messages.append(message)
        while True:
            printer = self._print_answer()
            if printer is None:
                # Remove the unanswered message: it would be sent again with the next
                # one.
                del self._messages[length:]
                return
            calls = [call.build_message_part() for call in printer.calls]
            self._messages.append(
                {
                    "role": "assistant",
                    "content": printer.text or None,
                    **({"tool_calls": calls} if calls else {}),
                }
            )
            if not calls:
                return
            try:
                results = [self._read_line(f"result of {call.name}> ") for call in printer.calls]
            except (EOFError, KeyboardInterrupt):
                click.echo()
                del self._messages[length:]
                return
            for call, result in zip(printer.calls, results, strict=True):
                self._messages.append({"role": "tool", "tool_call_id": call.id, "content": result})

    def _print_answer(self) -> AnswerPrinter | None:
        """Print the answer to the conversation so far. Return None if the conversation
        cannot continue from it.
        """
        body = {
            "model": self._connection.model.id,
            "messages": self._build_messages(),
            **self._parameters,
        }
        printer = AnswerPrinter(sys.stdout, sys.stdout, shows_reasoning=self._shows_reasoning)
        try:
            printer.print(self._connection.client.stream_chat_completion(body))
        except ApiError as error:
            printer.end_line()
            print_error(self._connection.explain(error))
            self._has_failed = True
            return None
        except KeyboardInterrupt:
            printer.end_line()
            click.echo("(stopped)")
            # Incomplete tool calls cannot be answered.
            printer.calls.clear()
            return printer if printer.text else None
        printer.end_line()
        if printer.finish_reason not in ("stop", "tool_calls"):
            click.echo(f"(incomplete: {printer.finish_reason})")
        return printer


COMMAND = build_command(
    "chat",
    ChatOptions,
    _chat,
    help=HELP,
    errors=COMMAND_ERRORS,
    explain_option=explain_ask_flag,
)
