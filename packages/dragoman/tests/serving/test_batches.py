"""OpenAI's batches, with the official SDK: the result of each line, and of the batch."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from openai.types import Batch, BatchRequestCounts
from tests.serving.background_server import run_background_server
from tests.serving.harness import FixedClock, build_server
from tests.serving.responses.harness import lifespan
from tests.serving.tool_servers import LocalToolServers, build_tool_server

from dragoman.engines.scripted import CallTool, Fail, Say, ScriptEntry
from dragoman.launch import build_models
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.serving.serving_options import ServingOptions
from dragoman.settings import Settings
from dragoman.store import Bounds, MemoryStore, SqliteStore

CHAT = "/v1/chat/completions"
NONE = BatchRequestCounts(total=0, completed=0, failed=0)
ENDED = ("completed", "failed", "expired", "cancelled")


class ManualClock(FixedClock):
    """A clock that is advanced by hand."""

    time = 1_700_000_000.0

    def now(self) -> float:
        return self.time


def line(id: str, content: str = "hello", url: str = CHAT, **more: Any) -> dict[str, Any]:
    body = {"model": "m", "messages": [{"role": "user", "content": content}], **more}
    return {"custom_id": id, "method": "POST", "url": url, "body": body}


async def begin(
    client: openai.AsyncOpenAI, *lines: dict[str, Any], endpoint: Any = CHAT, **more: Any
) -> Batch:
    content = b"\n".join(json.dumps(each).encode() for each in lines)
    file = await client.files.create(file=("in.jsonl", content), purpose="batch")
    return await client.batches.create(
        input_file_id=file.id, endpoint=endpoint, completion_window="24h", **more
    )


async def until(client: openai.AsyncOpenAI, id: str, *states: str) -> Batch:
    """Poll, as there is no event for it. The test's own timeout limits the wait."""
    async with asyncio.timeout(60):
        while (batch := await client.batches.retrieve(id)).status not in states:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    return batch


async def results(client: openai.AsyncOpenAI, file: str | None) -> dict[str, Any]:
    assert file is not None
    lines = (await client.files.content(file)).content.splitlines()
    return {row["custom_id"]: row for row in map(json.loads, lines)}


async def test_batch_every_line_gets_result():
    async with run_background_server(engine_options={"directives": True}) as server:
        client = server.openai()
        batch = await begin(
            client,
            *(line(f"r{number}", f"[[say answer {number}]]") for number in range(30)),
            metadata={"job": "x"},
        )
        assert (batch.object, batch.status, batch.endpoint) == ("batch", "validating", CHAT)
        batch = await until(client, batch.id, *ENDED)
        assert batch.status == "completed"
        assert batch.request_counts is not None
        assert batch.request_counts.model_dump() == {"total": 30, "completed": 30, "failed": 0}
        assert (batch.model, batch.metadata, batch.error_file_id, batch.errors) == (
            "m",
            {"job": "x"},
            None,
            None,
        )
        assert None not in (batch.in_progress_at, batch.finalizing_at, batch.completed_at)
        rows = await results(client, batch.output_file_id)
        for number in range(30):
            row = rows[f"r{number}"]
            assert row["error"] is None
            assert row["response"]["status_code"] == 200
            assert row["response"]["body"]["object"] == "chat.completion"
            assert row["response"]["body"]["choices"][0]["message"]["content"] == f"answer {number}"
        assert batch.usage is not None
        assert batch.usage.output_tokens == sum(
            row["response"]["body"]["usage"]["completion_tokens"] for row in rows.values()
        )
        file = await client.files.retrieve(batch.output_file_id or "")
        assert (file.purpose, file.filename) == ("batch_output", f"{batch.id}_output.jsonl")


async def test_batch_of_other_key_does_not_wait_for_flood():
    options = ServingOptions(batch_concurrency=1, api_key=("a", "b"))
    async with run_background_server(
        options=options, engine_options={"directives": True}
    ) as server:
        client, other = server.openai("a"), server.openai("b")
        # Each holds the only slot until it is cancelled.
        flood = [await begin(other, line("r", "[[delay 1000]][[say never]]")) for _ in range(6)]
        batch = await begin(client, line("r"))
        # It may have come to the slots after one or two of them.
        for each in flood[:-1]:
            await until(other, each.id, "in_progress")
            await other.batches.cancel(each.id)
            await until(other, each.id, *ENDED)
            if (batch := await client.batches.retrieve(batch.id)).status in ENDED:
                break
        assert batch.status == "completed"
        # All of them would have been before it.
        assert (await other.batches.retrieve(flood[-1].id)).status == "validating"


async def test_batch_invalid_line_fails_alone():
    async with run_background_server() as server:
        client = server.openai()
        batch = await begin(
            client, line("good"), line("bad", temperature=9), line("lost", model="gone")
        )
        batch = await until(client, batch.id, *ENDED)
        assert batch.status == "completed"
        assert batch.request_counts is not None
        assert batch.request_counts.model_dump() == {"total": 3, "completed": 1, "failed": 2}
        assert set(await results(client, batch.output_file_id)) == {"good"}
        errors = await results(client, batch.error_file_id)
        assert errors["bad"]["response"]["status_code"] == 400
        assert errors["bad"]["response"]["body"]["error"]["param"] == "temperature"
        assert errors["lost"]["response"]["body"]["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("endpoint", "body", "object"),
    [
        ("/v1/completions", {"prompt": "a"}, "text_completion"),
        ("/v1/responses", {"input": "a"}, "response"),
    ],
)
async def test_batch_supports_other_endpoints(endpoint: str, body: dict[str, Any], object: str):
    async with run_background_server() as server:
        client = server.openai()
        request = {
            "custom_id": "a",
            "method": "POST",
            "url": endpoint,
            "body": {"model": "m", **body},
        }
        batch = await until(client, (await begin(client, request, endpoint=endpoint)).id, *ENDED)
        rows = await results(client, batch.output_file_id)
        assert rows["a"]["response"]["body"]["object"] == object
        assert batch.usage is not None
        assert batch.usage.output_tokens > 0


async def test_batch_with_mcp_tools_fails_line():
    servers = LocalToolServers()
    entry = ScriptEntry((CallTool("weather__look"),))
    server = build_tool_server(entry, tool_servers=servers)
    tool = {"type": "mcp", "server_label": "weather", "require_approval": "never"}
    async with lifespan(server.app):
        client = server.openai()
        request = {
            "custom_id": "a",
            "method": "POST",
            "url": "/v1/responses",
            "body": {"model": "m", "input": "a", "tools": [tool]},
        }
        batch = await begin(client, request, endpoint="/v1/responses")
        batch = await until(client, batch.id, *ENDED)
        response = (await results(client, batch.error_file_id))["a"]["response"]
    assert response["status_code"] == 400
    assert response["body"]["error"]["param"] == "tools[0]"
    assert servers.opened == []


async def test_batch_supports_embeddings():
    models = build_models(Settings(), SystemClock())
    app = build_asgi_app(models, store=MemoryStore())
    async with lifespan(app):
        client = openai.AsyncOpenAI(
            api_key="none",
            base_url="http://localhost/v1",
            http_client=httpx2.AsyncClient(
                transport=httpx2.ASGITransport(app), base_url="http://localhost"
            ),
        )
        request = {
            "custom_id": "a",
            "method": "POST",
            "url": "/v1/embeddings",
            "body": {"model": "tiny", "input": "x"},
        }
        batch = await until(
            client, (await begin(client, request, endpoint="/v1/embeddings")).id, *ENDED
        )
        rows = await results(client, batch.output_file_id)
        assert rows["a"]["response"]["body"]["data"][0]["object"] == "embedding"


async def test_batch_line_too_long_fails():
    async with run_background_server(options=ServingOptions(max_body_bytes=2000)) as server:
        client = server.openai()
        batch = await until(client, (await begin(client, line("a", "x" * 3000))).id, *ENDED)
        assert batch.errors is not None
        assert batch.errors.data is not None
        assert [error.code for error in batch.errors.data] == ["line_too_long"]


@pytest.mark.parametrize(
    ("content", "codes"),
    [
        (b"", ["empty_file"]),
        (b"\n\n", ["empty_file"]),
        (b'{"custom_id": "a"', ["invalid_json_line"]),
        (b"[1]\n\xff", ["invalid_request", "invalid_json_line"]),
        (
            json.dumps(line("a")).encode() + b"\n" + json.dumps(line("a")).encode(),
            ["duplicate_custom_id"],
        ),
        (json.dumps(line("a", url="/v1/responses")).encode(), ["invalid_url"]),
        (json.dumps(line("a") | {"method": "GET"}).encode(), ["invalid_method"]),
        (json.dumps(line("")).encode(), ["invalid_custom_id"]),
        (json.dumps(line("a", stream=True)).encode(), ["invalid_request"]),
    ],
)
async def test_batch_invalid_file_fails_with_line_numbers(content: bytes, codes: list[str]):
    async with run_background_server() as server:
        client = server.openai()
        file = await client.files.create(file=("x", content), purpose="batch")
        created_batch = await client.batches.create(
            input_file_id=file.id, endpoint=CHAT, completion_window="24h"
        )
        batch = await until(client, created_batch.id, *ENDED)
        assert batch.status == "failed"
        assert batch.errors is not None
        assert batch.errors.data is not None
        assert [error.code for error in batch.errors.data] == codes
        assert batch.failed_at is not None
        assert batch.output_file_id is None


async def test_batch_cancel_keeps_results_and_frees_engine():
    async with run_background_server(
        options=ServingOptions(batch_concurrency=1), engine_options={"directives": True}
    ) as server:
        client = server.openai()
        batch = await begin(
            client, line("done"), line("long", "[[delay 1000]][[say never]]"), line("after")
        )
        await wait_for_count(client, batch.id, 1)
        assert (await client.batches.cancel(batch.id)).status == "cancelling"
        assert (await client.batches.cancel(batch.id)).status in ("cancelling", "cancelled")
        batch = await until(client, batch.id, *ENDED)
        assert (batch.status, batch.error_file_id) == ("cancelled", None)
        assert batch.request_counts is not None
        assert batch.request_counts.model_dump() == {"total": 3, "completed": 1, "failed": 0}
        assert batch.usage is not None
        assert batch.usage.output_tokens > 0
        assert set(await results(client, batch.output_file_id)) == {"done"}
        assert server.engine.num_running == 0


async def wait_for_count(client: openai.AsyncOpenAI, id: str, completed: int) -> None:
    async with asyncio.timeout(60):
        while ((await client.batches.retrieve(id)).request_counts or NONE).completed < completed:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_batch_cancel_after_completion_returns_409():
    async with run_background_server() as server:
        client = server.openai()
        batch = await begin(client, line("a"))
        await until(client, batch.id, "completed")
        with pytest.raises(
            openai.ConflictError, match="Cannot cancel a batch with status 'completed'"
        ):
            await client.batches.cancel(batch.id)


async def test_batch_window_elapsed_expires_unfinished_lines():
    clock = ManualClock()
    async with run_background_server(
        clock=clock,
        options=ServingOptions(batch_concurrency=1),
        engine_options={"directives": True},
    ) as server:
        client = server.openai()
        batch = await begin(
            client, line("done"), line("long", "[[delay 1000]][[say never]]"), line("after")
        )
        await wait_for_count(client, batch.id, 1)
        clock.time += 24 * 3600
        batch = await until(client, batch.id, *ENDED)
        assert batch.status == "expired"
        assert batch.request_counts is not None
        assert batch.request_counts.model_dump() == {"total": 3, "completed": 1, "failed": 2}
        errors = await results(client, batch.error_file_id)
        assert {id: row["error"]["code"] for id, row in errors.items()} == {
            "long": "batch_expired",
            "after": "batch_expired",
        }
        assert set(await results(client, batch.output_file_id)) == {"done"}


async def test_batch_output_expiry_starts_at_batch_end():
    clock = ManualClock()
    expiry = {"anchor": "created_at", "seconds": 3600}
    async with run_background_server(
        clock=clock,
        options=ServingOptions(batch_concurrency=1),
        engine_options={"directives": True},
    ) as server:
        client = server.openai()
        long = line("long", "[[delay 1000]][[say never]]")
        batch = await begin(client, line("done"), long, extra_body={"output_expires_after": expiry})
        await wait_for_count(client, batch.id, 1)
        clock.time += 7200
        await client.batches.cancel(batch.id)
        batch = await until(client, batch.id, *ENDED)
        assert set(await results(client, batch.output_file_id)) == {"done"}
        file = await client.files.retrieve(batch.output_file_id or "")
        assert (file.created_at, file.expires_at) == (clock.time, clock.time + 3600)
        clock.time += 3600
        with pytest.raises(openai.NotFoundError):
            await client.files.retrieve(file.id)


async def test_batch_resumes_after_server_restart(tmp_path: Path):
    slow = line("slow", "[[delay 1000]][[say never]]")
    lines = [line(f"r{number}") for number in range(8)]
    path = tmp_path / "x.db"
    async with run_background_server(
        store=SqliteStore(path, now=FixedClock().now), engine_options={"directives": True}
    ) as server:
        batch = await begin(server.openai(), *lines[:4], slow, *lines[4:])
        await wait_for_count(server.openai(), batch.id, 8)
    async with run_background_server(store=SqliteStore(path, now=FixedClock().now)) as server:
        # This engine ignores directives, so the remaining lines are answered at once.
        batch = await until(server.openai(), batch.id, *ENDED)
        assert batch.status == "completed"
        assert batch.request_counts is not None
        assert batch.request_counts.model_dump() == {"total": 9, "completed": 9, "failed": 0}
        assert server.engine.num_requests == 1
        lines_out = (
            await server.openai().files.content(batch.output_file_id or "")
        ).content.splitlines()
        assert len(lines_out) == 9


async def test_batch_two_servers_process_each_line_once(tmp_path: Path):
    stores = [SqliteStore(tmp_path / "x.db", now=FixedClock().now) for _ in range(2)]
    async with (
        run_background_server(store=stores[0]) as one,
        run_background_server(store=stores[1]) as two,
    ):
        batches = [
            await begin(one.openai(), *(line(f"r{number}") for number in range(10)))
            for _ in range(4)
        ]
        for batch in batches:
            assert (await until(two.openai(), batch.id, *ENDED)).status == "completed"
        assert one.engine.num_requests + two.engine.num_requests == 40


async def test_batch_line_retries_after_503():
    options = ServingOptions(batch_concurrency=4)
    async with run_background_server(
        ScriptEntry((Fail(503, "later"),)), ScriptEntry((Say("at last"),)), options=options
    ) as server:
        client = server.openai()
        batch = await until(client, (await begin(client, line("a"))).id, *ENDED)
        rows = await results(client, batch.output_file_id)
        assert rows["a"]["response"]["body"]["choices"][0]["message"]["content"] == "at last"


async def test_batch_requests_have_lower_priority_than_direct():
    async with run_background_server() as server:
        client = server.openai()
        await until(client, (await begin(client, line("a", priority=-5))).id, *ENDED)
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
        batched, direct = (request.priority for request in server.engine.requests)
        assert batched > 2**31 > direct == 0


async def test_batch_of_other_key_not_found():
    async with run_background_server(options=ServingOptions(api_key=("a", "b"))) as server:
        batch = await begin(server.openai("a"), line("x"))
        batch = await until(server.openai("a"), batch.id, *ENDED)
        other = server.openai("b")
        assert (await other.batches.list()).data == []
        for ask in (other.batches.retrieve, other.batches.cancel):
            with pytest.raises(openai.NotFoundError, match="No batch found"):
                await ask(batch.id)
        with pytest.raises(openai.NotFoundError, match="No such File"):
            await other.files.content(batch.output_file_id or "")
        with pytest.raises(openai.NotFoundError, match="No such File"):
            await other.batches.create(
                input_file_id=batch.input_file_id, endpoint=CHAT, completion_window="24h"
            )


async def test_batches_list_newest_first_paginated():
    async with run_background_server() as server:
        client = server.openai()
        ids = [(await begin(client, line("x"))).id for _ in range(3)]
        assert [batch.id async for batch in client.batches.list(limit=1)] == ids[::-1]


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"endpoint": "/v1/images/edits"}, "endpoint"),
        ({"endpoint": "/v1/models"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"metadata": {"k": "v" * 513}}, "metadata"),
        (
            {"output_expires_after": {"anchor": "created_at", "seconds": 1}},
            "output_expires_after.seconds",
        ),
    ],
)
async def test_batch_create_invalid_field_rejected_by_name(wrong: dict[str, Any], param: str):
    async with run_background_server() as server:
        client = server.openai()
        file = await client.files.create(file=b"x", purpose="batch")
        order: Any = {
            "input_file_id": file.id,
            "endpoint": CHAT,
            "completion_window": "24h",
            **wrong,
        }
        with pytest.raises(openai.BadRequestError) as caught:
            await client.batches.create(**order)
        assert caught.value.param == param


async def test_batches_list_without_store_returns_400():
    with pytest.raises(openai.BadRequestError, match="requires a store"):
        await build_server().openai().batches.list()


async def test_batch_exceeding_storage_limit_fails():
    store = MemoryStore(Bounds(nbytes=6000), now=FixedClock().now)
    async with run_background_server(store=store) as server:
        client = server.openai()
        batch = await until(
            client, (await begin(client, *(line(f"r{number}") for number in range(12)))).id, *ENDED
        )
        assert batch.status == "failed"
        assert batch.errors is not None
        assert batch.errors.data is not None
        assert batch.errors.data[0].code == "storage_limit_exceeded"
