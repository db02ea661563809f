"""The model compacts a conversation, which then continues, through the official SDK."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from tests.serving.harness import build_server
from tests.serving.responses.harness import build_storing_server

from dragoman.engines.scripted import Say, ScriptEntry, Think
from dragoman.serving.serving_options import ServingOptions
from dragoman_check.rules.responses import check_stream

SUMMARY = ScriptEntry((Think("Hm."), Say("They asked for a poem.")), repeat=True)
INPUT: Any = [
    {"role": "user", "content": "Write a poem."},
    {"role": "assistant", "content": "Roses are red."},
]


async def test_compact_output_can_be_continued():
    server = build_server(SUMMARY)
    compacted = await server.openai().responses.compact(model="m", input=INPUT)
    assert compacted.object == "response.compaction"
    user, compaction = compacted.output
    assert (user.type, compaction.type) == ("message", "compaction")
    assert compacted.usage.output_tokens > 0
    output: Any = [item.to_dict(warnings=False) for item in compacted.output]
    again = await server.openai().responses.create(
        model="m", input=[*output, {"role": "user", "content": "Go on."}]
    )
    assert again.status == "completed"


async def test_conversation_accepts_compaction_as_first_items():
    client = build_storing_server(SUMMARY).openai()
    compacted = await client.responses.compact(model="m", input=INPUT)
    items: Any = [item.to_dict(warnings=False) for item in compacted.output]
    conversation = await client.conversations.create(items=items)
    listed = await client.conversations.items.list(conversation.id, order="asc")
    assert [item.type for item in listed.data] == ["message", "compaction"]
    again = await client.responses.create(model="m", conversation=conversation.id, input="Go on.")
    assert again.status == "completed"
    foreign: Any = [{**items[1], "encrypted_content": "other"}]
    with pytest.raises(openai.BadRequestError, match="was not created by this server"):
        await client.conversations.items.create(conversation.id, items=foreign)


async def test_compaction_trigger_in_stream_outputs_one_compaction():
    server = build_server(SUMMARY)
    body = {"model": "m", "input": [*INPUT, {"type": "compaction_trigger"}], "stream": True}
    *_, last = check_stream((await server.post("/v1/responses", body)).content)
    assert [item["type"] for item in last["response"]["output"]] == ["compaction"]
    assert "They asked" not in str(last)


async def test_compaction_of_other_api_key_rejected():
    server = build_server(SUMMARY, options=ServingOptions(api_key=("mine", "yours")))
    compaction = await server.openai("mine").responses.compact(model="m", input=INPUT)
    body: Any = {
        "model": "m",
        "input": [item.to_dict(warnings=False) for item in compaction.output],
    }
    for key, status in (("mine", 200), ("yours", 400)):
        answer = await server.post("/v1/responses", body, {"authorization": f"Bearer {key}"})
        assert answer.status_code == status, answer.text


async def test_compact_previous_response_id():
    server = build_storing_server(SUMMARY)
    first = await server.openai().responses.create(model="m", input=INPUT)
    compacted = await server.openai().responses.compact(model="m", previous_response_id=first.id)
    assert [item.type for item in compacted.output] == ["message", "compaction"]
    missing = await server.post(
        "/v1/responses/compact", {"model": "m", "previous_response_id": "resp_0", "input": "x"}
    )
    assert missing.json()["error"]["code"] == "previous_response_not_found"


async def test_response_chain_continues_from_compaction():
    server = build_storing_server(SUMMARY)
    body: dict[str, Any] = {"model": "m", "input": [*INPUT, {"type": "compaction_trigger"}]}
    compacted = (await server.post("/v1/responses", body)).json()
    assert [item["type"] for item in compacted["output"]] == ["compaction"]
    went_on = await server.post(
        "/v1/responses", {"model": "m", "input": "And?", "previous_response_id": compacted["id"]}
    )
    assert went_on.json()["status"] == "completed"


async def test_compact_without_model_or_in_background_rejected():
    server = build_server(SUMMARY)
    bodies: list[tuple[dict[str, Any], str]] = [
        ({}, "model"),
        ({"model": "m", "background": True}, "background"),
    ]
    for fields, param in bodies:
        answer = await server.post("/v1/responses/compact", {"input": "hi", **fields})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
