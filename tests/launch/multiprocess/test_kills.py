"""Workers that are killed under load: nothing that was acknowledged is lost, no client hangs, and all work settles.

TEST_KILLS=1000 pytest -m long tests/launch/multiprocess/test_kills.py
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.store.cluster import MISSING, cluster, programs

from .processes import LOST, TIMEOUT, Workers, serving

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot fork")

SETTLED = frozenset({"completed", "failed", "cancelled", "incomplete"})
KILLS = int(os.environ.get("TEST_KILLS", "40"))
CLIENTS = 4


class Load:
    """Clients that store responses of known texts until they are stopped.

    acknowledged: texts by the id of a response whose end a client has seen.
    background: texts by the id of a response that was accepted, and is generated without a client.
    problems: statuses other than 200, and requests that hung.
    """

    def __init__(self, running: Workers) -> None:
        self._running, self._is_stopped = running, threading.Event()
        self.acknowledged: dict[str, str] = {}
        self.background: dict[str, str] = {}
        self.problems: list[str] = []
        self.outcomes: Counter[str] = Counter()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(CLIENTS)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_stopped.set()
        for thread in self._threads:
            thread.join()

    def _run(self, client: int) -> None:
        steps = (self._store, self._stream, self._start_background)
        previous: str | None = None
        number = 0
        while not self._is_stopped.is_set():
            text = f"Text {client} {number}."
            try:
                found = steps[number % len(steps)](text, previous)
                previous = found or previous
            except TimeoutError:
                self.problems.append(f"{text} hung")
                return
            except LOST:
                self.outcomes["lost"] += 1
            except BaseException as error:
                self.problems.append(f"{text} {error!r}")
                return
            number += 1

    def _ask(self, body: dict[str, Any]) -> bytes:
        status, answer = self._running.post("/v1/responses", body)
        self.outcomes[str(status)] += 1
        assert status == 200, answer
        return answer

    def _store(self, text: str, previous: str | None) -> str:
        answer = json.loads(self._ask({"input": f"[[say {text}]]", "previous_response_id": previous}))
        self.acknowledged[answer["id"]] = text
        return answer["id"]

    def _stream(self, text: str, previous: str | None) -> str | None:
        answer = self._ask({"input": f"[[say {text}]]", "previous_response_id": previous, "stream": True})
        for line in answer.splitlines():
            if line.startswith(b"data: ") and (event := json.loads(line[6:]))["type"] == "response.completed":
                self.acknowledged[event["response"]["id"]] = text
                return event["response"]["id"]
        raise AssertionError(answer)

    def _start_background(self, text: str, _: str | None) -> None:
        answer = json.loads(self._ask({"input": f"[[say {text}]]", "background": True}))
        self.background[answer["id"]] = text


def read_response(running: Workers, id: str) -> dict[str, Any]:
    status, answer = running.get(f"/v1/responses/{id}")
    assert status == 200, (id, answer)
    return json.loads(answer)


def read_text(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item["content"])


def is_settled(running: Workers, id: str) -> bool:
    return read_response(running, id)["status"] in SETTLED


def start_endless(running: Workers) -> str:
    """A response in the background that ends only with its worker."""
    while True:
        try:
            status, answer = running.post(
                "/v1/responses", {"input": "[[say One]] [[delay 3600]] [[say two.]]", "background": True}
            )
        except LOST:
            continue
        assert status == 200, answer
        return json.loads(answer)["id"]


def kill_workers(folder: Path, kills: int, count: int, *options: str) -> Load:
    """Kill workers one after another under load, and check what is stored behind it."""
    chance = random.Random(16)
    with serving(folder, *options, count=count) as running:
        with Load(running) as load:
            endless: list[str] = []
            for number in range(kills):
                endless.append(start_endless(running))
                running.kill(chance.randrange(count))
                running.wait_until_replaced(number + 1, count)
                assert not load.problems, load.problems
        assert not load.problems, load.problems
        # Those that still run end with their workers.
        for number in range(count):
            running.kill(number)
        running.wait_until_replaced(kills + count, count)
        for id in endless:
            running.wait_until(lambda id=id: is_settled(running, id))
            assert read_response(running, id)["status"] == "failed"
        for id, text in load.acknowledged.items():
            response = read_response(running, id)
            assert (response["status"], read_text(response)) == ("completed", text)
        for id, text in load.background.items():
            running.wait_until(lambda id=id: is_settled(running, id))
            response = read_response(running, id)
            assert response["status"] == "failed" or read_text(response) == text
        assert len(load.acknowledged) > kills
        assert running.read_metric("dragoman_worker_restarts_total") == kills + count
        assert running.stop() == 0
    return load


def test_workers_killed_under_load_lose_nothing(tmp_path: Path) -> None:
    kill_workers(tmp_path, 4, 2)


def test_workers_that_share_postgresql_lose_nothing(tmp_path: Path) -> None:
    pytest.importorskip("asyncpg")
    found = programs()
    if found is None:
        pytest.skip(MISSING)
    with cluster(found) as dsn:
        kill_workers(tmp_path, 2, 2, "--store", dsn)


@pytest.mark.long
def test_four_workers_killed_again_and_again_lose_nothing(tmp_path: Path) -> None:
    load = kill_workers(tmp_path, KILLS, 4)
    print(f"{KILLS} kills: {len(load.acknowledged)} acknowledged, {len(load.background)} in the background")
    print(dict(load.outcomes))


def test_a_follower_of_a_response_whose_worker_dies_sees_it_fail(tmp_path: Path) -> None:
    with serving(tmp_path) as running:
        id = start_endless(running)
        for number in range(2):
            running.kill(number)
        running.wait_until_replaced(2, 2)
        status, stream = running.get(f"/v1/responses/{id}?stream=true")
        assert status == 200
        events = [json.loads(line[6:])["type"] for line in stream.splitlines() if line.startswith(b"data: {")]
        assert events[0] == "response.created"
        assert events[-1] == "response.failed"


def test_a_response_is_cancelled_by_a_worker_that_does_not_run_it(tmp_path: Path) -> None:
    with serving(tmp_path) as running:
        ids = [start_endless(running) for _ in range(6)]
        for id in ids:
            status, answer = running.post(f"/v1/responses/{id}/cancel", {})
            assert (status, json.loads(answer)["status"]) == (200, "cancelled")
        # The worker that runs one notices within seconds, and then nothing is left to wait for.
        running.wait_until(lambda: running.read_metric("vllm:num_requests_running") == 0)
        assert running.process.poll() is None
        running.process.terminate()
        assert running.process.wait(TIMEOUT) == 0
