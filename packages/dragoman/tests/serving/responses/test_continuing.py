"""The history of a response: earlier responses, conversations, and references."""

from __future__ import annotations

from typing import Any

import httpx2
import openai
import pytest
from tests.serving.harness import ServerHarness

from dragoman.core.message import Message, Reasoning, Role, Text, ToolCall, ToolResult
from dragoman.core.request import Conversation
from dragoman.engines.scripted import CallTool, Fail, Say, ScriptEntry, Think
from dragoman.launch import build_models
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import RandomIdGenerator, SystemClock
from dragoman.settings import Settings
from dragoman.store import MemoryStore

from .harness import build_storing_server, lifespan

ADD: Any = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": False}


def messages(server: ServerHarness) -> tuple[Message, ...]:
    """Return the messages of the last prompt."""
    prompt = server.engine.requests[-1].prompt
    assert isinstance(prompt, Conversation)
    return prompt.messages


def list_messages(server: ServerHarness) -> list[tuple[str, str]]:
    return [
        (message.role.value, "".join(part.text for part in message.parts if isinstance(part, Text)))
        for message in messages(server)
    ]


async def test_previous_response_chain_keeps_items_not_instructions() -> None:
    server = build_storing_server(*(ScriptEntry((Say(f"answer {i}"),)) for i in range(3)))
    client = server.openai()
    previous: Any = openai.omit
    for i in range(3):
        response = await client.responses.create(
            model="m",
            input=f"question {i}",
            instructions=f"rule {i}",
            previous_response_id=previous,
        )
        previous = response.id
    turns = [
        ("user", "question 0"),
        ("assistant", "answer 0"),
        ("user", "question 1"),
        ("assistant", "answer 1"),
    ]
    assert list_messages(server) == [("system", "rule 2"), *turns, ("user", "question 2")]


async def test_previous_response_restores_reasoning_and_tool_calls() -> None:
    server = build_storing_server(
        ScriptEntry((Think("Hmm."), CallTool("add", '{"a": 1}', id="call_7"))),
        ScriptEntry((Say("3"),)),
    )
    client = server.openai()
    first = await client.responses.create(model="m", input="add", tools=[ADD])
    result: Any = {"type": "function_call_output", "call_id": "call_7", "output": "3"}
    await client.responses.create(
        model="m", input=[result], tools=[ADD], previous_response_id=first.id
    )
    user, assistant, tool = messages(server)
    assert user.parts == (Text("add"),)
    assert assistant.parts == (Reasoning("Hmm."), ToolCall("call_7", "add", '{"a": 1}'))
    assert (tool.role, tool.parts) == (Role.TOOL, (ToolResult("call_7", (Text("3"),)),))


async def test_previous_response_restores_reasoning_from_summary() -> None:
    server = build_storing_server(
        ScriptEntry((Think("Hmm."), Say("Yes."))), ScriptEntry((Say("No."),))
    )
    client = server.openai()
    first = await client.responses.create(model="m", input="1", reasoning={"summary": "auto"})
    await client.responses.create(model="m", input="2", previous_response_id=first.id)
    assert messages(server)[1].parts == (Reasoning("Hmm."), Text("Yes."))


@pytest.mark.parametrize("streamed", [False, True])
async def test_previous_response_missing_rejected_before_engine_call(streamed: bool) -> None:
    server = build_storing_server(ScriptEntry((Say("x"),)))
    answer = await server.post(
        "/v1/responses",
        {"model": "m", "input": "hi", "stream": streamed, "previous_response_id": "resp_1"},
    )
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "previous_response_not_found")
    assert error["param"] == "previous_response_id"
    assert server.engine.num_requests == 0


async def test_previous_response_chain_with_deleted_hop_rejected() -> None:
    server = build_storing_server(*(ScriptEntry((Say("x"),)) for _ in range(3)))
    client = server.openai()
    first = await client.responses.create(model="m", input="1")
    second = await client.responses.create(model="m", input="2", previous_response_id=first.id)
    await client.responses.delete(first.id)
    with pytest.raises(openai.BadRequestError, match=first.id):
        await client.responses.create(model="m", input="3", previous_response_id=second.id)


async def test_previous_response_failed_rejected() -> None:
    server = build_storing_server(ScriptEntry((Say("Hello "), Fail(500))), ScriptEntry((Say("x"),)))
    client = server.openai()
    stream = await client.responses.create(model="m", input="1", stream=True)
    created = await anext(stream)
    assert created.type == "response.created"
    first = created.response.id
    with pytest.raises(openai.APIError):
        async for _ in stream:
            pass
    with pytest.raises(openai.BadRequestError, match="failed"):
        await client.responses.create(model="m", input="2", previous_response_id=first)


async def test_item_reference_resolves_item_of_earlier_response() -> None:
    """As the Vercel AI SDK replays a conversation."""
    server = build_storing_server(
        ScriptEntry((Think("Hmm."), Say("Tokyo."))), ScriptEntry((Say("x"),))
    )
    client = server.openai()
    first = await client.responses.create(model="m", input="capital of Japan?")
    replay: Any = [
        {"role": "user", "content": "capital of Japan?"},
        *({"type": "item_reference", "id": item.id} for item in first.output),
        {"role": "user", "content": "Thanks."},
    ]
    second = await client.responses.create(model="m", input=replay)
    assert messages(server)[1].parts == (Reasoning("Hmm."), Text("Tokyo."))
    listed = await client.responses.input_items.list(second.id, order="asc")
    assert [item.type for item in listed.data] == ["message", "reasoning", "message", "message"]


async def test_item_reference_to_item_in_history_adds_no_duplicate() -> None:
    server = build_storing_server(ScriptEntry((Say("Tokyo."),)), ScriptEntry((Say("x"),)))
    client = server.openai()
    first = await client.responses.create(model="m", input="capital of Japan?")
    refer: Any = [{"id": first.output[0].id}, {"role": "user", "content": "Thanks."}]
    await client.responses.create(model="m", input=refer, previous_response_id=first.id)
    assert list_messages(server) == [
        ("user", "capital of Japan?"),
        ("assistant", "Tokyo."),
        ("user", "Thanks."),
    ]


async def test_item_reference_unknown_id_rejected() -> None:
    server = build_storing_server(ScriptEntry((Say("x"),)))
    refer: Any = [{"type": "item_reference", "id": "msg_1"}]
    with pytest.raises(openai.NotFoundError, match="Items are not persisted"):
        await server.openai().responses.create(model="m", input=refer)
    assert server.engine.num_requests == 0


async def test_conversation_stores_input_and_output_of_response() -> None:
    server = build_storing_server(
        ScriptEntry((Say("Tokyo."),)), ScriptEntry((Say("You're welcome."),))
    )
    client = server.openai()
    conversation = await client.conversations.create(
        items=[{"role": "system", "content": "Be short."}]
    )
    first = await client.responses.create(
        model="m", input="capital of Japan?", conversation=conversation.id
    )
    await client.responses.create(model="m", input="Thanks.", conversation={"id": conversation.id})
    turns = [("system", "Be short."), ("user", "capital of Japan?"), ("assistant", "Tokyo.")]
    assert list_messages(server) == [*turns, ("user", "Thanks.")]
    items = [
        item
        async for item in client.conversations.items.list(conversation.id, order="asc", limit=2)
    ]
    assert [item.role for item in items] == ["system", "user", "assistant", "user", "assistant"]  # type: ignore[union-attr]
    assert first.conversation is not None
    assert first.conversation.id == conversation.id


async def test_previous_response_in_conversation_uses_its_history() -> None:
    server = build_storing_server(*(ScriptEntry((Say(f"{i}"),)) for i in range(3)))
    client = server.openai()
    conversation = await client.conversations.create(items=[{"role": "user", "content": "a"}])
    first = await client.responses.create(model="m", input="b", conversation=conversation.id)
    await client.responses.create(model="m", input="c", conversation=conversation.id)
    await client.responses.create(model="m", input="d", previous_response_id=first.id)
    assert [text for _, text in list_messages(server)] == ["a", "b", "0", "d"]


async def test_conversation_unchanged_by_failed_response() -> None:
    server = build_storing_server(ScriptEntry((Say("Hello "), Fail(500))))
    client = server.openai()
    conversation = await client.conversations.create()
    with pytest.raises(openai.APIError):
        async for _ in await client.responses.create(
            model="m", input="1", conversation=conversation.id, stream=True
        ):
            pass
    assert (await client.conversations.items.list(conversation.id)).data == []


async def test_conversation_with_previous_response_rejected() -> None:
    server = build_storing_server(ScriptEntry((Say("x"),)))
    with pytest.raises(openai.BadRequestError, match="cannot be combined"):
        await server.openai().responses.create(
            model="m", input="1", conversation="conv_1", previous_response_id="resp_1"
        )


async def test_input_tokens_include_previous_response() -> None:
    models = build_models(Settings(), SystemClock())
    app = build_asgi_app(models, ids=RandomIdGenerator(), store=MemoryStore())
    async with (
        lifespan(app),
        httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app), base_url="http://localhost"
        ) as client,
    ):
        first = (
            await client.post(
                "/v1/responses", json={"input": "Hello there.", "max_output_tokens": 16}
            )
        ).json()
        body = {"input": "And now?", "previous_response_id": first["id"]}
        counted = (await client.post("/v1/responses/input_tokens", json=body)).json()[
            "input_tokens"
        ]
        second = (await client.post("/v1/responses", json={**body, "max_output_tokens": 16})).json()
    assert counted == second["usage"]["input_tokens"] > first["usage"]["input_tokens"]


async def test_compact_previous_response_includes_history() -> None:
    server = build_storing_server(
        ScriptEntry((Say("Tokyo."),)), ScriptEntry((Say("They asked for the capital of Japan."),))
    )
    first = await server.openai().responses.create(model="m", input="capital of Japan?")
    compacted = await server.openai().responses.compact(model="m", previous_response_id=first.id)
    assert "Tokyo." in [text for _, text in list_messages(server)]
    assert [item.type for item in compacted.output] == ["message", "compaction"]
