"""Workers that are killed under load: no acknowledged response is lost, no client
hangs, and all work ends.

TEST_KILLS=1000 pytest -m long tests/launch/multiprocess/test_kills.py
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

import pytest
from tests.store.cluster import MISSING, cluster, programs

from .load import Load, is_settled, read_response, start_endless
from .processes import TIMEOUT, serving

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot fork")

KILLS = int(os.environ.get("TEST_KILLS", "40"))


def kill_workers(folder: Path, kills: int, count: int, *options: str) -> Load:
    """Kill workers one after another under load, and check what is stored."""
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
        load.check_stored()
        assert len(load.acknowledged) > kills
        assert running.read_metric("dragoman_worker_restarts_total") == kills + count
        assert running.stop() == 0
    return load


def test_workers_killed_under_load_lose_no_responses(tmp_path: Path) -> None:
    kill_workers(tmp_path, 4, 2)


def test_killed_workers_sharing_postgresql_lose_no_responses(tmp_path: Path) -> None:
    pytest.importorskip("asyncpg")
    found = programs()
    if found is None:
        pytest.skip(MISSING)
    with cluster(found) as dsn:
        kill_workers(tmp_path, 2, 2, "--store", dsn)


@pytest.mark.long
def test_four_workers_killed_repeatedly_lose_no_responses(tmp_path: Path) -> None:
    load = kill_workers(tmp_path, KILLS, 4)
    print(
        f"{KILLS} kills: {len(load.acknowledged)} acknowledged, {len(load.background)} in the "
        f"background"
    )
    print(dict(load.outcomes))


def test_follower_receives_response_failed_when_worker_dies(tmp_path: Path) -> None:
    with serving(tmp_path) as running:
        id = start_endless(running)
        for number in range(2):
            running.kill(number)
        running.wait_until_replaced(2, 2)
        status, stream = running.get(f"/v1/responses/{id}?stream=true")
        assert status == 200
        events = [
            json.loads(line[6:])["type"]
            for line in stream.splitlines()
            if line.startswith(b"data: {")
        ]
        assert events[0] == "response.created"
        assert events[-1] == "response.failed"


def test_response_cancel_through_another_worker_succeeds(tmp_path: Path) -> None:
    with serving(tmp_path) as running:
        ids = [start_endless(running) for _ in range(6)]
        for id in ids:
            status, answer = running.post(f"/v1/responses/{id}/cancel", {})
            assert (status, json.loads(answer)["status"]) == (200, "cancelled")
        # The worker that runs one notices within seconds.
        running.wait_until(lambda: running.read_metric("vllm:num_requests_running") == 0)
        assert running.process.poll() is None
        running.process.terminate()
        assert running.process.wait(TIMEOUT) == 0
