"""Stored responses and the operations on them, through the official SDK."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest

from dragoman.core.events import FinishReason
from dragoman.engines.scripted import CallTool, Fail, Say, ScriptEntry, Think
from dragoman.serving.serving_options import ServingOptions
from dragoman.store import Change, MemoryStore, StoreUnavailable
from dragoman_check.rules.responses import check_object, check_stream

from .harness import build_storing_server

ADD: Any = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": False}
ANSWER = ScriptEntry((Think("Hmm."), Say("I add."), CallTool("add", '{"a": 1}')), repeat=True)
PLAIN = ScriptEntry((Say("Yes."),), repeat=True)
ASK: dict[str, Any] = {"model": "m", "input": "hi", "tools": [ADD]}


class FullDiskStore(MemoryStore):
    """A store whose disk is full."""

    async def commit(self, *changes: Change) -> None:
        raise StoreUnavailable("The disk is full.")


def last_object(stream: bytes) -> bytes:
    """Return the bytes of the last event's object."""
    last = stream.split(b"\n\n")[-3]
    return last[last.index(b'"response":') + len(b'"response":') : -1]


async def test_stored_response_equals_object_of_final_stream_event() -> None:
    server = build_storing_server(ANSWER)
    answer = await server.post("/v1/responses", {**ASK, "stream": True})
    check_stream(answer.content)
    response = last_object(answer.content)
    assert (await server.get(f"/v1/responses/{json.loads(response)['id']}")).content == response


async def test_stored_response_equals_full_response_body() -> None:
    server = build_storing_server(ANSWER)
    answer = await server.post("/v1/responses", ASK)
    check_object(answer.json())
    assert answer.json()["store"] is True
    assert (await server.get(f"/v1/responses/{answer.json()['id']}")).content == answer.content


async def test_stored_response_at_length_limit_is_incomplete() -> None:
    server = build_storing_server(ScriptEntry((Say("Once"),), finish=FinishReason.LENGTH))
    response = await server.openai().responses.create(model="m", input="hi")
    assert (await server.openai().responses.retrieve(response.id)).status == "incomplete"


async def test_stored_response_failing_mid_stream_is_failed() -> None:
    server = build_storing_server(ScriptEntry((Say("Hello "), Fail(500, "the engine broke"))))
    answer = await server.post("/v1/responses", {**ASK, "stream": True})
    response = last_object(answer.content)
    assert json.loads(response)["error"]["message"] == "the engine broke"
    assert (await server.get(f"/v1/responses/{json.loads(response)['id']}")).content == response


async def test_store_false_response_is_not_stored() -> None:
    server = build_storing_server(PLAIN)
    response = await server.openai().responses.create(model="m", input="hi", store=False)
    assert response.model_dump()["store"] is False
    with pytest.raises(openai.NotFoundError, match="not found"):
        await server.openai().responses.retrieve(response.id)


async def test_store_failure_returns_server_error() -> None:
    server = build_storing_server(PLAIN, store=FullDiskStore())
    with pytest.raises(openai.InternalServerError, match="disk is full"):
        await server.openai().responses.create(model="m", input="hi")


async def test_store_failure_ends_stream_with_failed_event() -> None:
    server = build_storing_server(ANSWER, store=FullDiskStore())
    answer = await server.post("/v1/responses", {**ASK, "stream": True})
    events = check_stream(answer.content)
    assert events[-1]["type"] == "response.failed"
    assert "response.completed" not in answer.text


async def test_stored_response_id_ignores_client_request_id() -> None:
    server = build_storing_server(ANSWER)
    answer = await server.post(
        "/v1/responses", {**ASK, "request_id": "mine"}, headers={"x-request-id": "mine"}
    )
    assert "mine" not in answer.json()["id"]
    assert len(answer.json()["id"]) >= len("resp_") + 32
    assert "request_id" in answer.headers["x-dragoman-warnings"]


async def test_stored_response_concurrent_deletes_succeed_once() -> None:
    server = build_storing_server(PLAIN)
    client = server.openai()
    response = await client.responses.create(model="m", input="hi")
    async with server.http() as http:
        answers = await asyncio.gather(
            *(http.delete(f"/v1/responses/{response.id}") for _ in range(20))
        )
    assert sorted(answer.status_code for answer in answers) == [200] + [404] * 19
    (deleted,) = (answer.json() for answer in answers if answer.status_code == 200)
    assert deleted == {"id": response.id, "object": "response", "deleted": True}
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(response.id)


async def test_stored_response_of_other_key_looks_missing() -> None:
    server = build_storing_server(PLAIN, options=ServingOptions(api_key=("a", "b")))
    mine = await server.openai("a").responses.create(model="m", input="hi")
    other = server.openai("b")
    absent = f"resp_{'0' * 32}"

    async def goes_on(id: str) -> None:
        await other.responses.create(model="m", input="hi", previous_response_id=id)

    async def refers(id: str) -> None:
        await other.responses.create(
            model="m", input=[{"type": "item_reference", "id": f"msg_{id[5:]}_1"}]
        )

    uses: tuple[Any, ...] = (
        other.responses.retrieve,
        other.responses.delete,
        other.responses.cancel,
        other.responses.input_items.list,
        goes_on,
        refers,
    )
    for use in uses:
        messages = [await get_error(use, id) for id in (mine.id, absent)]
        assert messages[0] == messages[1]
    assert (await server.openai("a").responses.retrieve(mine.id)).id == mine.id


async def get_error(use: Any, id: str) -> tuple[int, str]:
    with pytest.raises(openai.APIStatusError) as caught:
        await use(id)
    return caught.value.status_code, caught.value.message.replace(id, "ID").replace(id[5:], "ID")


async def test_input_items_are_normalized_and_paginated() -> None:
    server = build_storing_server(PLAIN)
    client = server.openai()
    texts = [f"line {i}" for i in range(7)]
    items: Any = [{"role": "user", "content": text} for text in texts]
    response = await client.responses.create(model="m", input=items)
    page = await client.responses.input_items.list(response.id, limit=3)
    assert [item.content[0].text for item in page.data] == texts[:3:-1]  # type: ignore[union-attr]
    assert page.has_more
    everything = [
        item async for item in client.responses.input_items.list(response.id, limit=3, order="asc")
    ]
    assert [item.content[0].text for item in everything] == texts  # type: ignore[union-attr]
    assert all(item.id and item.status == "completed" for item in everything)  # type: ignore[union-attr]
    last = await client.responses.input_items.list(
        response.id, limit=3, order="asc", after=everything[4].id or ""
    )
    assert [item.id for item in last.data] == [item.id for item in everything[5:]]
    assert not last.has_more


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=101",
        "limit=x",
        "limit=1.5",
        "order=up",
        "after=msg_1",
        f"limit={'9' * 5000}",
    ],
)
async def test_input_items_invalid_page_query_rejected_by_name(query: str) -> None:
    server = build_storing_server(PLAIN)
    response = await server.openai().responses.create(model="m", input="hi")
    answer = await server.get(f"/v1/responses/{response.id}/input_items?{query}")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == query.partition("=")[0]


async def test_synchronous_response_rejects_streaming_and_cancel() -> None:
    server = build_storing_server(PLAIN)
    response = await server.openai().responses.create(model="m", input="hi")
    answer = await server.get(f"/v1/responses/{response.id}?stream=true")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "stream")
    with pytest.raises(openai.BadRequestError, match="synchronous"):
        await server.openai().responses.cancel(response.id)
