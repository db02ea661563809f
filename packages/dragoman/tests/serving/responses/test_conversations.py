"""The Conversations API, through the official SDK."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from tests.serving.harness import build_server

from dragoman.engines.scripted import Fail, Say, ScriptEntry, Wait
from dragoman.serving.serving_options import ServingOptions

from .harness import build_storing_server, lifespan

ANSWER = ScriptEntry((Say("Yes."),), repeat=True)
LINES: Any = [{"role": "user", "content": f"line {i}"} for i in range(5)]


async def test_conversation_create_retrieve_update_delete() -> None:
    client = build_storing_server(ANSWER).openai()
    conversation = await client.conversations.create(metadata={"topic": "demo"})
    assert (conversation.object, conversation.metadata) == ("conversation", {"topic": "demo"})
    assert await client.conversations.retrieve(conversation.id) == conversation
    changed = await client.conversations.update(conversation.id, metadata={"topic": "other"})
    assert changed.metadata == {"topic": "other"}
    assert await client.conversations.retrieve(conversation.id) == changed
    deleted = await client.conversations.delete(conversation.id)
    assert (deleted.id, deleted.object, deleted.deleted) == (
        conversation.id,
        "conversation.deleted",
        True,
    )
    with pytest.raises(openai.NotFoundError):
        await client.conversations.retrieve(conversation.id)


async def test_conversation_concurrent_deletes_succeed_once() -> None:
    server = build_storing_server(ANSWER)
    conversation = await server.openai().conversations.create()
    async with server.http() as http:
        answers = await asyncio.gather(
            *(http.delete(f"/v1/conversations/{conversation.id}") for _ in range(20))
        )
    assert sorted(answer.status_code for answer in answers) == [200] + [404] * 19


async def test_conversation_items_create_list_retrieve_delete() -> None:
    client = build_storing_server(ANSWER).openai()
    conversation = await client.conversations.create(items=LINES[:2])
    added = await client.conversations.items.create(conversation.id, items=LINES[2:])
    assert len(added.data) == 3
    items = [item async for item in client.conversations.items.list(conversation.id, limit=2)]
    assert [item.content[0].text for item in items] == [f"line {i}" for i in (4, 3, 2, 1, 0)]  # type: ignore
    one = items[1].id or ""
    assert (
        await client.conversations.items.retrieve(one, conversation_id=conversation.id) == items[1]
    )
    assert (
        await client.conversations.items.delete(one, conversation_id=conversation.id)
    ).id == conversation.id
    left = [item.id async for item in client.conversations.items.list(conversation.id, order="asc")]
    assert left == [item.id for item in reversed(items) if item.id != one]
    with pytest.raises(openai.NotFoundError):
        await client.conversations.items.delete(one, conversation_id=conversation.id)


async def test_conversation_item_invalid_id_returns_400() -> None:
    server = build_storing_server(ANSWER)
    conversation = await server.openai().conversations.create()
    items = [{"type": "message", "role": "user", "content": "hello", "id": "a\0b"}]
    for path in ("/v1/conversations", f"/v1/conversations/{conversation.id}/items"):
        answer = await server.post(path, {"items": items})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "items[0].id")


async def test_conversation_items_keep_type_and_get_ids() -> None:
    client = build_storing_server(ANSWER).openai()
    given: Any = [
        {"type": "function_call", "call_id": "call_1", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "3"},
        {
            "type": "reasoning",
            "id": "rs_mine",
            "summary": [{"type": "summary_text", "text": "Hmm."}],
        },
        {"role": "assistant", "content": "3"},
    ]
    conversation = await client.conversations.create(items=given)
    items = [item async for item in client.conversations.items.list(conversation.id, order="asc")]
    assert [item.type for item in items] == [
        "function_call",
        "function_call_output",
        "reasoning",
        "message",
    ]
    assert [(item.id or "").partition("_")[0] for item in items] == ["fc", "fco", "rs", "msg"]
    assert items[2].id == "rs_mine"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"items": LINES * 5}, "items"),
        ({"items": [{"type": "item_reference", "id": "msg_1"}]}, "items[0].type"),
        ({"items": [{"role": "nobody", "content": "x"}]}, "items[0].role"),
        ({"items": [{"role": "user"}]}, "items[0].content"),
        ({"items": "hi"}, "items"),
        ({"metadata": {f"{i}": "" for i in range(17)}}, "metadata"),
        ({"metadata": {"k": "v" * 513}}, "metadata"),
    ],
)
async def test_conversation_create_invalid_field_rejected_by_name(body: Any, param: str) -> None:
    answer = await build_storing_server(ANSWER).post("/v1/conversations", body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_conversation_item_duplicate_id_returns_409() -> None:
    client = build_storing_server(ANSWER).openai()
    item: Any = {"id": "msg_mine", "role": "user", "content": "hi"}
    conversation = await client.conversations.create(items=[item])
    with pytest.raises(openai.ConflictError):
        await client.conversations.items.create(conversation.id, items=[item])
    assert len((await client.conversations.items.list(conversation.id)).data) == 1


async def test_conversation_of_other_key_looks_missing() -> None:
    server = build_storing_server(ANSWER, options=ServingOptions(api_key=("a", "b")))
    conversation = await server.openai("a").conversations.create(items=LINES)
    other = server.openai("b")

    async def assert_absent(id: str) -> list[str]:
        uses: tuple[Any, ...] = (
            other.conversations.retrieve(id),
            other.conversations.delete(id),
            other.conversations.update(id, metadata={}),
            other.conversations.items.list(id),
            other.conversations.items.create(id, items=LINES),
            other.responses.create(model="m", input="hi", conversation=id),
        )
        messages: list[str] = []
        for use in uses:
            with pytest.raises(openai.NotFoundError) as rejected:
                await use
            messages.append(rejected.value.message.replace(id, "ID"))
        return messages

    assert await assert_absent(conversation.id) == await assert_absent(f"conv_{'0' * 32}")


async def test_conversation_concurrent_turns_are_not_interleaved() -> None:
    server = build_storing_server(ANSWER)
    client = server.openai()
    conversation = await client.conversations.create()
    ask = [
        client.responses.create(model="m", input=f"{i}", conversation=conversation.id)
        for i in range(10)
    ]
    results = await asyncio.gather(*ask, return_exceptions=True)
    rejected = [each for each in results if isinstance(each, openai.BadRequestError)]
    assert len(rejected) < 10
    items = [item async for item in client.conversations.items.list(conversation.id, order="asc")]
    assert [item.role for item in items] == ["user", "assistant"] * (10 - len(rejected))  # type: ignore[union-attr]


async def test_conversation_create_without_store_returns_400() -> None:
    answer = await build_server(ANSWER).post("/v1/conversations", {})
    assert answer.status_code == 400


class ManualSleep:
    """A `sleep` function that returns on demand."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.opened = asyncio.Event()

    async def __call__(self, seconds: float) -> None:
        self.begun.set()
        await self.opened.wait()


async def test_conversation_serializes_concurrent_responses() -> None:
    gate = ManualSleep()
    server = build_storing_server(ScriptEntry((Wait(1), Say("Yes."))), ANSWER, sleep=gate)
    client = server.openai()
    conversation, other = await client.conversations.create(), await client.conversations.create()
    async with lifespan(server.app):
        first = await client.responses.create(
            model="m", input="hi", conversation=conversation.id, background=True
        )
        await gate.begun.wait()
        with pytest.raises(openai.BadRequestError) as locked:
            await client.responses.create(model="m", input="hi", conversation=conversation.id)
        assert (locked.value.code, locked.value.param) == ("conversation_locked", "conversation")
        await client.responses.create(model="m", input="hi", conversation=other.id)
        gate.opened.set()
        await server.get(f"/v1/responses/{first.id}?stream=true")
        await client.responses.create(model="m", input="hi", conversation=conversation.id)
        items = [item async for item in client.conversations.items.list(conversation.id)]
    assert len(items) == 4


async def test_conversation_usable_after_rejected_or_failed_response() -> None:
    server = build_storing_server(
        ScriptEntry((Fail(503, "gone"),)), ScriptEntry((Say("So far"), Fail(503, "gone"))), ANSWER
    )
    client = server.openai()
    conversation = await client.conversations.create()
    reference: Any = [{"type": "item_reference", "id": "msg_1"}]
    for model, input in (("nobody", "hi"), ("m", reference), ("m", "hi"), ("m", "hi")):
        with pytest.raises(openai.APIError):
            await client.responses.create(model=model, input=input, conversation=conversation.id)
    assert (
        await client.responses.create(model="m", input="hi", conversation=conversation.id)
    ).output_text == "Yes."
