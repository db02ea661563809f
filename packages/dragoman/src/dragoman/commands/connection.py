"""The server that a command uses: a running one, by its URL, or one that the command
starts.

The latter is a child process with `dragoman serve` on a loopback port, which ends with
the command.
"""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Literal

import typer

from .api_client import ApiClient, ApiError, ListedModel, is_url
from .options import print_error

DEFAULT_URL = "http://127.0.0.1:8000"
SAMPLING_PANEL = "Sampling"


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions:
    """The options of `run` and `chat` that select the server."""

    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Use this running server; MODEL is then the name of one of its models.",
            show_default=False,
        ),
    ] = None
    api_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="API key of the server. By default the first one of DRAGOMAN_API_KEY, which `ps` "
            "cannot show.",
            show_default=False,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class RequestOptions(ConnectionOptions):
    """The options of `run` and `chat` that are part of the request; None means the
    server's default.
    """

    system: Annotated[
        str | None, typer.Option("--system", "-s", help="System prompt.", show_default=False)
    ] = None
    temperature: Annotated[
        float | None,
        typer.Option(
            help="Sampling temperature; 0 is greedy.", rich_help_panel=SAMPLING_PANEL, min=0
        ),
    ] = None
    top_p: Annotated[
        float | None,
        typer.Option(
            help="Sample from the most likely tokens whose probabilities add up to this.",
            rich_help_panel=SAMPLING_PANEL,
        ),
    ] = None
    max_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Maximum length of an answer.", rich_help_panel=SAMPLING_PANEL, min=1
        ),
    ] = None
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Random seed.", rich_help_panel=SAMPLING_PANEL)
    ] = None
    stop: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="End the answer before this text. Repeatable.",
            rich_help_panel=SAMPLING_PANEL,
        ),
    ] = None
    reasoning_effort: Annotated[
        str | None,
        typer.Option(
            metavar="LEVEL",
            help="Reasoning effort, from none or minimal to xhigh or max.",
            rich_help_panel=SAMPLING_PANEL,
        ),
    ] = None

    def build_parameters(self) -> dict[str, object]:
        """Build the request's parameters from the options that are set."""
        names = ("temperature", "top_p", "max_tokens", "seed", "stop", "reasoning_effort")
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value not in (None, [])}


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection to a server.

    model: the model to use.
    server: the server that this command started; None if it was running before.
    """

    client: ApiClient
    model: ListedModel
    server: LocalServer | None = None

    def explain(self, error: ApiError) -> str:
        """Return the error message, or the last log lines of this command's server if
        it has ended.
        """
        failure = (
            self.server.read_failure() if error.is_unreachable and self.server is not None else None
        )
        return str(error) if failure is None else f"the server ended:\n{failure}"


def resolve_api_key(option: str | None) -> str | None:
    """Return the key to send: the option's, else the first one of DRAGOMAN_API_KEY;
    None if there is none.
    """
    return option or os.environ.get("DRAGOMAN_API_KEY", "").partition(",")[0].strip() or None


@contextmanager
def connect(model: str | None, options: ConnectionOptions) -> Generator[Connection]:
    """Connect to the server of `--url` or of a URL given as MODEL; otherwise start a
    server for MODEL.

    If that fails, prints the reason and exits with code 2, or with that of the server.
    """
    url = options.url
    name = model
    if url is None and model is not None and is_url(model):
        url = model
        name = None
    api_key = resolve_api_key(options.api_key)
    try:
        if url is not None:
            with ApiClient(url, api_key) as client:
                yield Connection(client, choose_model(client, name))
            return
        with serve_model(model, api_key) as server, ApiClient(server.url, api_key) as client:
            yield Connection(client, choose_model(client, None), server)
    except ApiError as error:
        print_error(str(error))
        raise typer.Exit(2) from error


@contextmanager
def serve_model(
    model: str | None,
    api_key: str | None,
    *,
    port: int = 0,
    store: str = "none",
    shows_startup: bool = False,
) -> Generator[LocalServer]:
    """Call `start_server` for a command. If the server cannot start, exit with its
    code; it has printed the reason.
    """
    try:
        with start_server(
            model,
            print_status,
            api_key=api_key,
            port=port,
            store=store,
            shows_startup=shows_startup,
        ) as server:
            yield server
    except ServerFailed as error:
        raise typer.Exit(error.code or 2) from error


def choose_model(client: ApiClient, name: str | None) -> ListedModel:
    """Choose the model or alias of this name, or the first listed model if name is
    None. Raises ApiError.
    """
    models = client.list_models()
    if not models:
        raise ApiError(f"{client.url} lists no model")
    if name is None:
        return models[0]
    for model in models:
        if model.id == name:
            return model
    aliases = [
        alias for model in models if model.dragoman is not None for alias in model.dragoman.aliases
    ]
    if any(fnmatchcase(name, alias) for alias in aliases):
        return ListedModel(name)
    raise ApiError(
        f"{client.url} has no model {name!r}; it has {', '.join(model.id for model in models)}"
    )


def print_status(line: str) -> None:
    """Print a line that is not part of the answer to standard error."""
    typer.echo(line, err=True)


# A server for the duration of one command.

POLL_INTERVAL = 0.1
"""Seconds between two polls of /readyz."""
STOP_TIMEOUT = 10.0
"""Seconds after which a server that does not stop is killed."""
DEATH_TIMEOUT = 0.5
"""Seconds to wait for the exit of a server whose connection was lost."""
READ_TIMEOUT = 2.0
"""Seconds to wait for the last output of a server that has ended; its own children may
keep the pipe open.
"""
CHILD_SETTINGS: dict[str, object] = {
    "host": "127.0.0.1",
    "uds": None,
    "ssl_certfile": None,
    "ssl_keyfile": None,
    "workers": None,
    "api_server_count": None,
    "instances": None,
    "log_level": "info",
    "log_format": "text",
    "access_log": False,
    # This command is the only client, and stops the server only when it awaits no
    # response.
    "shutdown_timeout": 0.0,
}
"""Settings that replace those of the environment and the configuration file, so that
`LocalServer` can read the log and reach the address; None is the default.
"""
_CHILD_CODE = (
    f"from {__name__} import CHILD_SETTINGS, end_with_parent; from dragoman.cli import main; "
    "end_with_parent(); main(CHILD_SETTINGS)"
)
"""Python code of the child process."""
_LOGGED = re.compile(r"\d{4}-\S+ \S+ (INFO|WARNING|ERROR|CRITICAL) \S+: (.*)")
"""A log line of the server: date, time, level, logger, message."""
_ADDRESS = re.compile(r"^Serving .* on (http://127\.0\.0\.1:\d+)")
"""The line that the server prints when it listens, with its address."""


class ServerFailed(Exception):
    """The server cannot serve its model.

    code: the server's exit code; 1 if it still runs.
    """

    def __init__(self, code: int) -> None:
        super().__init__("the server cannot serve its model")
        self.code = code


class LocalServer:
    """A child process that runs `dragoman serve`.

    url: the server's address; empty until it is ready.
    """

    def __init__(self, arguments: list[str]) -> None:
        """Start the process. arguments: those of `dragoman serve`."""
        self.url = ""
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._last_lines: deque[str] = deque(maxlen=20)
        # -P: modules in the user's working directory must not be imported. Nothing is
        # written to stdin. Its end tells the child that this process has ended, even if
        # it was killed.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _CHILD_CODE, "serve", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read_lines, daemon=True)
        self._reader.start()

    def _read_lines(self) -> None:
        for line in self._process.stdout or ():
            self._last_lines.append(line)
            # Only `wait_until_ready` reads the queue; later lines would accumulate in
            # it.
            if not self.url:
                self._lines.put(line)
        self._lines.put(None)

    def wait_until_ready(
        self, echo: Callable[[str], None], api_key: str | None, *, shows_startup: bool
    ) -> None:
        """Wait until the server is ready.

        echo: prints a line that the server logs until it is ready, such as the progress
            of a download.
        api_key: a key that the server accepts, if it requires one.
        shows_startup: print INFO lines of the time before the server listens, too.

        Raises:
            ServerFailed: the server has ended, or its model cannot be loaded.
        """
        address = ""
        while True:
            try:
                # Before the address is known there is nothing to poll, so wait for a
                # line or the end of the output.
                line = self._lines.get(timeout=POLL_INTERVAL if address else None)
            except queue.Empty:
                line = ""
            if line is None:
                raise ServerFailed(self._process.wait())
            greeting = _ADDRESS.match(line)
            address = greeting[1] if greeting else address
            logged = _LOGGED.match(line)
            if logged is None:
                # Unlogged lines before the address are errors. The line with the
                # address is not shown.
                is_echoed = not address
                text = line
            else:
                level, text = logged.groups()
                is_echoed = level != "INFO" or shows_startup or bool(address)
                text = text if level == "INFO" else f"{level.capitalize()}: {text}"
            if is_echoed and text.strip():
                echo(text.rstrip("\n"))
            state = _read_state(address, api_key) if address else "loading"
            if state == "failed":
                raise ServerFailed(1)
            if state == "ready":
                self.url = address
                return

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def read_failure(self) -> str | None:
        """Return the last lines of a server that has ended by itself; None if it still
        runs.

        Waits up to DEATH_TIMEOUT: a process that ends closes its connections before it
        exits.
        """
        try:
            self._process.wait(DEATH_TIMEOUT)
        except subprocess.TimeoutExpired:
            return None
        self._reader.join(READ_TIMEOUT)
        return "".join(self._last_lines)

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(READ_TIMEOUT)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def _read_state(url: str, api_key: str | None) -> Literal["loading", "ready", "failed"]:
    with ApiClient(url, api_key) as client:
        try:
            if client.is_ready():
                return "ready"
            models = client.list_models()
        except ApiError:
            return "loading"
    has_failed = (
        bool(models) and models[0].dragoman is not None and models[0].dragoman.state == "failed"
    )
    return "failed" if has_failed else "loading"


@contextmanager
def start_server(
    model: str | None,
    echo: Callable[[str], None],
    *,
    api_key: str | None = None,
    store: str = "none",
    port: int = 0,
    shows_startup: bool = False,
) -> Generator[LocalServer]:
    """Serve a model while the block runs. Its settings come from the environment,
    except CHILD_SETTINGS.

    model: None serves the model of the settings.
    echo: prints a line.
    api_key: a key that the server accepts, if the settings require one.
    store: where the server stores responses, as `--store`.
    port: 0 picks a free port.
    shows_startup: print what the server logs before it listens.

    Raises:
        ServerFailed: the server cannot start; echo has printed the reason.
    """
    arguments = ["--port", str(port), "--store", store]
    # After `--` a MODEL that begins with a dash is not parsed as an option.
    server = LocalServer([*arguments, *([] if model is None else ["--", model])])
    try:
        server.wait_until_ready(echo, api_key, shows_startup=shows_startup)
        yield server
    finally:
        server.stop()


def end_with_parent() -> None:
    """Shut this process down gracefully when its standard input is closed: the command
    that started it has ended.
    """

    def wait() -> None:
        # The parent writes nothing: the read returns at the end of the pipe.
        while os.read(0, 4096):
            pass
        # A signal, since this is not the main thread: the signal handler starts the
        # graceful shutdown.
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()
