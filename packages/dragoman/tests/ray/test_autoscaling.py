"""Scaling up and down by load on a real cluster of this machine, behind Ray's proxy in
Python.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from .cluster import Cluster, run_cluster, wait_until

pytest.importorskip("ray.serve", reason="needs ray[serve]")

pytestmark = pytest.mark.ray

SETTINGS = """\
model: sim
served-model-name: sim
sim-output-tokens: "60"
ray:
  {cpus: 0.25, min-replicas: 2, max-replicas: 4, target-requests: 3, upscale-delay: 2, downscale-delay: 2, drain-timeout: 60,
   haproxy: false}
"""  # noqa: E501


@pytest.fixture(scope="module")
def cluster() -> Generator[Cluster]:
    with run_cluster(settings=SETTINGS) as cluster:
        yield cluster


def stream_story(client: httpx2.Client, text: str) -> str:
    """Stream an answer, check that it is complete, and return its id."""
    body = {"model": "sim", "input": text, "stream": True}
    with client.stream("POST", "/v1/responses", json=body) as answer:
        assert answer.status_code == 200, answer.read()
        events = [line for line in answer.iter_lines() if line.startswith("data: {")]
    last = json.loads(events[-1].removeprefix("data: "))
    assert last["type"] == "response.completed", last
    return last["response"]["id"]


def test_autoscaling_up_and_down_causes_no_errors(cluster: Cluster) -> None:
    # A Ray worker gets its name shortly after the replica answers.
    wait_until(lambda: len(cluster.list_replicas()) == 2)
    ids: list[str] = []
    may_stop = threading.Event()

    def stream_stories(number: int) -> None:
        with httpx2.Client(base_url=cluster.url, timeout=120) as client:
            while not may_stop.is_set():
                ids.append(stream_story(client, f"story {number}"))

    with ThreadPoolExecutor(10) as pool:
        running = [pool.submit(stream_stories, number) for number in range(10)]
        wait_until(
            lambda: len({id[5:11] for id in ids}) == 4 or any(story.done() for story in running)
        )
        may_stop.set()
        for story in running:
            story.result()
    # The ids contain the replicas that created them.
    assert len({id[5:11] for id in ids}) == 4
    with httpx2.Client(base_url=cluster.url, timeout=120) as client:
        # Two of the replicas stop while these run.
        with ThreadPoolExecutor(2) as pool:
            may_stop.clear()
            running = [pool.submit(stream_stories, number) for number in range(2)]
            wait_until(
                lambda: len(cluster.list_replicas()) == 2 or any(story.done() for story in running)
            )
            may_stop.set()
            for story in running:
                story.result()
        # Stored by a replica that has been stopped.
        assert {client.get(f"/v1/responses/{id}").status_code for id in ids} == {200}


def test_python_proxy_routes_by_session_header(cluster: Cluster) -> None:
    with httpx2.Client(base_url=cluster.url, timeout=120) as client:

        def find_replica(session: str) -> str:
            body = {"model": "sim", "input": "Hi", "max_output_tokens": 16}
            headers = {"x-session-id": session}
            return client.post("/v1/responses", json=body, headers=headers).json()["id"][5:11]

        found: list[set[str]] = []
        # A replica of the test before may still start or stop in the first rounds. Without
        # the header, a round succeeds once in 65,000.
        for _ in range(5):
            found = [{find_replica(str(session)) for _ in range(3)} for session in range(8)]
            if all(len(replicas) == 1 for replicas in found):
                break
    assert [len(replicas) for replicas in found] == [1] * 8
    assert len({replica for replicas in found for replica in replicas}) > 1
