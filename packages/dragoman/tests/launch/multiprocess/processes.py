"""Run a server with several worker processes, and clients that open a connection for
each request.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from types import MappingProxyType
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.loopback import MAX_POLLS, pause

TIMEOUT = 60.0
"""Seconds after which a client counts as hung."""
SHARES = "dragoman_worker_requests_total"
EMPTY: Mapping[str, str] = MappingProxyType({})
LOST = (OSError, HTTPException)
"""Errors of clients whose worker is killed."""


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class Client:
    """Sends requests to one address, each on a new connection and with a timeout for
    every read.
    """

    def __init__(self, address: str) -> None:
        self.address = address

    def connect(self) -> HTTPConnection:
        host, port = self.address.rsplit(":", 1)
        return HTTPConnection(host, int(port), timeout=TIMEOUT)

    def get(self, path: str, *, headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
        return self._ask("GET", path, None, headers)

    def post(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str] = EMPTY
    ) -> tuple[int, bytes]:
        return self._ask(
            "POST", path, json.dumps(body), {"content-type": "application/json", **headers}
        )

    def _ask(
        self, method: str, path: str, body: str | None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        with self.open(method, path, body, headers or EMPTY) as response:
            return response.status, response.read()

    @contextmanager
    def open(
        self, method: str, path: str, body: str | None, headers: Mapping[str, str]
    ) -> Generator[HTTPResponse]:
        """Open a response that is read incrementally."""
        connection = self.connect()
        try:
            connection.request(method, path, body, {**headers})
            yield connection.getresponse()
        finally:
            connection.close()

    def check_running(self) -> None:
        """Fail if the server has ended."""

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Poll until the condition is true. A request that is lost meanwhile is not an
        error.
        """
        for _ in range(MAX_POLLS):
            self.check_running()
            try:
                if condition():
                    return
            except LOST:
                pass
            pause()
        raise AssertionError("it has not happened")


class Workers(Client):
    """A running server.

    log: the file of its standard error.
    """

    def __init__(self, process: subprocess.Popen[str], address: str, log: Path) -> None:
        super().__init__(address)
        self.process = process
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def pids(self) -> dict[int, int]:
        """Return the process ids by worker number, the latest process of each."""
        found = re.findall(r"worker (\d+) is process (\d+)", self.log)
        return {int(number): int(pid) for number, pid in found}

    def kill(self, number: int) -> int:
        """Kill a worker and return its process id."""
        pid = self.pids[number]
        os.kill(pid, signal.SIGKILL)
        return pid

    def read_metrics(
        self, headers: Mapping[str, str] | None = None
    ) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """Return every sample of `/metrics` by its name and labels."""
        status, body = self.get("/metrics", headers=headers)
        assert status == 200
        families = text_string_to_metric_families(body.decode())
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
        }

    def read_metric(self, name: str, **labels: str) -> float:
        """Return the sum of the samples with this name and these labels."""
        return sum(
            value
            for (sample, own), value in self.read_metrics().items()
            if sample == name and labels.items() <= dict(own).items()
        )

    def check_running(self) -> None:
        assert self.process.poll() is None, self.log

    def wait_for_log(self, text: str, count: int = 1) -> None:
        for _ in range(MAX_POLLS):
            if self.log.count(text) >= count:
                return
            pause()
        raise AssertionError(self.log)

    def wait_until_replaced(self, restarts: int, count: int) -> None:
        self.wait_until(
            lambda: (
                self.read_metric("dragoman_worker_restarts_total") >= restarts
                and self.read_metric("dragoman_workers") == count
            )
        )

    def read_shares(self, headers: Mapping[str, str] | None = None) -> list[float]:
        """Return the number of requests that each worker has answered."""
        metrics = self.read_metrics(headers)
        found = {
            dict(key[1])["worker"]: value for key, value in metrics.items() if key[0] == SHARES
        }
        return [found[number] for number in sorted(found)]

    def ask_all(self, path: str, count: int = 2) -> None:
        """Request a path until each worker has answered; all must answer with 200."""
        before = self.read_shares()
        for _ in range(10**4):
            assert self.get(path)[0] == 200
            after = self.read_shares()
            if len(after) == count and all(
                new > old for new, old in zip(after, before, strict=True)
            ):
                return
        raise AssertionError(before)

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(TIMEOUT)


@contextmanager
def started(
    command: Sequence[str], folder: Path, environment: Mapping[str, str] = EMPTY
) -> Generator[Workers]:
    """Start a server and wait for its greeting. Its workers end with it."""
    log = folder / f"server-{len(list(folder.glob('server-*.log')))}.log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=folder,
            env={**os.environ, "XDG_STATE_HOME": str(folder), **environment},
        ) as process,
    ):
        try:
            assert process.stdout is not None
            greeting = process.stdout.readline()
            found = re.search(r"http://([0-9.]+:\d+)", greeting)
            assert found is not None, log.read_text()
            yield Workers(process, found[1], log)
        finally:
            if process.poll() is None:
                # The second signal stops at once.
                for _ in range(2):
                    process.terminate()


@contextmanager
def serving(
    folder: Path,
    *arguments: str,
    model: str = "scripted",
    count: int = 2,
    environment: Mapping[str, str] = EMPTY,
) -> Generator[Workers]:
    command = [sys.executable, "-m", "dragoman", "serve", model, "--port", "0", "--no-access-log"]
    with started([*command, "--workers", str(count), *arguments], folder, environment) as running:
        yield running


def chat(text: str = "[[say Hello.]]", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **fields}
