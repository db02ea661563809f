"""Stored chat completions, through the official SDK."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from dragoman.engines.scripted import Fail, Say, ScriptEntry
from dragoman.serving.service import ServingOptions
from tests.serving.harness import ServerHarness, build_server
from tests.serving.responses.harness import remembering

ANSWER = ScriptEntry((Say("Yes."),), repeat=True)
HI: Any = [{"role": "user", "content": "hi"}]


async def store_chat(it: ServerHarness, messages: Any = HI, **more: Any) -> str:
    answer = await it.post("/v1/chat/completions", {"messages": messages, "store": True, **more})
    return answer.json()["id"]


async def test_a_completion_is_stored_where_requested() -> None:
    it = remembering(ANSWER)
    client = it.openai()
    completion = await client.chat.completions.create(
        model="m", messages=HI, store=True, metadata={"run": "1"}
    )
    again = await client.chat.completions.retrieve(completion.id)
    assert again.metadata == {"run": "1"}  # type: ignore[attr-defined]
    assert again.choices == completion.choices
    assert again.usage == completion.usage


async def test_a_streamed_one_is_stored_as_the_whole_one_would_be() -> None:
    it = remembering(ANSWER)
    client = it.openai()
    stream = await client.chat.completions.create(model="m", messages=HI, store=True, stream=True)
    chunks = [chunk async for chunk in stream]
    streamed = await client.chat.completions.retrieve(chunks[0].id)
    whole = await client.chat.completions.retrieve(await store_chat(it))
    assert streamed.choices == whole.choices
    assert streamed.usage == whole.usage


@pytest.mark.parametrize("store", [None, False])
async def test_others_are_not_stored(store: bool | None) -> None:
    it = remembering(ANSWER)
    completion = await it.openai().chat.completions.create(model="m", messages=HI, store=store)
    with pytest.raises(openai.NotFoundError):
        await it.openai().chat.completions.retrieve(completion.id)


async def test_one_that_fails_in_mid_stream_is_not_stored() -> None:
    it = remembering(ScriptEntry((Say("Hello "), Fail(500))))
    with pytest.raises(openai.APIError):
        async for _ in await it.openai().chat.completions.create(
            model="m", messages=HI, store=True, stream=True
        ):
            pass
    assert (await it.openai().chat.completions.list()).data == []


async def test_they_are_listed_page_by_page_by_model_and_metadata() -> None:
    it = remembering(ANSWER)
    client = it.openai()
    ids = [await store_chat(it, metadata={"run": str(i % 2), "all": "yes"}) for i in range(5)]
    pages = client.chat.completions.list
    assert [each.id async for each in pages(limit=2)] == ids
    assert [each.id async for each in pages(limit=2, order="desc")] == ids[::-1]
    assert [each.id async for each in pages(limit=1, metadata={"run": "1", "all": "yes"})] == ids[
        1::2
    ]
    assert [each.id async for each in pages(model="m", after=ids[3])] == ids[4:]
    assert [each.id async for each in pages(model="other")] == []


async def test_the_metadata_can_be_changed_and_all_can_be_deleted_once() -> None:
    it = remembering(ANSWER)
    client, id = it.openai(), await store_chat(it)
    changed = await client.chat.completions.update(id, metadata={"seen": "yes"})
    assert changed == await client.chat.completions.retrieve(id)
    assert changed.metadata == {"seen": "yes"}  # type: ignore[attr-defined]
    deleted = await client.chat.completions.delete(id)
    assert (deleted.deleted, deleted.object) == (True, "chat.completion.deleted")
    with pytest.raises(openai.NotFoundError):
        await client.chat.completions.delete(id)


async def test_its_messages_are_listed() -> None:
    it = remembering(ANSWER)
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "this?"}]
    id = await store_chat(
        it, [{"role": "system", "content": "Be short."}, {"role": "user", "content": parts}]
    )
    messages = [each async for each in it.openai().chat.completions.messages.list(id, limit=1)]
    assert [(each.role, each.content) for each in messages] == [
        ("system", "Be short."),
        ("user", "What is this?"),
    ]
    assert len({each.id for each in messages}) == 2
    assert [part.to_dict() for part in messages[1].content_parts or ()] == parts


async def test_what_is_anothers_looks_as_what_is_not_there() -> None:
    it = remembering(ANSWER, options=ServingOptions(api_key=("a", "b")))
    completion = await it.openai("a").chat.completions.create(model="m", messages=HI, store=True)
    other = it.openai("b").chat.completions
    uses: tuple[Any, ...] = (other.retrieve, other.delete, other.messages.list)
    for use in uses:
        messages: list[str] = []
        for id in (completion.id, "chatcmpl-1"):
            with pytest.raises(openai.NotFoundError) as refused:
                await use(id)
            messages.append(refused.value.message.replace(id, "ID"))
        assert messages[0] == messages[1]
    assert (await other.list()).data == []


async def test_clients_cannot_choose_the_id_of_a_stored_object() -> None:
    it = remembering(ANSWER)
    answer = await it.post(
        "/v1/chat/completions", {"messages": HI, "store": True, "request_id": "mine"}
    )
    assert "mine" not in answer.json()["id"]
    assert "request_id" in answer.headers["x-dragoman-warnings"]


async def test_a_server_without_a_store_says_so() -> None:
    it = build_server(ANSWER)
    answer = await it.post("/v1/chat/completions", {"messages": HI, "store": True})
    assert "store" in answer.headers["x-dragoman-warnings"]
    assert (await it.get("/v1/chat/completions")).json()["data"] == []


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "metadata"),
        ({"metadata": {"k" * 65: ""}}, "metadata"),
        ({"metadata": {"k": 1}}, "metadata.k"),
    ],
)
async def test_wrong_metadata_is_refused_by_name(body: Any, param: str) -> None:
    it = remembering(ANSWER)
    answer = await it.post(f"/v1/chat/completions/{await store_chat(it)}", body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("metadata")
