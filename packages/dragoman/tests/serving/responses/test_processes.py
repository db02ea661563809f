"""Several server processes on one store, and servers that are killed."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import settings

from dragoman_check.rules.responses import check_stream

from .processes import Process, serving

ASK: dict[str, Any] = {"model": "scripted", "input": "hi"}
SLOW: dict[str, Any] = {"model": "scripted", "input": "slowly", "background": True}
ENDS = ("completed", "incomplete", "failed", "cancelled")


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return (
        f"sqlite:{tmp_path / 'store.db'}"
        if request.param == "sqlite"
        else request.getfixturevalue("postgres")
    )


async def test_two_processes_share_responses_and_conversations(store: str, tmp_path: Path) -> None:
    async with (
        serving(store, tmp_path) as one,
        serving(store, tmp_path) as two,
        one.http() as a,
        two.http() as b,
    ):
        first = (await a.post("/v1/responses", json=ASK)).json()
        assert (await b.get(f"/v1/responses/{first['id']}")).json() == first
        second = (
            await b.post("/v1/responses", json={**ASK, "previous_response_id": first["id"]})
        ).json()
        assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]
        conversation = (await a.post("/v1/conversations", json={})).json()["id"]
        for client in (a, b, a):
            assert (
                await client.post("/v1/responses", json={**ASK, "conversation": conversation})
            ).status_code == 200
        items = (await b.get(f"/v1/conversations/{conversation}/items?order=asc")).json()["data"]
        assert [item["role"] for item in items] == ["user", "assistant"] * 3
        deletions = [
            client.delete(f"/v1/responses/{first['id']}") for client in (a, b) for _ in range(10)
        ]
        assert (
            sorted(done.status_code for done in await asyncio.gather(*deletions))
            == [200] + [404] * 19
        )


async def test_killed_process_background_run_failed_by_other_process(
    store: str, tmp_path: Path
) -> None:
    async with serving(store, tmp_path) as one, serving(store, tmp_path) as two, two.http() as b:
        async with one.http() as a:
            id = (await a.post("/v1/responses", json=SLOW)).json()["id"]
            stream = await read_beginning(a, id)
        followed = asyncio.create_task(b.get(f"/v1/responses/{id}?stream=true"))
        one.kill()
        rest = (await followed).content
        assert rest.startswith(stream)
        assert check_stream(rest)[-1]["response"]["status"] == "failed"
        assert (await b.get(f"/v1/responses/{id}")).json() == check_stream(rest)[-1]["response"]


async def read_beginning(client: httpx2.AsyncClient, id: str) -> bytes:
    """Return the first events, up to the first text."""
    received = b""
    async with client.stream("GET", f"/v1/responses/{id}?stream=true") as answer:
        async for piece in answer.aiter_bytes():
            received += piece
            if b"output_text.delta" in received and received.endswith(b"\n\n"):
                break
    return received


class AcknowledgedResponses:
    """Records acknowledged responses: complete objects, and background runs."""

    def __init__(self) -> None:
        self.whole: dict[str, bytes] = {}
        self.runs: set[str] = set()
        self._changed = asyncio.Event()

    async def wait_for_each(self) -> None:
        """Wait until one of each is acknowledged."""
        async with asyncio.timeout(60):
            while not (self.whole and self.runs):
                self._changed.clear()
                await self._changed.wait()

    async def load(self, client: httpx2.AsyncClient, worker: int) -> None:
        """Send requests until the server has died."""
        previous: str | None = None
        for turn in range(10_000):
            body = {**ASK, "previous_response_id": previous if turn % 5 else None}
            try:
                match (turn + worker) % 3:
                    case 0:
                        answer = (await client.post("/v1/responses", json=body)).content
                    case 1:
                        stream = (
                            await client.post("/v1/responses", json={**body, "stream": True})
                        ).content
                        answer = last_object(stream)
                    case _:
                        answer = (
                            await client.post("/v1/responses", json={**body, "background": True})
                        ).content
                        self.runs.add(json.loads(answer)["id"])
                        self._changed.set()
                        continue
            except (httpx2.HTTPError, ValueError):
                return
            stored: dict[str, Any] = json.loads(answer)
            previous = stored["id"]
            self.whole[stored["id"]] = answer
            self._changed.set()

    async def check(self, client: httpx2.AsyncClient, most: int) -> None:
        """Check that nothing is lost or damaged, and that every run has ended.

        most: how many of each to check.
        """
        for id, whole in list(self.whole.items())[-most:]:
            assert (await client.get(f"/v1/responses/{id}")).content == whole
        for id in list(self.runs)[-most:]:
            stored = (await client.get(f"/v1/responses/{id}")).json()
            assert stored["status"] in ENDS
            events = check_stream((await client.get(f"/v1/responses/{id}?stream=true")).content)
            assert events[-1]["response"] == stored


def last_object(stream: bytes) -> bytes:
    """Return the last event's object. Raises ValueError if the stream was truncated."""
    if not stream.endswith(b"data: [DONE]\n\n"):
        raise ValueError
    last = stream.split(b"\n\n")[-3]
    return last[last.index(b'"response":') + len(b'"response":') : -1]


async def kill_under_load(process: Process, memory: AcknowledgedResponses, seconds: float) -> None:
    async with process.http() as client:
        load = [asyncio.create_task(memory.load(client, worker)) for worker in range(6)]
        await asyncio.sleep(seconds)
        # On a busy machine nothing may be acknowledged yet.
        await memory.wait_for_each()
        process.kill()
        await asyncio.gather(*load)


async def survive(kills: int, folder: Path) -> AcknowledgedResponses:
    rng = random.Random(7)
    memory = AcknowledgedResponses()
    store = f"sqlite:{folder / 'store.db'}"
    for _ in range(kills):
        async with serving(store, folder) as process:
            async with process.http() as client:
                await memory.check(client, 20)
            await kill_under_load(process, memory, rng.uniform(0.05, 0.4))
    async with serving(store, folder) as process, process.http() as client:
        await memory.check(client, 10_000)
    return memory


async def test_killed_server_keeps_acknowledged_responses(tmp_path: Path) -> None:
    memory = await survive(2, tmp_path)
    assert memory.whole
    assert memory.runs


@pytest.mark.long
async def test_server_killed_fifty_times_keeps_acknowledged_responses(tmp_path: Path) -> None:
    kills = 15 if settings.get_current_profile_name() == "ci" else 50
    memory = await survive(kills, tmp_path)
    assert len(memory.whole) > 2 * kills
    assert len(memory.runs) > kills
