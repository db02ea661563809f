"""A server for the duration of one command: a child process with `dragoman serve` on a
loopback port.
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
from typing import Literal

from .api_client import ApiClient, ApiError

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


_CHILD_CODE = f"from {__name__} import serve_child; serve_child()"
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
            [sys.executable, "-P", "-c", _CHILD_CODE, *arguments],
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


def serve_child() -> None:
    """Run `dragoman serve` in the child process, with the arguments of the process."""
    from .serve import run_server  # noqa: PLC0415 - only the child serves
    from .serve_command import build_serve_command  # noqa: PLC0415 - as above

    _end_with_parent()
    command = build_serve_command(run_server, os.environ, CHILD_SETTINGS)
    command(prog_name="dragoman serve")


def _end_with_parent() -> None:
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
