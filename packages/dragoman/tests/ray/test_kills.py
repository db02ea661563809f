"""Replicas, routers and proxies that are killed under load: no acknowledged response is
lost, and no client hangs.

TEST_KILLS=1000 make test-ray RAY_MARKS="ray and long" TEST_ARGS="-s
tests/ray/test_kills.py"
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter

import pytest
from tests.launch.multiprocess.load import Load, is_settled, read_response, start_endless
from tests.store.cluster import MISSING, programs
from tests.store.cluster import cluster as run_postgresql

from .cluster import Cluster, run_cluster, wait_until

pytest.importorskip("ray.serve", reason="needs ray[serve]")

pytestmark = pytest.mark.ray

KILLS = int(os.environ.get("TEST_KILLS", "40"))
SETTINGS = "model: scripted\nno-auth: true\nray: {cpus: 0.1, drain-timeout: 5}\n"
OTHERS = (
    "DragomanRouter",
    "haproxy -db",
    "ray::HAProxyManager",
    "ray::ProxyActor",
    "ray::ServeController",
)


def is_refusal(status: int, answer: bytes) -> bool:
    """Whether HAProxy has no replica, no router to ask, or, after a restart of its
    manager, no configuration yet.
    """
    return status in (500, 502, 503, 504) or (status == 404 and answer.startswith(b"Path '"))


def kill_processes(kills: int, count: int, *, others_every: int, store: str | None = None) -> None:
    """Kill replicas one after another under load, and check what is stored.

    others_every: every so many kills, another process of the cluster is killed.
    """
    rng = random.Random(16)
    settings = SETTINGS + (f"store: {store}\n" if store else "")
    environment = {"RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1"}
    with run_cluster(
        "--replicas", str(count), settings=settings, environment=environment
    ) as cluster:
        client = cluster.client
        endless = list[str]()
        killed = Counter[str]()
        with Load(client, is_refusal) as load:
            for number in range(kills):
                # Replicas have served requests between two kills.
                before = len(load.acknowledged)
                wait_until(
                    lambda before=before: len(load.acknowledged) > before or bool(load.problems)
                )
                assert not load.problems, load.problems
                if number % 5 == 0:
                    endless.append(start_endless(client, is_refusal))
                if number % others_every == others_every - 1:
                    title = OTHERS[number // others_every % len(OTHERS)]
                    victims = wait_until(lambda title=title: cluster.list_processes(title))
                else:
                    title = "Dragoman"
                    victims = wait_until(
                        lambda: ready if len(ready := cluster.list_ready()) > 1 else []
                    )
                os.kill(rng.choice(victims), signal.SIGKILL)
                killed[title] += 1
        replace_all(cluster)
        for id in endless:
            client.wait_until(lambda id=id: is_settled(client, id))
            assert read_response(client, id)["status"] == "failed"
        load.check_stored()
        assert len(load.acknowledged) > kills
        assert sum(killed.values()) == kills
        print(
            f"{dict(killed)}: {len(load.acknowledged)} acknowledged, {len(load.background)} in "
            f"the background"
        )
        print(dict(load.outcomes))


def replace_all(cluster: Cluster) -> None:
    """Kill each replica, one after the other, which ends its requests."""
    for id in cluster.list_ready():
        wait_until(lambda: len(cluster.list_ready()) > 1)
        os.kill(id, signal.SIGKILL)
    wait_until(lambda: len(cluster.list_ready()) > 1)


def test_two_replicas_killed_under_load_lose_no_responses() -> None:
    kill_processes(4, 2, others_every=4)


@pytest.mark.long
def test_four_replicas_killed_repeatedly_lose_no_responses() -> None:
    kill_processes(KILLS, 4, others_every=10)


@pytest.mark.long
def test_replicas_on_postgresql_killed_lose_no_responses() -> None:
    pytest.importorskip("asyncpg")
    found = programs()
    if found is None:
        pytest.skip(MISSING)
    with run_postgresql(found) as dsn:
        kill_processes(KILLS, 4, others_every=10, store=dsn)
