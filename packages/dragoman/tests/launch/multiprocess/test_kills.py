"""Workers that are killed or stand still under load: no acknowledged response is lost,
no client hangs, all work ends, and a revoked key is refused.

TEST_KILLS=1000 pytest -m long tests/launch/multiprocess/test_kills.py
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest
from tests.store.cluster import MISSING, cluster, programs

from dragoman.tenants import KeyHash, Tenant, edit_key_file, hash_key

from .load import Load, is_settled, read_response, start_endless
from .processes import LOST, TIMEOUT, Client, serving

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot fork")

KILLS = int(os.environ.get("TEST_KILLS", "50"))


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


class KeyClient(Client):
    """Sends a key with every request.

    timeout: seconds for every read.
    """

    def __init__(self, address: str, key: str, timeout: float = TIMEOUT) -> None:
        super().__init__(address)
        self._key = key
        self._timeout = timeout

    def connect(self) -> HTTPConnection:
        connection = super().connect()
        connection.timeout = self._timeout
        return connection

    @contextmanager
    def open(
        self, method: str, path: str, body: str | None, headers: Mapping[str, str]
    ) -> Generator[HTTPResponse]:
        keyed = {**headers, "authorization": f"Bearer {self._key}"}
        with super().open(method, path, body, keyed) as response:
            yield response


REVOCATION_SECONDS = float(os.environ.get("TEST_REVOCATION_SECONDS", "2"))
"""Time in which a revocation must take effect, on a machine whose cores suffice for the
workers that start meanwhile.
"""
DISTURBED = 3
"""Workers that are killed or stopped at once, half of all."""
REVOCATION_GUARD = 120
"""Seconds after which a key that is not refused fails the test."""

PROBE_TIMEOUT = 2.0
PROBES = 16
"""Successive refusals after which a revocation has reached all workers, of which the
system chooses one for each request.
"""


def revoke_while_disturbed(
    folder: Path, rounds: int, count: int, at_once: int
) -> tuple[Load, list[float]]:
    """Kill and stop workers under load, revoke a key each time, and return the load and
    the seconds after which the last request with the key was accepted.

    count: number of workers.
    at_once: number of workers that each round kills or stops.
    """
    chance = random.Random(17)
    delays: list[float] = []
    keys = folder / "keys.yaml"

    def add(tenants: dict[str, Tenant]) -> None:
        for name in ("load", *(f"k{number}" for number in range(rounds))):
            role = "admin" if name == "load" else "user"
            tenants[name] = Tenant(secrets=(KeyHash(hash_key(name)),), role=role)

    def revoke(name: str, tenants: dict[str, Tenant]) -> None:
        del tenants[name]

    edit_key_file(keys, add)
    with serving(folder, "--keys-file", str(keys), count=count) as running:
        admin = KeyClient(running.address, "load")
        headers = {"authorization": "Bearer load"}

        def is_whole(restarts: int) -> bool:
            metrics = running.read_metrics(headers)
            total = metrics["dragoman_worker_restarts_total", frozenset[tuple[str, str]]()]
            return total >= restarts and metrics["dragoman_workers", frozenset()] == count

        with Load(admin) as load:
            for number in range(rounds):
                revoked = f"k{number}"
                probe = KeyClient(running.address, revoked, PROBE_TIMEOUT)
                running.wait_until(lambda probe=probe: probe.get("/v1/models")[0] == 200)
                signals = {
                    worker: chance.choice((signal.SIGKILL, signal.SIGSTOP))
                    for worker in chance.sample(range(count), at_once)
                }
                pids = running.pids
                for worker, sent in signals.items():
                    os.kill(pids[worker], sent)
                    load.outcomes[sent.name] += 1
                edit_key_file(keys, partial(revoke, revoked))
                running.process.send_signal(signal.SIGHUP)
                delays.append(measure_revocation(probe))
                running.wait_until(lambda number=number: is_whole((number + 1) * at_once))
                assert not load.problems, load.problems
        load.check_stored()
        assert running.stop() == 0
    return load, delays


def measure_revocation(probe: Client) -> float:
    """Return the seconds after which the last request was sent that was accepted.

    Raises:
        AssertionError: a key that is never refused.
    """
    started = time.monotonic()
    accepted = 0.0
    refusals = 0
    while refusals < PROBES:
        sent = time.monotonic() - started
        assert sent < REVOCATION_GUARD, "the revoked key is still accepted, or nothing answers"
        # A stopped worker answers nothing until it is replaced.
        with suppress(*LOST):
            status = probe.get("/v1/models")[0]
            assert status in (200, 401)
            refusals = 0 if status == 200 else refusals + 1
            accepted = sent if status == 200 else accepted
    return accepted


@pytest.mark.long
def test_revocation_reaches_all_healthy_workers(tmp_path: Path) -> None:
    rounds = -(-KILLS // DISTURBED)
    load, delays = revoke_while_disturbed(tmp_path, rounds, 2 * DISTURBED, DISTURBED)
    delays.sort()
    print(
        f"{rounds * DISTURBED} kills and stops: {len(load.acknowledged)} acknowledged, "
        f"{len(load.background)} in the background, {dict(load.outcomes)}; revocation after "
        f"{delays[rounds // 2]:.2f} s (p50), {delays[rounds * 99 // 100]:.2f} s (p99), "
        f"{delays[-1]:.2f} s (most)"
    )
    assert delays[-1] < REVOCATION_SECONDS


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
