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

POLL_INTERVAL = 0.1
"""Seconds between two looks at /readyz."""
STOP_TIMEOUT = 10.0
"""Seconds until a server that does not stop is killed."""
_CHILD = f"from {__name__} import end_with_parent; from dragoman.cli import main; end_with_parent(); main()"
_ADDRESS = re.compile(r"^Serving .* on (http://127\.0\.0\.1:\d+)")


class ServerFailed(Exception):
    """The server has ended before it was ready.

    code: its exit code.
    """

    def __init__(self, code: int) -> None:
        super().__init__(f"the server ended with exit code {code} before it was ready")
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
        environment = {name: value for name, value in os.environ.items() if name != "DRAGOMAN_UDS"}
        # -P: the working directory is the user's, and its modules are not to be imported.
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
        threading.Thread(target=self._read_lines, daemon=True).start()

    def _read_lines(self) -> None:
        for line in self._process.stdout or ():
            self._last_lines.append(line)
            if not self.url:
                self._lines.put(line)
        self._lines.put(None)

    def wait_until_ready(self, echo: Callable[[str], None], api_key: str | None) -> None:
        """echo: prints what the server says until it is ready, such as the progress of a download.

        Raises:
            ServerFailed: it has ended.
        """
        address = ""
        while True:
            try:
                line = self._lines.get(timeout=POLL_INTERVAL if address else None)
            except queue.Empty:
                line = ""
            if line is None:
                raise ServerFailed(self._process.wait())
            found = _ADDRESS.match(line)
            address = found[1] if found else address
            if line and not found and not line.startswith("Try: "):
                echo(line.rstrip("\n"))
            if address and _is_ready(address, api_key):
                self.url = address
                return

    def read_failure(self) -> str | None:
        """The last lines of a server that has ended by itself; None while it runs."""
        return None if self._process.poll() is None else "".join(self._last_lines)

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()


def _is_ready(url: str, api_key: str | None) -> bool:
    from .api_client import ApiClient, ApiError  # noqa: PLC0415 - the server's process does not need it

    with ApiClient(url, api_key) as client:
        try:
            return client.is_ready()
        except ApiError:
            return False


@contextmanager
def start_server(
    model: str | None,
    echo: Callable[[str], None],
    *,
    api_key: str | None = None,
    store: str = "none",
    port: int = 0,
    log_level: str = "warning",
) -> Generator[LocalServer]:
    """Serve MODEL while the block runs. Settings come from the environment and its file, as for `dragoman serve`.

    model: None serves the one of these settings. api_key: one that the server accepts, if the settings demand one.

    Raises:
        ServerFailed: the server cannot start; echo has printed why.
    """
    arguments = ["--host", "127.0.0.1", "--port", str(port), "--store", store, "--log-level", log_level]
    arguments += ["--no-access-log", "--shutdown-timeout", "0"]
    server = LocalServer([*arguments, *([] if model is None else ["--", model])])
    try:
        server.wait_until_ready(echo, api_key)
        yield server
    finally:
        server.stop()


def end_with_parent() -> None:
    """End this process gracefully once its standard input is closed: the command that started it is gone."""

    def wait() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()
