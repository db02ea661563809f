"""Warnings reach clients that do not read headers: in the body, on request or in vLLM's
profile, and in batches.
"""

from __future__ import annotations

import json
from typing import Any

import anthropic
import pytest
from tests.serving import test_batches, test_message_batches
from tests.serving.background_server import run_background_server
from tests.serving.harness import ServerHarness, build_server

from dragoman.dialects.interfaces import Profile
from dragoman.engines.scripted import Say, ScriptEntry
from dragoman.serving.serving_options import ServingOptions

HELLO = ScriptEntry((Say("Hello"),), repeat=True)
HI = [{"role": "user", "content": "hi"}]
UNKNOWN = "foo is ignored: unknown field"
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": HI}),
    ("/v1/completions", {"prompt": "hi"}),
    ("/v1/responses", {"input": "hi"}),
    ("/v1/messages", {"model": "m", "messages": HI, "max_tokens": 20}),
]


def of_profile(profile: Profile) -> ServerHarness:
    return build_server(HELLO, options=ServingOptions(profile=profile))


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_warnings_in_body_on_request(path: str, body: dict[str, Any]) -> None:
    it = of_profile(Profile.OPENAI)
    response = await it.post(path, {**body, "foo": 1}, {"x-dragoman-warnings": "body"})
    assert response.json()["dragoman_warnings"] == [UNKNOWN]
    assert response.headers["x-dragoman-warnings"] == UNKNOWN
    assert "dragoman_warnings" not in (await it.post(path, {**body, "foo": 1})).json()
    assert (
        "dragoman_warnings"
        not in (await it.post(path, body, {"x-dragoman-warnings": "body"})).json()
    )


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_warnings_in_body_in_vllm_profile(path: str, body: dict[str, Any]) -> None:
    answer = await of_profile(Profile.VLLM).post(path, {**body, "foo": 1})
    assert answer.json()["dragoman_warnings"] == [UNKNOWN]


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_warnings_in_stream_sent_as_comment(path: str, body: dict[str, Any]) -> None:
    it = of_profile(Profile.OPENAI)
    text = (
        await it.post(path, {**body, "foo": 1, "stream": True}, {"x-dragoman-warnings": "body"})
    ).text
    comments = [line for line in text.splitlines() if line.startswith(":")]
    assert comments == [f": dragoman_warnings {json.dumps([UNKNOWN])}"]
    assert ":" not in [
        line[:1]
        for line in (await it.post(path, {**body, "foo": 1, "stream": True})).text.splitlines()
    ]


async def test_warnings_readable_through_sdks() -> None:
    it = of_profile(Profile.VLLM)
    reply = await it.openai().chat.completions.create(
        model="m", messages=[{"role": "user", "content": "hi"}], extra_body={"foo": 1}
    )
    assert reply.model_extra is not None
    assert reply.model_extra["dragoman_warnings"] == [UNKNOWN]
    chunks = await it.openai().chat.completions.create(
        model="m", messages=[{"role": "user", "content": "hi"}], extra_body={"foo": 1}, stream=True
    )
    assert (
        "".join([chunk.choices[0].delta.content or "" async for chunk in chunks if chunk.choices])
        == "Hello"
    )
    claude = anthropic.AsyncAnthropic(
        api_key="none", base_url="http://localhost", http_client=it.http(), max_retries=0
    )
    message = await claude.messages.create(
        model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}], extra_body={"foo": 1}
    )
    assert message.model_extra is not None
    assert message.model_extra["dragoman_warnings"] == [UNKNOWN]


async def test_warnings_in_batch_line() -> None:
    async with run_background_server() as server:
        client = server.openai()
        lines = (test_batches.line("a", foo=1), test_batches.line("b"))
        batch = await test_batches.until(
            client, (await test_batches.begin(client, *lines)).id, *test_batches.ENDED
        )
        rows = await test_batches.results(client, batch.output_file_id)
        assert rows["a"]["response"]["body"]["dragoman_warnings"] == [UNKNOWN]
        assert "dragoman_warnings" not in rows["b"]["response"]["body"]


async def test_warnings_in_message_batch_result() -> None:
    async with run_background_server() as server:
        client = test_message_batches.sdk(server)
        requests = [test_message_batches.request("a", foo=1), test_message_batches.request("b")]
        batch = await client.messages.batches.create(requests=requests)
        await test_message_batches.ended(client, batch.id)
        found = await test_message_batches.results(client, batch.id)
        assert found["a"].message.model_extra["dragoman_warnings"] == [UNKNOWN]
        assert "dragoman_warnings" not in (found["b"].message.model_extra or {})


async def test_top_logprobs_unsupported_by_engine_warns() -> None:
    """A scripted engine has no alternatives: each token has probability 1."""
    it = build_server(HELLO)
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "logprobs": True}
    answer = await it.post("/v1/chat/completions", {**body, "top_logprobs": 5})
    assert (
        answer.headers["x-dragoman-warnings"]
        == "top_logprobs: this engine returns at most 1 per token"
    )
    assert [
        len(token["top_logprobs"]) for token in answer.json()["choices"][0]["logprobs"]["content"]
    ] == [1]
    assert (
        "x-dragoman-warnings"
        not in (await it.post("/v1/chat/completions", {**body, "top_logprobs": 1})).headers
    )
