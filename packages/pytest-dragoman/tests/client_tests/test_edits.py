"""The same answer in other forms: the official SDKs read it, and get the same."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import openai
import pytest

from pytest_dragoman import Dragoman
from pytest_dragoman.stream_edits import (
    EDITS,
    Frame,
    FrameSplitter,
    build_edits,
    edit_frame,
    find_text,
)

TEXT = "Grüße, two words"
ARGUMENTS = {"text": 'a "b" ü'}
HARMLESS = (
    *("none", "empty-deltas", "repeated-events", "late-usage", "one-character", "comments"),
    *("crlf", "split-bytes", "slow-headers"),
)
QUESTION: Any = [{"role": "user", "content": "Hello"}]


def queue(dragoman: Dragoman) -> None:
    dragoman.reply(TEXT).tool_call("add", ARGUMENTS)


@pytest.mark.dragoman_faults(*HARMLESS)
def test_chat_sdk_reads_every_form(dragoman: Dragoman) -> None:
    queue(dragoman)
    client = openai.OpenAI(base_url=dragoman.openai_base_url, api_key="key", max_retries=0)
    tool: Any = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    with client.chat.completions.stream(
        model="m", messages=QUESTION, tools=[tool], stream_options={"include_usage": True}
    ) as stream:
        completion = stream.get_final_completion()
    message = completion.choices[0].message
    assert message.content == TEXT
    assert message.tool_calls is not None
    assert json.loads(message.tool_calls[0].function.arguments) == ARGUMENTS
    assert completion.usage is not None
    dragoman.assert_usage(completion=completion.usage.completion_tokens)


@pytest.mark.dragoman_faults(*HARMLESS)
def test_responses_sdk_reads_every_form(dragoman: Dragoman) -> None:
    queue(dragoman)
    client = openai.OpenAI(base_url=dragoman.openai_base_url, api_key="key", max_retries=0)
    tool: Any = {"type": "function", "name": "add", "parameters": {"type": "object"}}
    with client.responses.stream(model="m", input="Hello", tools=[tool]) as stream:
        response = stream.get_final_response()
    assert response.output_text == TEXT
    assert json.loads(response.output[1].arguments) == ARGUMENTS  # type: ignore[union-attr]
    assert response.usage is not None
    dragoman.assert_usage(completion=response.usage.output_tokens)


@pytest.mark.dragoman_faults(*HARMLESS)
async def test_anthropic_sdk_reads_every_form(dragoman: Dragoman) -> None:
    queue(dragoman)
    tool: Any = {"name": "add", "input_schema": {"type": "object"}}
    async with (
        anthropic.AsyncAnthropic(base_url=dragoman.base_url, api_key="k", max_retries=0) as client,
        client.messages.stream(model="m", max_tokens=99, messages=QUESTION, tools=[tool]) as stream,
    ):
        message: Any = await stream.get_final_message()
    assert message.content[0].text == TEXT
    assert message.content[1].input == ARGUMENTS
    dragoman.assert_usage(completion=message.usage.output_tokens)


STREAMS = {
    "ollama": b'{"message":{"content":"a"},"done":false}\n{"message":{},"done":true}\n',
    "generate": b'{"response":"a","done":false}\n{"response":"","done":true}\n',
    "gemini": b'data: {"candidates":[{"content":{"parts":[{"text":"a"}]}}]}\n\n',
    "completions": b'data: {"object":"text_completion","choices":[{"text":"a"}]}\n\n',
}


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("edit", [name for name in EDITS if not name.startswith("malformed")])
def test_edits_keep_text(name: str, edit: str) -> None:
    is_sse = STREAMS[name].startswith(b"data")
    edits = build_edits((edit,))
    sent = b"".join(
        piece
        for frame in FrameSplitter(is_sse=is_sse).feed(STREAMS[name])
        for piece in edit_frame(frame, edits)
        if isinstance(piece, bytes)
    )
    frames = FrameSplitter(is_sse=is_sse).feed(sent.replace(b"\r\n", b"\n"))
    places = [find_text(frame.data or {}) for frame in frames]
    texts = [place[0][place[1]] for place in places if place is not None]
    assert "".join(texts) == "a"
    assert len(texts) == (2 if edit == "empty-deltas" else 1)


def test_splitter_joins_events_of_several_pieces() -> None:
    splitter = FrameSplitter(is_sse=True)
    assert list(splitter.feed(b"data: 1\n")) == []
    [frame] = splitter.feed(b"\ndata: 2")
    assert frame.raw == b"data: 1\n\n"
    assert splitter.close() == b"data: 2"


def test_empty_deltas_repeat_no_tool_call_of_ollama() -> None:
    message = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add"}}]}
    raw = json.dumps({"done": False, "message": message}).encode() + b"\n"
    (piece,) = edit_frame(Frame(raw, is_sse=False), build_edits(("empty-deltas",)))
    assert piece == raw
