"""The server that a command talks to: a running one by its URL, or one that the command starts for itself.

The latter is `dragoman serve` in a process of its own, on a loopback port.
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
    """The options of `run` and `chat` that name the server."""

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
            help="API key of the server. By default the first one of DRAGOMAN_API_KEY, which `ps` does not show.",
            show_default=False,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class RequestOptions(ConnectionOptions):
    """The options of `run` and `chat` that go into the request. Without a value the model decides."""

    system: Annotated[str | None, typer.Option("--system", "-s", help="System prompt.", show_default=False)] = None
    temperature: Annotated[
        float | None, typer.Option(help="Sampling temperature; 0 is greedy.", rich_help_panel=SAMPLING_PANEL, min=0)
    ] = None
    top_p: Annotated[
        float | None,
        typer.Option(help="Sample from the most probable tokens of this total.", rich_help_panel=SAMPLING_PANEL),
    ] = None
    max_tokens: Annotated[
        int | None,
        typer.Option(metavar="N", help="Maximum length of an answer.", rich_help_panel=SAMPLING_PANEL, min=1),
    ] = None
    seed: Annotated[int | None, typer.Option(metavar="N", help="Random seed.", rich_help_panel=SAMPLING_PANEL)] = None
    stop: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT", help="End the answer before this text. Repeatable.", rich_help_panel=SAMPLING_PANEL
        ),
    ] = None
    reasoning_effort: Annotated[
        str | None,
        typer.Option(
            metavar="LEVEL", help="Reasoning: none, minimal, low, medium or high.", rich_help_panel=SAMPLING_PANEL
        ),
    ] = None

    def build_parameters(self) -> dict[str, object]:
        """The parameters of a request that have a value."""
        names = ("temperature", "top_p", "max_tokens", "seed", "stop", "reasoning_effort")
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value not in (None, [])}


@dataclass(frozen=True, slots=True)
class Connection:
    """An open connection.

    model: the one to ask.
    server: the one that this command has started, if it has.
    """

    client: ApiClient
    model: ListedModel
    server: LocalServer | None = None

    def explain(self, error: ApiError) -> str:
        """The error, or the last lines of the server if that is why."""
        failure = self.server.read_failure() if error.is_unreachable and self.server is not None else None
        return str(error) if failure is None else f"the server ended:\n{failure}"


def resolve_api_key(option: str | None) -> str | None:
    """The key to send: as given, else the first one that the environment tells servers to accept."""
    return option or os.environ.get("DRAGOMAN_API_KEY", "").partition(",")[0].strip() or None


@contextmanager
def connect(model: str | None, options: ConnectionOptions) -> Generator[Connection]:
    """Connect to the server of the options, of a URL in the place of MODEL, or to a new one that serves MODEL.

    Exits with code 2 where that fails, and says why.
    """
    url, name = options.url, model
    if url is None and model is not None and is_url(model):
        url, name = model, None
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
    model: str | None, api_key: str | None, *, port: int = 0, store: str = "none", shows_startup: bool = False
) -> Generator[LocalServer]:
    """As `start_server`. Exits with the server's code where it cannot start, after it has printed why."""
    try:
        with start_server(
            model, print_status, api_key=api_key, port=port, store=store, shows_startup=shows_startup
        ) as server:
            yield server
    except ServerFailed as error:
        raise typer.Exit(error.code or 2) from error


def choose_model(client: ApiClient, name: str | None) -> ListedModel:
    """The model of this name; None is the first one that the server lists. Raises ApiError."""

    models = client.list_models()
    if not models:
        raise ApiError(f"{client.url} lists no model")
    if name is None:
        return models[0]
    for model in models:
        if model.id == name:
            return model
    aliases = [alias for model in models if model.dragoman is not None for alias in model.dragoman.aliases]
    if any(fnmatchcase(name, alias) for alias in aliases):
        return ListedModel(name)
    raise ApiError(f"{client.url} has no model {name!r}; it has {', '.join(model.id for model in models)}")


def print_status(line: str) -> None:
    """Print a line that is not part of the answer."""
    typer.echo(line, err=True)


# A server for the duration of one command.

POLL_INTERVAL = 0.1
"""Seconds between two looks at /readyz."""
STOP_TIMEOUT = 10.0
"""Seconds until a server that does not stop is killed."""
DEATH_TIMEOUT = 0.5
"""Seconds from the loss of a connection to a server's end, at most."""
READ_TIMEOUT = 2.0
"""Seconds to wait for the last lines of a server that has ended; its own children may keep the pipe open."""
_CHILD = f"from {__name__} import end_with_parent; from dragoman.cli import main; end_with_parent(); main()"
_LOGGED = re.compile(r"\d{4}-\S+ \S+ (INFO|WARNING|ERROR|CRITICAL) \S+: (.*)")
_ADDRESS = re.compile(r"^Serving .* on (http://127\.0\.0\.1:\d+)")


class ServerFailed(Exception):
    """The server cannot serve its model.

    code: its exit code, or 1 while it still runs.
    """

    def __init__(self, code: int) -> None:
        super().__init__("the server cannot serve its model")
        self.code = code


class LocalServer:
    """A running server.

    url: where it listens, once it is ready.
    """

    def __init__(self, arguments: list[str]) -> None:
        """arguments: of `dragoman serve`."""
        self.url = ""
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._last_lines: deque[str] = deque(maxlen=20)
        # A Unix socket from the user's environment would conflict with --host and --port.
        environment = {name: value for name, value in os.environ.items() if name != "DRAGOMAN_UDS"}
        # -P: the working directory is the user's, and its modules are not to be imported.
        # Nothing is written to stdin. Its end tells the child that this process is gone, even if it was killed.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _CHILD, "serve", *arguments],
            env=environment,
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
            # Only `wait_until_ready` reads the queue: later lines would stay in it.
            if not self.url:
                self._lines.put(line)
        self._lines.put(None)

    def wait_until_ready(self, echo: Callable[[str], None], api_key: str | None, *, shows_startup: bool) -> None:
        """echo: prints what the server logs until it is ready, such as the progress of a download.

        shows_startup: echo also what it logs at level INFO before it listens.

        Raises:
            ServerFailed: it has ended, or its model cannot be loaded.
        """
        address = ""
        while True:
            try:
                # Without an address there is nothing to poll: only a line or the end can change anything.
                line = self._lines.get(timeout=POLL_INTERVAL if address else None)
            except queue.Empty:
                line = ""
            if line is None:
                raise ServerFailed(self._process.wait())
            greeting = _ADDRESS.match(line)
            address = greeting[1] if greeting else address
            logged = _LOGGED.match(line)
            if logged is None:
                # Errors come before the greeting, which is not for this command's user.
                is_echoed, text = not address, line
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
        """The last lines of a server that has ended by itself; None while it runs.

        Waits for a moment: a server that dies closes its connections first.
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
    has_failed = bool(models) and models[0].dragoman is not None and models[0].dragoman.state == "failed"
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
    """Serve MODEL while the block runs. Settings come from the environment and its file, as for `dragoman serve`.

    model: None serves the one of these settings. api_key: one that the server accepts, if the settings demand one.

    Raises:
        ServerFailed: the server cannot start; echo has printed why.
    """
    arguments = ["--host", "127.0.0.1", "--port", str(port), "--store", store]
    # A timeout of 0: the only client is this command, which stops the server when it waits for no answer.
    arguments += ["--log-level", "info", "--no-access-log", "--shutdown-timeout", "0"]
    # After `--`, so that a MODEL that begins with a dash is not taken for an option.
    server = LocalServer([*arguments, *([] if model is None else ["--", model])])
    try:
        server.wait_until_ready(echo, api_key, shows_startup=shows_startup)
        yield server
    finally:
        server.stop()


def end_with_parent() -> None:
    """End this process gracefully once its standard input is closed: the command that started it is gone."""

    def wait() -> None:
        # The parent writes nothing: the read returns at the end of the pipe.
        while os.read(0, 4096):
            pass
        # By a signal: this is not the main thread, and the graceful shutdown begins in the signal's handler.
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()
