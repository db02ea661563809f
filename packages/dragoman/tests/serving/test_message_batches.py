"""Anthropic's message batches, with the official SDK."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic.types.messages import MessageBatch
from tests.serving.background_server import run_background_server
from tests.serving.harness import FixedClock, ServerHarness
from tests.serving.test_batches import ManualClock

from dragoman.serving.serving_options import ServingOptions
from dragoman.store import Change, MemoryStore, Replace, SqliteStore


def sdk(it: ServerHarness, key: str = "none") -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(
        api_key=key, base_url="http://localhost", http_client=it.http(), max_retries=0
    )


def request(id: str, content: str = "hello", **more: Any) -> Any:
    params = {
        "model": "m",
        "max_tokens": 50,
        "messages": [{"role": "user", "content": content}],
        **more,
    }
    return {"custom_id": id, "params": params}


async def ended(client: anthropic.AsyncAnthropic, id: str) -> MessageBatch:
    async with asyncio.timeout(60):
        while (batch := await client.messages.batches.retrieve(id)).processing_status != "ended":  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    return batch


async def results(client: anthropic.AsyncAnthropic, id: str) -> dict[str, Any]:
    return {row.custom_id: row.result async for row in await client.messages.batches.results(id)}


async def test_message_batch_every_request_gets_result():
    async with run_background_server(engine_options={"directives": True}) as server:
        client = sdk(server)
        created_batch = await client.messages.batches.create(
            requests=[request(f"r{number}", f"[[say answer {number}]]") for number in range(120)]
        )
        assert (created_batch.type, created_batch.processing_status, created_batch.results_url) == (
            "message_batch",
            "in_progress",
            None,
        )
        assert created_batch.request_counts.processing == 120
        assert (created_batch.expires_at - created_batch.created_at).total_seconds() == 24 * 3600
        batch = await ended(client, created_batch.id)
        assert batch.request_counts.model_dump() == {
            "processing": 0, "succeeded": 120, "errored": 0, "canceled": 0, "expired": 0,
        }  # fmt: skip
        assert batch.ended_at is not None
        found = await results(client, created_batch.id)
        assert {
            found[f"r{number}"].message.content[0].text == f"answer {number}"
            for number in range(120)
        } == {True}


async def test_message_batch_invalid_request_fails_alone():
    async with run_background_server() as server:
        client = sdk(server)
        created_batch = await client.messages.batches.create(
            requests=[request("good"), request("bad", temperature=9)]
        )
        batch = await ended(client, created_batch.id)
        assert (batch.request_counts.succeeded, batch.request_counts.errored) == (1, 1)
        error = (await results(client, created_batch.id))["bad"].error
        assert (error.type, error.error.type) == ("error", "invalid_request_error")
        assert error.error.message.startswith("temperature:")
        assert error.request_id.startswith("req_")


async def test_message_batch_cancel_reports_all_requests():
    options = ServingOptions(batch_concurrency=2)
    async with run_background_server(
        options=options, engine_options={"directives": True}
    ) as server:
        client = sdk(server)
        long = "[[delay 1000]][[say never]]"
        created_batch = await client.messages.batches.create(
            requests=[request("a", long), request("b", long), request("c")]
        )
        canceling = await client.messages.batches.cancel(created_batch.id)
        assert canceling.processing_status == "canceling"
        assert canceling.cancel_initiated_at is not None
        batch = await ended(client, created_batch.id)
        assert batch.request_counts.canceled == 3
        assert {row.type for row in (await results(client, created_batch.id)).values()} == {
            "canceled"
        }
        assert server.engine.num_running == 0


class CancellingStore(MemoryStore):
    """A store in which a client cancels exactly when the batch ends."""

    cancelled = False

    async def commit(self, *changes: Change) -> None:
        if not self.cancelled and any(
            isinstance(change, Replace) and change.state == "ended" for change in changes
        ):
            self.cancelled = True
            record = await self.get(changes[-1].key)
            assert record is not None
            await super().commit(Replace(record.key, "canceling", record.body, record.run))
        await super().commit(*changes)


async def test_message_batch_cancel_during_completion_still_ends():
    async with run_background_server(store=CancellingStore(now=FixedClock().now)) as server:
        batch = await sdk(server).messages.batches.create(requests=[request("a")])
        assert (await ended(sdk(server), batch.id)).request_counts.succeeded == 1


async def test_message_batch_window_elapsed_expires_requests():
    clock = ManualClock()
    async with run_background_server(clock=clock, engine_options={"directives": True}) as server:
        client = sdk(server)
        batch = await client.messages.batches.create(
            requests=[request("a", "[[delay 1000]][[say never]]")]
        )
        clock.time += 24 * 3600
        assert (await ended(client, batch.id)).request_counts.expired == 1
        assert (await results(client, batch.id))["a"].type == "expired"


async def test_message_batch_resumes_on_other_server(tmp_path: Path):
    path = tmp_path / "x.db"
    async with run_background_server(
        store=SqliteStore(path, now=FixedClock().now), engine_options={"directives": True}
    ) as server:
        requests = [request("a"), request("slow", "[[delay 1000]][[say never]]"), request("b")]
        batch = await sdk(server).messages.batches.create(requests=requests)
        async with asyncio.timeout(60):
            while server.engine.num_requests < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
    async with run_background_server(store=SqliteStore(path, now=FixedClock().now)) as server:
        assert (await ended(sdk(server), batch.id)).request_counts.succeeded == 3
        assert len(await results(sdk(server), batch.id)) == 3
        assert server.engine.num_requests >= 1


async def test_message_batch_delete_requires_ended_batch():
    async with run_background_server(engine_options={"directives": True}) as server:
        client = sdk(server)
        batch = await client.messages.batches.create(
            requests=[request("a", "[[delay 1000]][[say never]]")]
        )
        with pytest.raises(anthropic.BadRequestError, match="cancel it first"):
            await client.messages.batches.delete(batch.id)
        with pytest.raises(anthropic.AnthropicError, match="No `results_url`"):
            await client.messages.batches.results(batch.id)
        await client.messages.batches.cancel(batch.id)
        await ended(client, batch.id)
        assert (await client.messages.batches.delete(batch.id)).type == "message_batch_deleted"
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.batches.retrieve(batch.id)


async def test_message_batch_of_other_key_not_found():
    async with run_background_server(options=ServingOptions(api_key=("a", "b"))) as server:
        batch = await sdk(server, "a").messages.batches.create(requests=[request("a")])
        other = sdk(server, "b").messages.batches
        assert (await other.list()).data == []
        for ask in (other.retrieve, other.cancel, other.delete, other.results):
            with pytest.raises(anthropic.NotFoundError):
                await ask(batch.id)


async def test_message_batches_list_paginates_both_directions():
    async with run_background_server() as server:
        batches = sdk(server).messages.batches
        ids = [(await batches.create(requests=[request("a")])).id for _ in range(4)]
        assert [batch.id async for batch in batches.list(limit=1)] == ids[::-1]
        page = await batches.list(before_id=ids[0], limit=2)
        assert ([batch.id for batch in page.data], page.has_more) == ([ids[2], ids[1]], True)


@pytest.mark.parametrize(
    ("requests", "where"),
    [
        ([], "requests: expected 1 to"),
        ([request("")], "requests.0.custom_id: "),
        ([request("a"), request("a")], "requests.1.custom_id: 'a' was used before"),
        ([request("a", stream=True)], "requests.0.params.stream: "),
        ([{"custom_id": "a", "params": 1}], "requests.0.params: "),
        (
            [request("a", mcp_servers=[{"type": "url", "name": "s", "authorization_token": "t"}])],
            "requests.0.params.mcp_servers",
        ),
    ],
)
async def test_message_batch_create_invalid_field_rejected_by_name(requests: Any, where: str):
    async with run_background_server() as server:
        with pytest.raises(anthropic.BadRequestError) as caught:
            await sdk(server).messages.batches.create(requests=requests)
        assert where in caught.value.message
