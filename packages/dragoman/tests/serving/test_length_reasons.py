"""The reason of an answer that the request's limit or the context has cut off."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from tests.engines.upstream.relays import direct

from dragoman.launch import build_models
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings

ASK = {"messages": [{"role": "user", "content": "What is the capital of Japan?"}]}
ROOM = 4
"""Tokens that fit into the context after the prompt; the whole answer is longer."""


@pytest_asyncio.fixture
async def client() -> AsyncGenerator[httpx2.AsyncClient]:
    async with direct(build_models(Settings(), SystemClock())) as counting:
        counted = await counting.post("/v1/messages/count_tokens", json=ASK)
    limit = counted.json()["input_tokens"] + ROOM
    async with direct(build_models(Settings(max_model_len=limit), SystemClock())) as client:
        yield client


def find_last_event(answer: httpx2.Response, name: str) -> Any:
    """Return the last event of a stream with this field."""
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line[:7] == "data: {"]
    return [event for event in events if event.get(name)][-1]


@pytest.mark.parametrize(
    ("max_tokens", "reason"),
    [
        (ROOM - 1, "max_tokens"),
        (ROOM, "max_tokens"),
        (ROOM + 1, "model_context_window_exceeded"),
        (-1, "model_context_window_exceeded"),
    ],
)
async def test_messages_names_the_limit_of_answer(
    client: httpx2.AsyncClient, max_tokens: int, reason: str
):
    body = {**ASK, "model": "tiny", "max_tokens": max_tokens}
    whole = (await client.post("/v1/messages", json=body)).json()
    streamed = await client.post("/v1/messages", json=body | {"stream": True})
    assert whole["stop_reason"] == reason
    assert find_last_event(streamed, "delta")["delta"]["stop_reason"] == reason


@pytest.mark.parametrize("max_tokens", [ROOM - 1, None])
async def test_chat_reports_both_limits_as_length(
    client: httpx2.AsyncClient, max_tokens: int | None
):
    answer = await client.post("/v1/chat/completions", json=ASK | {"max_tokens": max_tokens})
    assert answer.json()["choices"][0]["finish_reason"] == "length"


async def test_responses_reports_full_context_as_incomplete(client: httpx2.AsyncClient):
    answer = (await client.post("/v1/responses", json={"input": ASK["messages"]})).json()
    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}


async def test_ollama_reports_full_context_as_length(client: httpx2.AsyncClient):
    answer = await client.post("/api/chat", json=ASK | {"model": "tiny", "stream": False})
    assert answer.json()["done_reason"] == "length"
