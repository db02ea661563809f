"""`dragoman deploy` on a real cluster of this machine: two replicas behind HAProxy,
which uses our router.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import signal
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from websockets.sync.client import connect

from .cluster import Cluster, run_cluster

pytest.importorskip("ray.serve", reason="needs ray[serve]")

pytestmark = pytest.mark.ray

SCRIPT = """\
- match: {contains: slowly}
  reply: [{text: "Once upon a time"}, {delay: 4}, {text: ", the end."}]
- match: {contains: forever}
  reply: [{text: "Once upon a time"}, {delay: 600}, {text: "."}]
- reply: Yes, indeed.
  repeat: true
"""
MODELS = """\
models:
  tiny: {model: tiny, pinned: true}
  sim: {model: sim, pinned: true, time-scale: 10, sim-output-tokens: "8"}
  script: {model: "scripted:SCRIPT", pinned: true}
ray: {cpus: 0.5, drain-timeout: 20}
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Generator[Cluster]:
    script = tmp_path_factory.mktemp("script") / "script.yaml"
    script.write_text(SCRIPT)
    with run_cluster("--replicas", "2", settings=MODELS.replace("SCRIPT", str(script))) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: Cluster) -> Generator[httpx2.Client]:
    with httpx2.Client(base_url=cluster.url, timeout=60) as client:
        yield client


@pytest.fixture
def direct_clients(cluster: Cluster) -> Generator[list[httpx2.Client]]:
    """Yield a client of each replica, without HAProxy."""
    clients = [httpx2.Client(base_url=url, timeout=60) for url in cluster.list_direct_urls()]
    yield clients
    for client in clients:
        client.close()


def post(client: httpx2.Client, path: str, **body: object) -> Any:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def say(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


@pytest.mark.parametrize("model", ["tiny", "sim", "script"])
def test_deploy_official_sdks_get_streamed_and_full_responses(cluster: Cluster, model: str) -> None:
    with openai.OpenAI(base_url=f"{cluster.url}/v1", api_key="-", max_retries=0) as client:
        chat = client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "Hi"}], max_tokens=8
        )
        assert chat.choices[0].message.content
        chunks = client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "Hi"}], max_tokens=8, stream=True
        )
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] in (
            "stop",
            "length",
        )
        response = client.responses.create(model=model, input="Hi", max_output_tokens=16)
        assert response.output_text
        events = list(
            client.responses.create(model=model, input="Hi", max_output_tokens=16, stream=True)
        )
        assert events[-1].type in ("response.completed", "response.incomplete")
    with anthropic.Anthropic(base_url=cluster.url, api_key="-", max_retries=0) as client:
        message = client.messages.create(
            model=model, max_tokens=8, messages=[{"role": "user", "content": "Hi"}]
        )
        assert message.content
        with client.messages.stream(
            model=model, max_tokens=8, messages=[{"role": "user", "content": "Hi"}]
        ) as stream:
            assert stream.get_final_message().stop_reason in ("end_turn", "max_tokens")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "Once"}),
        ("/api/chat", {"messages": [say("user", "Hi")], "stream": False}),
        ("/api/generate", {"prompt": "Hi", "stream": False}),
        ("/generate", {"inputs": "Hi"}),
        ("/v1/embeddings", {"input": "Hi"}),
        ("/tokenize", {"prompt": "Hi"}),
    ],
)
def test_deploy_serves_other_dialects(
    client: httpx2.Client, path: str, body: dict[str, object]
) -> None:
    assert post(client, path, model="tiny", **body)


def test_deploy_forwards_compressed_and_large_bodies(client: httpx2.Client) -> None:
    text = "word " * 20_000
    body = json.dumps({"model": "sim", "messages": [say("user", text)], "max_tokens": 2}).encode()
    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    answer = client.post("/v1/chat/completions", content=gzip.compress(body), headers=headers)
    assert answer.status_code == 200, answer.text
    # Longer than the prefix that the router reads.
    padded = body.replace(b"{", b"{" + b" " * 500_000, 1)
    answer = client.post(
        "/v1/chat/completions", content=padded, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 200, answer.text


def test_deploy_returns_error_responses_of_server(client: httpx2.Client) -> None:
    answer = client.post(
        "/v1/messages", json={"model": "none", "max_tokens": 1, "messages": [say("user", "x")]}
    )
    assert (answer.status_code, answer.json()["type"]) == (404, "error")
    assert (
        client.post(
            "/tokenize", content=b"{", headers={"content-type": "application/json"}
        ).status_code
        == 400
    )
    assert client.get("/v1/models", headers={"host": "evil.example"}).status_code == 421


SYSTEM = "You are an agent that edits files. " + " ".join(
    f"Rule {number}: keep every line short." for number in range(8)
)


def replay_agents(ask: Iterator[httpx2.Client], label: str) -> float:
    """Replay five conversations of four turns, one turn of each after the other. Return
    the share of cached tokens.
    """
    conversations = [
        [
            say("system", SYSTEM),
            say("user", f"{label}: task {number}. " + f"Look at file {number} first. " * 8),
        ]
        for number in range(5)
    ]
    cached = total = 0
    for _ in range(4):
        for messages in conversations:
            answer = post(
                next(ask), "/v1/chat/completions", model="tiny", messages=messages, max_tokens=4
            )
            usage = answer["usage"]
            cached += usage["prompt_tokens_details"]["cached_tokens"]
            total += usage["prompt_tokens"]
            messages.append(say("assistant", answer["choices"][0]["message"]["content"]))
            messages.append(say("user", "Now the next file. " * 8))
    return cached / total


def test_deploy_router_beats_round_robin_in_prefix_cache_hits(
    client: httpx2.Client, direct_clients: list[httpx2.Client]
) -> None:
    assert len(direct_clients) == 2
    round_robin = replay_agents(cycle(direct_clients), "in turns")
    routed = replay_agents(cycle([client]), "routed")
    print(
        f"share of prompt tokens from the prefix cache: routed {routed:.3f}, round robin "
        f"{round_robin:.3f}"
    )
    assert routed > round_robin + 0.1


def test_deploy_continuation_runs_on_replica_of_response(
    client: httpx2.Client,
) -> None:
    for number in range(4):
        text = f"Story {number}: " + "tell me more about the sea. " * 10
        first = post(client, "/v1/responses", model="tiny", input=text, max_output_tokens=16)
        second = post(
            client,
            "/v1/responses",
            model="tiny",
            input="Go on.",
            previous_response_id=first["id"],
            max_output_tokens=16,
        )
        assert second["id"][5:11] == first["id"][5:11]
        assert (
            second["usage"]["input_tokens_details"]["cached_tokens"]
            > first["usage"]["input_tokens"] / 2
        )


def test_deploy_conversation_stays_on_one_replica(client: httpx2.Client) -> None:
    conversation = post(client, "/v1/conversations")["id"]
    tags = {
        post(client, "/v1/responses", model="script", input=text, conversation=conversation)["id"][
            5:11
        ]
        for text in ("one", "two", "three")
    }
    assert tags == {conversation[5:11]}


def test_deploy_session_header_selects_replica(client: httpx2.Client) -> None:
    def find_tag(session: str, text: str) -> str:
        answer = client.post(
            "/v1/responses",
            json={"model": "script", "input": text},
            headers={"x-session-id": session},
        )
        return answer.json()["id"][5:11]

    tags = {
        session: {find_tag(session, text) for text in ("a", "b", "c")}
        for session in map(str, range(8))
    }
    assert all(len(found) == 1 for found in tags.values())
    assert len({tag for found in tags.values() for tag in found}) == 2


def test_stored_responses_are_read_from_both_replicas(
    client: httpx2.Client, direct_clients: list[httpx2.Client]
) -> None:
    response = post(client, "/v1/responses", model="script", input="Hi")
    for replica in direct_clients:
        assert replica.get(f"/v1/responses/{response['id']}").json()["output"] == response["output"]


def read_events(client: httpx2.Client, path: str) -> list[dict[str, Any]]:
    with client.stream("GET", path) as answer:
        return [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {")]


def test_deploy_background_response_streams_from_both_replicas(
    client: httpx2.Client, direct_clients: list[httpx2.Client]
) -> None:
    response = post(client, "/v1/responses", model="script", input="slowly", background=True)
    path = f"/v1/responses/{response['id']}"
    for replica in direct_clients:
        events = read_events(replica, f"{path}?stream=true&starting_after=2")
        assert events[0]["sequence_number"] == 3
        assert events[-1]["type"] == "response.completed"
    assert client.get(path).json()["status"] == "completed"


def test_deploy_background_response_cancel_via_other_replica(
    direct_clients: list[httpx2.Client],
) -> None:
    one, other = direct_clients
    response = post(one, "/v1/responses", model="script", input="forever", background=True)
    assert post(other, f"/v1/responses/{response['id']}/cancel")["status"] == "cancelled"
    assert one.get(f"/v1/responses/{response['id']}").json()["status"] == "cancelled"


def test_deploy_forwards_websocket(cluster: Cluster) -> None:
    address = cluster.url.replace("http", "ws") + "/v1/responses"
    # With a full queue of unread events, closing would wait ten seconds.
    with connect(address, max_queue=None, open_timeout=120) as socket:
        socket.send(json.dumps({"type": "response.create", "model": "script", "input": "Hi"}))
        types = [json.loads(socket.recv(30))["type"]]
        while types[-1] != "response.completed":
            types.append(json.loads(socket.recv(30))["type"])
        assert "response.output_text.delta" in types


def test_deploy_each_replica_exposes_metrics(direct_clients: list[httpx2.Client]) -> None:
    for replica in direct_clients:
        assert "vllm:num_requests_running" in replica.get("/metrics").text


def test_deploy_killed_replica_loses_no_stored_responses(cluster: Cluster) -> None:
    """The last test: the replica that replaces the killed one takes seconds to start."""

    has_begun = threading.Semaphore(0)

    def stream_story(number: int) -> tuple[str, list[str]]:
        """Return the id of the response, and the types of the events until the
        connection ended.
        """
        id = ""
        types = list[str]()
        body = {"model": "script", "input": f"slowly {number}", "background": True, "stream": True}
        with (
            contextlib.suppress(httpx2.HTTPError),
            httpx2.Client(base_url=cluster.url, timeout=60) as client,
            client.stream("POST", "/v1/responses", json=body) as answer,
        ):
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line[6:])
                    types.append(event["type"])
                    id = id or event["response"]["id"]
                    if (
                        types.count("response.output_text.delta") == 1
                        and types[-1] == "response.output_text.delta"
                    ):
                        has_begun.release()
        return id, types

    victim = cluster.list_replicas()[0]
    with ThreadPoolExecutor(12) as pool:
        running = [pool.submit(stream_story, number) for number in range(12)]
        assert all(has_begun.acquire(timeout=30) for _ in running)
        os.kill(victim, signal.SIGKILL)
        stories = [story.result() for story in running]
    assert all(id for id, _ in stories)
    ended = [types[-1] == "response.completed" for _, types in stories]
    # Ray closes the connections of the killed replica, and the other one continues.
    assert any(ended)
    assert not all(ended)
    with httpx2.Client(base_url=cluster.url, timeout=60) as client:
        for number in range(10):
            post(
                client,
                "/v1/chat/completions",
                model="script",
                messages=[say("user", f"after {number}")],
            )
        for id, types in stories:
            # The stream is resumed on the remaining replica, and ends there.
            events = read_events(client, f"/v1/responses/{id}?stream=true&starting_after=0")
            if types[-1] == "response.completed":
                assert events[-1]["type"] == "response.completed"
            else:
                assert events[-1]["type"] == "response.failed"
                assert "stopped while it generated" in events[-1]["response"]["error"]["message"]
