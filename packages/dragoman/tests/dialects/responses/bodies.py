"""Helpers that pass bodies to the reader of Responses and events to its writer."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from dragoman.core.errors import RequestError
from dragoman.core.events import Event
from dragoman.core.message import Message
from dragoman.core.reply import ReplyBuilder
from dragoman.core.request import Conversation, GenerateRequest
from dragoman.dialects.interfaces import GenerationCall, Header, ReaderOptions
from dragoman.dialects.responses import ResponsesCall, assign_ids, read_responses
from dragoman.dialects.responses.input_items import read_stored_items
from dragoman_check.rules.responses import check_stream

from ..sealing_key import ReadableSealingKey

JsonObject = dict[str, Any]
OPTIONS = ReaderOptions(default_model="tiny")
SEALED = ReaderOptions(default_model="tiny", sealing_key=ReadableSealingKey())
HEADER = Header("resp_1", 1700000000, "tiny")
WEATHER: JsonObject = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
AGENTS: JsonObject = {
    "type": "namespace",
    "name": "multi_agent_v1",
    "description": "Other agents.",
    "tools": [
        {
            "type": "function",
            "name": "spawn_agent",
            "description": "Start one.",
            "parameters": {"type": "object"},
        },
        {
            "type": "function",
            "name": "close_agent",
            "parameters": {"type": "object"},
            "strict": True,
        },
    ],
}


def responses(options: ReaderOptions = OPTIONS, /, **fields: object) -> ResponsesCall:
    return read_responses(msgspec.json.encode({"input": "hello", **fields}), options)


def call(**fields: object) -> GenerationCall:
    return responses(**fields).call


def request(**fields: object) -> GenerateRequest:
    return call(**fields).requests[0]


def conversation(**fields: object) -> Conversation:
    prompt = request(**fields).prompt
    assert isinstance(prompt, Conversation)
    return prompt


def turns(*items: object, **fields: object) -> tuple[Message, ...]:
    return conversation(input=items, **fields).messages


def with_rows(parsed: ResponsesCall, *rows: bytes) -> ResponsesCall:
    """Return the call with stored items instead of its own."""
    return parsed.with_history(read_stored_items(rows), ())


def input_rows(
    *items: object, options: ReaderOptions = OPTIONS, **fields: object
) -> list[JsonObject]:
    """Return the items as `/input_items` returns them."""
    return [
        json.loads(row)
        for _, row in assign_ids(responses(options, input=items, **fields).input, "resp_1")
    ]


def read_error(options: ReaderOptions = OPTIONS, /, **fields: object) -> RequestError:
    with pytest.raises(RequestError) as caught:
        responses(options, **fields)
    return caught.value


def events(call: GenerationCall, *sequence: Event) -> list[JsonObject]:
    """Return the events of a complete stream, after checking its grammar."""
    writer = call.writer(HEADER)
    return check_stream(b"".join(writer.feed(event) for event in sequence) + writer.end)


def render_full(call: GenerationCall, *sequence: Event) -> JsonObject:
    folded = ReplyBuilder()
    for event in sequence:
        folded.feed(event)
    return json.loads(call.writer(HEADER).render_full(folded.build()))
