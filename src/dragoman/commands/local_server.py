"""A server for the duration of one command: `dragoman serve` in a process of its own, on a loopback port.

It is a process so that the libraries of an engine cannot write into the command's output, and so that Ctrl-C reaches
the command alone. It ends with the command, however that ends.
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
            found = _ADDRESS.match(line)
            address = found[1] if found else address
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
    from .api_client import ApiClient, ApiError  # noqa: PLC0415 - the server's process does not need it

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
