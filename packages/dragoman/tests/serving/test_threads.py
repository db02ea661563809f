"""Message threads, which the official SDK's tool runner uses by default; results are
the same as without them.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic import beta_async_tool
from tests.serving.background_server import run_background_server
from tests.serving.harness import FixedClock, ServerHarness, build_server
from tests.serving.test_message_batches import sdk

from dragoman.core.request import Conversation
from dragoman.serving.serving_options import ServingOptions
from dragoman.store import Delete, Key, MemoryStore

PROMPT = (
    '[[tool weather {"city": "Rome"}]][[then]][[tool weather {"city": "Oslo"}]][[then]][[say '
    "Both are mild.]]"
)


@beta_async_tool
async def weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: Its name.
    """
    return f"mild in {city}"


def conversations(it: ServerHarness) -> list[Conversation]:
    return [
        request.prompt for request in it.engine.requests if isinstance(request.prompt, Conversation)
    ]


async def run(it: ServerHarness, **more: Any) -> str:
    messages: Any = sdk(it).beta.messages
    conversation: list[Any] = [{"role": "user", "content": PROMPT}]
    runner: Any = messages.tool_runner(
        model="m",
        max_tokens=100,
        system="Be brief.",
        tools=[weather],
        messages=conversation,
        **more,
    )
    message = await runner.until_done()
    assert message.content[0].type == "text"
    return message.content[0].text


async def test_thread_tool_runner_equals_full_conversation():
    async with (
        run_background_server(engine_options={"directives": True}) as threaded,
        run_background_server(engine_options={"directives": True}) as full,
    ):
        assert await run(threaded) == "Both are mild."
        assert await run(full, thread=False) == "Both are mild."
        assert len(conversations(threaded)) == 3
        for with_thread, without in zip(conversations(threaded), conversations(full), strict=True):
            assert with_thread.tools == without.tools
            assert shape(with_thread) == shape(without)


def shape(conversation: Conversation) -> list[Any]:
    """Return roles and parts, without the ids that each server generates."""
    return [
        (message.role, [type(part) for part in message.parts]) for message in conversation.messages
    ]


async def test_thread_streamed_tool_runner_continues():
    async with run_background_server(engine_options={"directives": True}) as server:
        runner = sdk(server).beta.messages.tool_runner(
            model="m",
            max_tokens=100,
            tools=[weather],
            messages=[{"role": "user", "content": PROMPT}],
            stream=True,
        )
        texts: list[str] = []
        async for stream in runner:
            message = await stream.get_final_message()
            texts += [block.text for block in message.content if block.type == "text"]
        assert texts == ["Both are mild."]
        assert [len(conversation.messages) for conversation in conversations(server)] == [1, 3, 5]


def body(**more: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "hi"}], **more}


def continuing(id: str, **more: Any) -> dict[str, Any]:
    return body(thread={"type": "continue", "previous_message_id": id}, **more)


async def test_thread_unknown_message_returns_thread_not_found():
    async with run_background_server() as server:
        answer = await server.post("/v1/messages", continuing("msg_gone"))
        assert answer.status_code == 404
        assert answer.json()["error"]["details"] == {"error_code": "thread_not_found"}


async def test_thread_deleted_is_replayed_by_sdk():
    store = MemoryStore(now=FixedClock().now)
    async with run_background_server(store=store) as server:
        thread = sdk(server).beta.messages.thread(model="m", max_tokens=10)
        first = await thread.send({"role": "user", "content": "one"})
        await store.commit(Delete(Key("", "thread", first.id)))
        await thread.send({"role": "user", "content": "two"})
        assert [len(conversation.messages) for conversation in conversations(server)] == [1, 3]


async def test_thread_with_missing_turn_returns_404():
    store = MemoryStore(now=FixedClock().now)
    async with run_background_server(store=store) as server:
        first = (await server.post("/v1/messages", body(thread={"type": "create"}))).json()["id"]
        second = (await server.post("/v1/messages", continuing(first))).json()["id"]
        await store.commit(Delete(Key("", "thread", first)))
        assert (await server.post("/v1/messages", continuing(second))).status_code == 404


async def test_thread_can_be_continued_twice():
    async with run_background_server() as server:
        first = (await server.post("/v1/messages", body(thread={"type": "create"}))).json()["id"]
        for _ in range(2):
            assert (await server.post("/v1/messages", continuing(first))).status_code == 200
        assert [len(conversation.messages) for conversation in conversations(server)] == [1, 3, 3]


async def test_thread_of_other_key_returns_404():
    async with run_background_server(options=ServingOptions(api_key=("a", "b"))) as server:
        keys = [{"x-api-key": key} for key in "ab"]
        first = (
            await server.post("/v1/messages", body(thread={"type": "create"}), keys[0])
        ).json()["id"]
        assert (await server.post("/v1/messages", continuing(first), keys[1])).status_code == 404
        assert (await server.post("/v1/messages", continuing(first), keys[0])).status_code == 200


async def test_messages_without_thread_are_not_stored():
    store = MemoryStore(now=FixedClock().now)
    async with run_background_server(store=store) as server:
        for plain in (
            body(),
            body(thread=None),
            body(messages=[{"role": "user", "content": 'a "thread"'}]),
        ):
            assert (await server.post("/v1/messages", plain)).status_code == 200
        assert await store.load_page("", "thread") == ()


async def test_thread_without_store_returns_unsupported_request():
    answer = await build_server().post("/v1/messages", body(thread={"type": "create"}))
    assert answer.status_code == 400
    assert answer.json()["error"]["details"] == {
        "error_code": "thread_unsupported_request",
        "unsupported": ["thread"],
    }


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        (body(thread={"type": "fork"}), "thread.type: "),
        (body(thread={"type": "continue"}), "thread.previous_message_id: Field required"),
        (body(thread=5), "thread: "),
        (continuing("msg_1", system="other"), "system: it cannot change"),
        (continuing("msg_1", tools=[]), "tools: it cannot change"),
        (body(thread={"type": "create"}, messages=[]), "messages: "),
        (body(thread={"type": "create"}, messages="x"), "messages: "),
    ],
)
async def test_thread_invalid_field_rejected_by_name(wrong: dict[str, Any], where: str):
    async with run_background_server() as server:
        answer = await server.post("/v1/messages", wrong)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith(where), json.dumps(answer.json())


async def test_thread_failed_turn_is_not_stored():
    store = MemoryStore(now=FixedClock().now)
    async with run_background_server(store=store, engine_options={"directives": True}) as server:
        failing = body(
            thread={"type": "create"},
            messages=[{"role": "user", "content": "[[error 500 broken]]"}],
        )
        assert (await server.post("/v1/messages", failing)).status_code == 500
        assert await store.load_page("", "thread") == ()
