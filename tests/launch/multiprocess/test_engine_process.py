"""One engine process and several front ends: what they answer, and what remains when one of them is killed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from dragoman.engines.tiny import find_bundled_model
from dragoman.launch.multiprocess.supervisor import check_workers, has_engine_process
from dragoman.settings import Settings, SettingsError, load_settings

from .processes import EMPTY, LOST, TIMEOUT, Workers, started

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot fork")

ENDLESS = {"max_tokens": 20_000, "ignore_eos": True, "temperature": 0}
"""Longer than any test takes, unless it is killed."""


class FrontEnds(Workers):
    """A server with an engine process."""

    @property
    def engine_pid(self) -> int:
        return int(re.findall(r"engine is process (\d+)", self.log)[-1])

    def count_engines(self) -> int:
        return self.log.count("engine is process")

    def kill_engine(self) -> int:
        pid = self.engine_pid
        os.kill(pid, signal.SIGKILL)
        return pid

    def is_ready(self) -> bool:
        return all(self.get("/health")[0] == 200 for _ in range(8))

    def find_worker(self, client: Streaming) -> int:
        """The number of the worker that answers the client: the one that the server's access log names."""
        return client.worker


class Streaming:
    """A stream, and the number of the worker that answers it. first: the lines that have been read."""

    def __init__(self, response: HTTPResponse, worker: int) -> None:
        self.response, self.worker = response, worker

    def read_lines(self) -> Iterator[bytes]:
        while line := self.response.readline():
            yield line

    def read_first(self) -> None:
        """Read until the first event."""
        next(line for line in self.read_lines() if line.startswith(b"data:"))


@contextmanager
def sharing(
    folder: Path, *arguments: str, model: str = "tiny", count: int = 2, environment: Mapping[str, str] = EMPTY
) -> Generator[FrontEnds]:
    options = ("--port", "0", "--no-access-log", "--api-server-count", str(count), "--api-profile", "vllm")
    command = [sys.executable, "-m", "dragoman", "serve", model, *options, *arguments]
    with started(command, folder, environment) as running:
        yield FrontEnds(running.process, running.address, folder / sorted(folder.glob("server-*.log"))[-1].name)


def ask(text: str = "Tell me a story.", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **fields}


@contextmanager
def streaming(running: FrontEnds, path: str, body: Mapping[str, Any]) -> Generator[Streaming]:
    """A stream that has begun."""
    connection = running.connect()
    try:
        connection.request("POST", path, json.dumps({**body, "stream": True}), {"content-type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        stream = Streaming(response, 0)
        stream.read_first()
        yield stream
    finally:
        connection.close()


def test_front_ends_share_one_engine_and_answer_alike(tmp_path: Path) -> None:
    with sharing(tmp_path, "--store", "none") as running:
        body = ask(max_tokens=12, seed=3, temperature=1.3, logprobs=True)
        before = running.read_shares()
        answers: list[dict[str, Any]] = []
        while len(answers) < 4 or not all(new > old for new, old in zip(running.read_shares(), before, strict=True)):
            status, answer = running.post("/v1/chat/completions", body)
            assert status == 200, answer
            answers.append(json.loads(answer))
        assert len({json.dumps(answer["choices"]) for answer in answers}) == 1
        # The second is a hit, whichever front end it came from.
        assert all(answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0 for answer in answers[1:]) or (
            answers[0]["usage"]["prompt_tokens"] < 16
        )
        metrics = running.read_metrics()
        totals = {name: sum(value for (own, _), value in metrics.items() if own == name) for name, _ in metrics}
        assert totals["dragoman_workers"] == 2
        assert totals["dragoman_engine_processes"] == 1
        assert totals["dragoman_engine_restarts_total"] == 0
        assert totals["vllm:generation_tokens_total"] == 12 * len(answers)
        assert totals["vllm:request_success_total"] == len(answers)
        assert totals["vllm:num_requests_running"] == totals["vllm:num_requests_waiting"] == 0
        assert totals["vllm:kv_cache_usage_perc"] == 0.0
        assert running.count_engines() == 1
        pids = [*running.pids.values(), running.engine_pid]
        assert running.stop() == 0
        assert not any(map(is_running, pids))


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
