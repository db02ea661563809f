"""Stored chat completions, through the official SDK."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from tests.serving.harness import ServerHarness, build_server
from tests.serving.responses.harness import build_storing_server

from dragoman.engines.scripted import Fail, Say, ScriptEntry
from dragoman.serving.serving_options import ServingOptions

ANSWER = ScriptEntry((Say("Yes."),), repeat=True)
HI: Any = [{"role": "user", "content": "hi"}]


async def store_chat(server: ServerHarness, messages: Any = HI, **more: Any) -> str:
    answer = await server.post(
        "/v1/chat/completions", {"messages": messages, "store": True, **more}
    )
    return answer.json()["id"]


async def test_stored_chat_with_store_true_is_retrievable() -> None:
    server = build_storing_server(ANSWER)
    client = server.openai()
    completion = await client.chat.completions.create(
        model="m", messages=HI, store=True, metadata={"run": "1"}
    )
    again = await client.chat.completions.retrieve(completion.id)
    assert again.metadata == {"run": "1"}  # type: ignore[attr-defined]
    assert again.choices == completion.choices
    assert again.usage == completion.usage


async def test_stored_chat_stream_equals_full_response() -> None:
    server = build_storing_server(ANSWER)
    client = server.openai()
    stream = await client.chat.completions.create(model="m", messages=HI, store=True, stream=True)
    chunks = [chunk async for chunk in stream]
    streamed = await client.chat.completions.retrieve(chunks[0].id)
    full = await client.chat.completions.retrieve(await store_chat(server))
    assert streamed.choices == full.choices
    assert streamed.usage == full.usage


@pytest.mark.parametrize("store", [None, False])
async def test_stored_chat_without_store_true_returns_404(store: bool | None) -> None:
    server = build_storing_server(ANSWER)
    completion = await server.openai().chat.completions.create(model="m", messages=HI, store=store)
    with pytest.raises(openai.NotFoundError):
        await server.openai().chat.completions.retrieve(completion.id)


async def test_stored_chat_failing_mid_stream_is_not_stored() -> None:
    server = build_storing_server(ScriptEntry((Say("Hello "), Fail(500))))
    with pytest.raises(openai.APIError):
        async for _ in await server.openai().chat.completions.create(
            model="m", messages=HI, store=True, stream=True
        ):
            pass
    assert (await server.openai().chat.completions.list()).data == []


async def test_stored_chat_list_paginates_and_filters() -> None:
    server = build_storing_server(ANSWER)
    client = server.openai()
    ids = [await store_chat(server, metadata={"run": str(i % 2), "all": "yes"}) for i in range(5)]
    pages = client.chat.completions.list
    assert [each.id async for each in pages(limit=2)] == ids
    assert [each.id async for each in pages(limit=2, order="desc")] == ids[::-1]
    assert [each.id async for each in pages(limit=1, metadata={"run": "1", "all": "yes"})] == ids[
        1::2
    ]
    assert [each.id async for each in pages(model="m", after=ids[3])] == ids[4:]
    assert [each.id async for each in pages(model="other")] == []


async def test_stored_chat_update_metadata_and_delete() -> None:
    server = build_storing_server(ANSWER)
    client, id = server.openai(), await store_chat(server)
    changed = await client.chat.completions.update(id, metadata={"seen": "yes"})
    assert changed == await client.chat.completions.retrieve(id)
    assert changed.metadata == {"seen": "yes"}  # type: ignore[attr-defined]
    deleted = await client.chat.completions.delete(id)
    assert (deleted.deleted, deleted.object) == (True, "chat.completion.deleted")
    with pytest.raises(openai.NotFoundError):
        await client.chat.completions.delete(id)


async def test_stored_chat_messages_are_listed() -> None:
    server = build_storing_server(ANSWER)
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "this?"}]
    id = await store_chat(
        server, [{"role": "system", "content": "Be short."}, {"role": "user", "content": parts}]
    )
    messages = [each async for each in server.openai().chat.completions.messages.list(id, limit=1)]
    assert [(each.role, each.content) for each in messages] == [
        ("system", "Be short."),
        ("user", "What is this?"),
    ]
    assert len({each.id for each in messages}) == 2
    assert [part.to_dict() for part in messages[1].content_parts or ()] == parts


async def test_stored_chat_of_other_key_looks_missing() -> None:
    server = build_storing_server(ANSWER, options=ServingOptions(api_key=("a", "b")))
    completion = await server.openai("a").chat.completions.create(
        model="m", messages=HI, store=True
    )
    other = server.openai("b").chat.completions
    uses: tuple[Any, ...] = (other.retrieve, other.delete, other.messages.list)
    for use in uses:
        messages: list[str] = []
        for id in (completion.id, "chatcmpl-1"):
            with pytest.raises(openai.NotFoundError) as rejected:
                await use(id)
            messages.append(rejected.value.message.replace(id, "ID"))
        assert messages[0] == messages[1]
    assert (await other.list()).data == []


async def test_stored_chat_id_ignores_client_request_id() -> None:
    server = build_storing_server(ANSWER)
    answer = await server.post(
        "/v1/chat/completions", {"messages": HI, "store": True, "request_id": "mine"}
    )
    assert "mine" not in answer.json()["id"]
    assert "request_id" in answer.headers["x-dragoman-warnings"]


async def test_stored_chat_without_store_warns() -> None:
    server = build_server(ANSWER)
    answer = await server.post("/v1/chat/completions", {"messages": HI, "store": True})
    assert "store" in answer.headers["x-dragoman-warnings"]
    assert (await server.get("/v1/chat/completions")).json()["data"] == []


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "metadata"),
        ({"metadata": {"k" * 65: ""}}, "metadata"),
        ({"metadata": {"k": 1}}, "metadata.k"),
    ],
)
async def test_stored_chat_invalid_metadata_rejected_by_name(body: Any, param: str) -> None:
    server = build_storing_server(ANSWER)
    answer = await server.post(f"/v1/chat/completions/{await store_chat(server)}", body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("metadata")
