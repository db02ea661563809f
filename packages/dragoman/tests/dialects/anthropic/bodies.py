"""Helpers that build bodies of Messages and pass them to the readers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dragoman.core.errors import RequestError
from dragoman.core.message import Message, Part
from dragoman.core.request import Conversation, GenerateRequest
from dragoman.dialects.anthropic import (
    CountCall,
    read_count_tokens,
    read_messages,
    render_anthropic_error,
)
from dragoman.dialects.interfaces import GenerationCall, ReaderOptions

JsonObject = dict[str, Any]
OPTIONS = ReaderOptions(default_model="tiny")
NOTHING: JsonObject = {}
HELLO: list[JsonObject] = [{"role": "user", "content": "hello"}]
WEATHER: JsonObject = {
    "name": "weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def messages(options: ReaderOptions = OPTIONS, /, **fields: object) -> GenerationCall:
    return read_messages(
        msgspec.json.encode({"max_tokens": 100, "messages": HELLO, **fields}), options
    )


def request(**fields: object) -> GenerateRequest:
    return messages(**fields).requests[0]


def conversation(**fields: object) -> Conversation:
    prompt = request(**fields).prompt
    assert isinstance(prompt, Conversation)
    return prompt


def turns(*messages: object, **fields: object) -> tuple[Message, ...]:
    return conversation(messages=messages, **fields).messages


def parts(*blocks: object, role: str = "user") -> tuple[Part, ...]:
    """Return the parts that the blocks of one message become."""
    (turn,) = turns({"role": role, "content": blocks})
    return turn.parts


def read_error(options: ReaderOptions = OPTIONS, /, **fields: object) -> RequestError:
    with pytest.raises(RequestError) as caught:
        messages(options, **fields)
    return caught.value


def read_error_message(**fields: object) -> str:
    """Return the error message that the client gets."""
    error = msgspec.json.decode(render_anthropic_error(read_error(**fields)))
    return error["error"]["message"]


def count(**fields: object) -> CountCall:
    return read_count_tokens(msgspec.json.encode({"messages": HELLO, **fields}), OPTIONS)
