"""Parameters that an upstream ignores are reported to the client, in any form and
dialect.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import msgspec
import pytest
from tests.engines.upstream.relays import VLLM, build_engine, direct
from tests.engines.upstream.stub_server import Handle, Pieces, far_server
from tests.serving.responses.test_websocket import serving as websocket_server
from websockets.asyncio.client import connect

from dragoman.core.events import Finished, Started
from dragoman.core.message import Message, Role, Text
from dragoman.core.request import Conversation, GenerateRequest, GenerationLimits
from dragoman.dialects.interfaces import Profile
from dragoman.engines.upstream import KINDS
from dragoman.engines.upstream.chunk_reader import ChunkReader
from dragoman.engines.upstream.event_stream import EventStream
from dragoman.engines.upstream.request_warnings import RequestWarnings
from dragoman.pipeline.engine_backends import EventBackend
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.served_model import ServedModel
from dragoman.serving.app import build_asgi_app
from dragoman.serving.serving_options import ServingOptions
from dragoman.serving.stream_keepalive import StreamTimeouts

NAME = "x-dragoman-warnings"
WARNINGS = ["colour is ignored: unknown field; so is its shade", "top_logprobs: only 1"]
ARRAY = json.dumps(WARNINGS).encode()
COMMENT = b": dragoman_warnings %b\n\n" % ARRAY
USAGE = b'{"prompt_tokens":2,"completion_tokens":1}'
CHUNKS = (
    b'data: {"choices":[{"index":0,"delta":{"content":"Hello"}}]}\n\n'
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":%b}\n\n'
    b"data: [DONE]\n\n"
) % USAGE
TEXT_CHUNKS = (
    b'data: {"choices":[{"index":0,"text":"Hello","finish_reason":"stop"}],"usage":%b}\n\n'
    b"data: [DONE]\n\n"
) % USAGE
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def streaming(*pieces: bytes, warnings: str | None = None) -> Handle:
    """An upstream that streams. warnings: its header."""
    headers = {
        "content-type": "text/event-stream",
        **({} if warnings is None else {NAME: warnings}),
    }
    return lambda _: httpx2.Response(200, headers=headers, stream=Pieces(*pieces))


@asynccontextmanager
async def relaying(
    handle: Handle, options: ServingOptions = VLLM, kind: str = "dragoman"
) -> AsyncGenerator[httpx2.AsyncClient]:
    async with far_server(handle) as address:
        front = Models(
            [
                ServedModel(
                    "m", EventBackend(build_engine(address, kind=kind), None), 4096, 1_700_000_000
                )
            ]
        )
        async with direct(front, options) as client:
            yield client


@pytest.mark.parametrize("streamed", [False, True])
async def test_upstream_warnings_follow_own_warnings(streamed: bool) -> None:
    async with relaying(streaming(COMMENT, CHUNKS, warnings="; ".join(WARNINGS))) as client:
        answer = await client.post(
            "/v1/chat/completions", json={**CHAT, "foo": 1, "stream": streamed}
        )
    wanted = ["foo is ignored: unknown field", *WARNINGS]
    assert answer.headers[NAME] == "; ".join(wanted)
    if streamed:
        assert f": dragoman_warnings {msgspec.json.encode(wanted).decode()}\n\n" in answer.text
        assert answer.text.count("dragoman_warnings") == 1
    else:
        assert answer.json()["dragoman_warnings"] == wanted


@pytest.mark.parametrize("cut", [1, len(COMMENT) - 1, len(COMMENT), len(COMMENT) + 10])
async def test_warnings_comment_is_parsed_with_any_split(cut: int) -> None:
    stream = COMMENT + CHUNKS
    async with relaying(streaming(stream[:cut], stream[cut:])) as client:
        assert (await client.post("/v1/chat/completions", json=CHAT)).json()[
            "dragoman_warnings"
        ] == WARNINGS


class Body:
    """A body whose consumer is never interrupted."""

    def interrupt(self) -> None:
        raise AssertionError


def test_warnings_after_start_are_late() -> None:
    reader = ChunkReader(GenerateRequest("m", "hi"), lambda: "made")
    reader.warnings = RequestWarnings((), KINDS["openai"].field_names)
    stream = EventStream(reader, Body(), None)
    answer, done, _ = CHUNKS.partition(b"data: [DONE]\n\n")
    stream.feed(b': dragoman_warnings ["max_completion_tokens is ignored"]\n\n' + answer)
    assert (reader.warnings.all, stream.late_warnings) == (("max_tokens is ignored",), ())
    stream.feed(b': dragoman_warnings ["max_completion_tokens: only 9"]\n\n' + done)
    assert (stream.is_done, stream.late_warnings) == (True, ("max_tokens: only 9",))


@pytest.mark.parametrize("source", ["header", "comment", "whole"])
def test_upstream_warnings_follow_those_of_encoder(source: str) -> None:
    reader = ChunkReader(GenerateRequest("m", "hi"), lambda: "made")
    reader.warnings = RequestWarnings(("names are left out",), KINDS["openai"].field_names)
    reader.warnings.report(["max_completion_tokens is ignored", "b", "c"])
    stream = EventStream(reader, Body(), None)
    reported = ["max_completion_tokens is ignored", "b; c"]
    match source:
        case "header":
            events = stream.feed(CHUNKS)
            expected = ("max_tokens is ignored", "b", "c")
        case "comment":
            events = stream.feed(
                b": dragoman_warnings %b\n\n" % json.dumps(reported).encode() + CHUNKS
            )
            expected = ("max_tokens is ignored", "b; c")
        case _:
            message = {"role": "assistant", "content": "x"}
            choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
            whole = {"choices": choices, "dragoman_warnings": reported}
            events = reader.read_whole(json.dumps(whole).encode())
            expected = ("max_tokens is ignored", "b; c")
    assert isinstance(events[0], Started)
    assert events[0].warnings == ("names are left out", *expected)


@pytest.mark.parametrize("max_tokens", [None, 0])
async def test_warnings_at_end_of_stream_are_read_once(max_tokens: int | None) -> None:
    late = "usage is an estimate"
    comment = b": dragoman_warnings %b\n\n" % json.dumps([*WARNINGS, late]).encode()
    answer, done, _ = CHUNKS.partition(b"data: [DONE]\n\n")
    request = GenerateRequest(
        "m",
        Conversation((Message(Role.USER, (Text("hi"),)),)),
        limits=GenerationLimits(max_tokens=max_tokens),
    )
    header = "; ".join(WARNINGS)
    async with far_server(streaming(answer, comment + done, warnings=header)) as address:
        engine = build_engine(address)
        await engine.start()
        try:
            events = [event async for event in engine.generate(request)]
        finally:
            await engine.stop()
    # The pieces may arrive as one; then all is known at the start.
    ends = [event for event in events if isinstance(event, Started | Finished)]
    found = [warning for event in ends for warning in event.warnings]
    assert "; ".join(found) == f"{header}; {late}"


@pytest.mark.parametrize(
    "comment", [b"", b": dragoman_warnings [1]\n\n", b": dragoman_warnings [\n\n"]
)
async def test_warnings_are_read_from_header_without_comment(comment: bytes) -> None:
    async with relaying(
        streaming(comment + CHUNKS, warnings="one is ignored; two too"), kind="compatible"
    ) as client:
        answer = await client.post("/v1/chat/completions", json=CHAT)
    assert answer.json()["dragoman_warnings"] == ["one is ignored", "two too"]
    assert answer.headers[NAME] == "one is ignored; two too"


async def test_warnings_of_non_streamed_response_are_forwarded() -> None:
    choice = {"index": 0, "message": {"content": "Hello"}, "finish_reason": "stop"}
    full = {"choices": [choice], "usage": json.loads(USAGE), "dragoman_warnings": WARNINGS}
    async with relaying(lambda _: httpx2.Response(200, json=full)) as client:
        answer = await client.post("/v1/chat/completions", json=CHAT)
    assert answer.json()["choices"][0]["message"]["content"] == "Hello"
    assert answer.json()["dragoman_warnings"] == WARNINGS


async def test_warnings_header_is_sent_only_to_dragoman_upstreams() -> None:
    headers: list[str | None] = []

    def answer(request: httpx2.Request) -> httpx2.Response | None:
        if request.method == "POST":
            headers.append(request.headers.get(NAME))
        return streaming(CHUNKS)(request)

    for kind in ("dragoman", "openai"):
        async with relaying(answer, kind=kind) as client:
            await client.post("/v1/chat/completions", json=CHAT)
    assert headers == ["body", None]


async def test_warnings_without_body_opt_in_are_only_in_header() -> None:
    async with relaying(
        streaming(COMMENT, CHUNKS), ServingOptions(profile=Profile.OPENAI)
    ) as client:
        answer = await client.post("/v1/chat/completions", json={**CHAT, "stream": True})
    assert answer.headers[NAME] == "; ".join(WARNINGS)
    assert "dragoman_warnings" not in answer.text


async def test_warnings_of_several_prompts_are_deduplicated() -> None:
    async with relaying(streaming(COMMENT, TEXT_CHUNKS)) as client:
        answer = await client.post(
            "/v1/completions", json={"model": "m", "prompt": ["a", "b"], "max_tokens": 5}
        )
    assert [choice["text"] for choice in answer.json()["choices"]] == ["Hello", "Hello"]
    assert answer.json()["dragoman_warnings"] == WARNINGS


async def test_warning_uses_field_name_of_client() -> None:
    comment = (
        b": dragoman_warnings [\"reasoning_effort is ignored: this model's engine does not "
        b'support it"]\n\n'
    )
    async with relaying(streaming(comment, CHUNKS)) as client:
        body = {"model": "m", "input": "hi", "reasoning": {"effort": "low"}, "store": False}
        answer = await client.post("/v1/responses", json=body)
    assert answer.json()["dragoman_warnings"] == [
        "reasoning.effort is ignored: this model's engine does not support it"
    ]


async def test_warnings_after_sent_headers_are_in_stream_comment() -> None:
    # The headers are sent at once, and this client did not request the comment.
    timeouts = StreamTimeouts(headers=0.0, admitted_headers=0.0, keepalive=3600.0)
    options = ServingOptions(profile=Profile.OPENAI, timeouts=timeouts)
    async with relaying(streaming(COMMENT, CHUNKS), options) as client:
        answer = await client.post("/v1/chat/completions", json={**CHAT, "stream": True})
    assert NAME not in answer.headers
    [comment] = [
        line for line in answer.text.splitlines() if line.startswith(": dragoman_warnings")
    ]
    assert json.loads(comment.removeprefix(": dragoman_warnings ")) == WARNINGS


async def test_warnings_over_websocket_are_in_first_event() -> None:
    async with far_server(streaming(COMMENT, CHUNKS)) as address:
        front = Models(
            [ServedModel("m", EventBackend(build_engine(address), None), 4096, 1_700_000_000)]
        )
        async with (
            websocket_server(build_asgi_app(front), front) as where,
            connect(f"ws://{where}/v1/responses") as connection,
        ):
            await connection.send(
                json.dumps({"type": "response.create", "model": "m", "input": "hi", "foo": 1})
            )
            first, second = [json.loads(await connection.recv()) for _ in range(2)]
    assert first["dragoman_warnings"] == ["foo is ignored: unknown field", *WARNINGS]
    assert "dragoman_warnings" not in second
