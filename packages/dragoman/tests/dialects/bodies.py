"""Helpers that build bodies of Chat Completions and Completions and pass them to the
readers.
"""

from __future__ import annotations

import msgspec
import pytest

from dragoman.core.errors import RequestError
from dragoman.core.events import Event
from dragoman.core.reply import ReplyBuilder
from dragoman.core.request import Conversation, GenerateRequest
from dragoman.dialects.chat import read_chat
from dragoman.dialects.completions.reader import read_completions
from dragoman.dialects.interfaces import GenerationCall, Header, Profile, ReaderOptions

OPTIONS = ReaderOptions(default_model="tiny")
VLLM = ReaderOptions(default_model="tiny", profile=Profile.VLLM)
HELLO = [{"role": "user", "content": "hello"}]
HEADER = Header("chatcmpl-1", 1700000000, "tiny")
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def chat(options: ReaderOptions = OPTIONS, /, **fields: object) -> GenerationCall:
    return read_chat(msgspec.json.encode({"messages": HELLO, **fields}), options)


def chat_request(**fields: object) -> GenerateRequest:
    return chat(**fields).requests[0]


def conversation(**fields: object) -> Conversation:
    prompt = chat_request(**fields).prompt
    assert isinstance(prompt, Conversation)
    return prompt


def completions(options: ReaderOptions = OPTIONS, /, **fields: object) -> GenerationCall:
    return read_completions(msgspec.json.encode({"prompt": "hello", **fields}), options)


def completions_request(**fields: object) -> GenerateRequest:
    return completions(**fields).requests[0]


def chat_refusal(options: ReaderOptions = OPTIONS, /, **fields: object) -> RequestError:
    with pytest.raises(RequestError) as caught:
        chat(options, **fields)
    return caught.value


def completions_refusal(options: ReaderOptions = OPTIONS, /, **fields: object) -> RequestError:
    with pytest.raises(RequestError) as caught:
        completions(options, **fields)
    return caught.value


def render(call: GenerationCall, *events: Event) -> str:
    writer = call.writer(HEADER)
    return b"".join(writer.feed(event) for event in events).decode()


def render_full(call: GenerationCall, *events: Event) -> str:
    folded = ReplyBuilder()
    for event in events:
        folded.feed(event)
    return call.writer(HEADER).render_full(folded.build()).decode()
