"""A server of one process whose engine fails for good: the process replaces itself, and
clients wait or get errors that they can retry.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dragoman.engines.tiny import find_bundled_model

from .faulty_server import FATAL_LENGTH
from .multiprocess.processes import LOST, Workers, started

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="exec ends the process")

CLIENTS = 8
FATAL_PROMPT = {"prompt": [5] * FATAL_LENGTH, "max_tokens": 1}
ENDLESS = {"prompt": "Once", "max_tokens": 400, "ignore_eos": True, "stream": True}


@contextmanager
def running_faulty_server(folder: Path, *arguments: str, model: str = "tiny") -> Generator[Workers]:
    command = [sys.executable, "-m", "tests.launch.faulty_server", "serve", model]
    options = ("--port", "0", "--store", "none", "--api-profile", "vllm", "--no-access-log")
    path = os.pathsep.join(filter(None, sys.path))
    with started([*command, *options, *arguments], folder, {"PYTHONPATH": path}) as running:
        running.wait_until(lambda: running.get("/health")[0] == 200)
        yield running


def complete(running: Workers, **fields: Any) -> tuple[int, bytes]:
    return running.post("/v1/completions", {"temperature": 0, "max_tokens": 8, **fields})


def wait_until_replaced(running: Workers, count: int = 1) -> None:
    running.wait_until(
        lambda: (
            running.read_metric("dragoman:engine_restarts_total") == count
            and running.get("/health")[0] == 200
        )
    )


def count_outcomes(running: Workers, is_stopped: threading.Event, outcomes: Counter[str]) -> None:
    """Send requests until `is_stopped`; count their statuses and the ends of streams."""
    while not is_stopped.is_set():
        try:
            status, body = complete(running, **ENDLESS)
        except TimeoutError:
            outcomes["hung"] += 1
        except LOST:
            outcomes["lost"] += 1
        else:
            if status != 200:
                outcomes[str(status)] += 1
            elif b"[DONE]" in body:
                outcomes["done"] += 1
            else:
                outcomes["error" if b'"error"' in body else "cut"] += 1


def check_replacement_under_load(running: Workers) -> None:
    """Break the engine while clients use it, and check what they get."""
    expected = complete(running, prompt="Hello")
    assert expected[0] == 200
    outcomes = Counter[str]()
    is_stopped = threading.Event()
    threads = [
        threading.Thread(target=count_outcomes, args=(running, is_stopped, outcomes))
        for _ in range(CLIENTS)
    ]
    for thread in threads:
        thread.start()
    running.wait_until(lambda: running.read_metric("vllm:num_requests_running") > 0)
    status, body = running.post("/v1/completions", FATAL_PROMPT)
    assert status == 500, body
    # The request that breaks the model is not answered before the engine has failed.
    assert running.get("/health")[0] == 503
    wait_until_replaced(running)
    is_stopped.set()
    for thread in threads:
        thread.join()
    assert outcomes["error"] >= 1
    assert not outcomes.keys() & {"hung", "cut", "500"}, outcomes
    assert running.read_metric("dragoman:engine_up") == 1
    first, second = (json.loads(body) for _, body in (expected, complete(running, prompt="Hello")))
    assert first["choices"] == second["choices"]
    assert running.log.count("a new process replaces this one") == 1


def test_dead_engine_under_load_is_served_by_new_process(tmp_path: Path) -> None:
    with running_faulty_server(tmp_path) as running:
        check_replacement_under_load(running)
        assert running.stop() == 0


@pytest.mark.torch
def test_dead_torch_engine_under_load_is_served_again(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs torch and transformers")
    with running_faulty_server(tmp_path, model=f"transformers:{find_bundled_model()}") as running:
        check_replacement_under_load(running)


def test_each_dead_engine_waits_longer_before_replacement(tmp_path: Path) -> None:
    with running_faulty_server(tmp_path) as running:
        for count in (1, 2):
            assert running.post("/v1/completions", FATAL_PROMPT)[0] == 500
            wait_until_replaced(running, count)
        assert running.process.poll() is None


def test_new_process_rejects_requests_until_weights_are_sent(tmp_path: Path) -> None:
    update = {"model_path": str(find_bundled_model()), "weight_version": "step-3"}
    options = ("--weights-dir", str(find_bundled_model()))
    with running_faulty_server(tmp_path, *options) as running:
        status, body = running.post("/update_weights_from_disk", update)
        assert status == 200, body
        assert running.post("/v1/completions", FATAL_PROMPT)[0] == 500
        wait_until_replaced(running)
        status, body = complete(running, prompt="Hello")
        assert status == 503
        assert "step-3" in body.decode()
        assert running.post("/update_weights_from_disk", update)[0] == 200
        assert complete(running, prompt="Hello")[0] == 200


def test_signal_during_replacement_stops_server(tmp_path: Path) -> None:
    with running_faulty_server(tmp_path) as running:
        assert running.post("/v1/completions", FATAL_PROMPT)[0] == 500
        assert running.stop() in (0, -signal.SIGTERM)


def test_dead_engine_of_worker_replaces_worker(tmp_path: Path) -> None:
    with running_faulty_server(tmp_path, "--workers", "2") as running:
        former = running.pids
        assert running.post("/v1/completions", FATAL_PROMPT)[0] == 500
        running.wait_until_replaced(1, count=2)
        assert len(former.items() & running.pids.items()) == 1
        assert complete(running, prompt="Hello")[0] == 200
