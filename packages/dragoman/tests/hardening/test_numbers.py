"""No body causes a 5xx: numbers (vLLM CVE-2026-34756, llama.cpp CVE-2026-21869),
schemas, types.

Tested on the whole server with the embedded engine: values that pass the reader must
not break later stages.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from dragoman.launch import build_models
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings

texts = st.text(max_size=8) | st.sampled_from(
    ["tiny", "auto", "required", "none", "user", "<|im_end|>", "\ud8fe", "a" * 300]
)
numbers = (
    st.integers(-3, 40)
    | st.integers()
    | st.floats()
    | st.sampled_from([10**400, -1, 1.9, 2**63, -(2**63)])
)
scalars = st.none() | st.booleans() | numbers | texts
values: SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
messages: SearchStrategy[Any] = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "system", "assistant", "tool", "developer", "x"])
            | values
        },
        optional={
            "content": values,
            "tool_calls": values,
            "tool_call_id": values,
            "name": values,
            "reasoning": values,
        },
    ),
    max_size=3,
)
functions: SearchStrategy[Any] = st.fixed_dictionaries(
    {"name": st.sampled_from(["f", "g", ""]) | values},
    optional={"parameters": values, "strict": values},
)
tools: SearchStrategy[Any] = st.lists(
    st.fixed_dictionaries({"type": st.just("function") | values, "function": functions | values}),
    max_size=2,
)
schemas: SearchStrategy[Any] = st.fixed_dictionaries(
    {
        "type": st.just("json_schema"),
        "json_schema": st.fixed_dictionaries({"name": st.just("n"), "schema": values}),
    }
)
FIELDS = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "n",
    "seed",
    "stop",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "min_tokens",
    "stop_token_ids",
    "ignore_eos",
    "bad_words",
    "allowed_token_ids",
    "stream",
    "stream_options",
    "user",
    "metadata",
    "tool_choice",
    "parallel_tool_calls",
    "reasoning_effort",
    "prompt_logprobs",
    "return_token_ids",
    "echo",
    "best_of",
    "suffix",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "chat_template_kwargs",
    "priority",
    "cache_salt",
    "truncate_prompt_tokens",
    "add_generation_prompt",
    "continue_final_message",
    "documents",
    "thinking_token_budget",
    "model",
]
common: SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.sampled_from(FIELDS), values, max_size=4
)
bodies: SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"messages": messages | values},
    optional={"tools": tools | values, "response_format": schemas | values},
)
prompted: SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"prompt": values | st.lists(st.integers(0, 3000))}
)


def body_of(rest: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    return {"max_tokens": 3, **rest, **own}


chats = st.builds(body_of, common, bodies)
completions = st.builds(body_of, common, prompted)


class Server:
    """A server for all examples, with its own event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._models = build_models(Settings(max_model_len=64), SystemClock())
        self._loop.run_until_complete(self._models.start())
        transport = httpx2.ASGITransport(build_asgi_app(self._models))
        self._client = httpx2.AsyncClient(transport=transport, base_url="http://localhost")

    def post(self, path: str, body: bytes) -> httpx2.Response:
        headers = {"content-type": "application/json"}
        return self._loop.run_until_complete(self._client.post(path, content=body, headers=headers))

    def close(self) -> None:
        self._loop.run_until_complete(self._models.stop())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def check(answer: httpx2.Response) -> None:
    assert answer.status_code < 500, answer.text
    if answer.status_code != 200:
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert len(answer.content) < 8192
    assert '"internal_error"' not in answer.text


@given(body=chats)
def test_chat_generated_body_never_returns_5xx(server: Server, body: object) -> None:
    check(server.post("/v1/chat/completions", json.dumps(body).encode()))


@given(body=completions)
def test_completions_generated_body_never_returns_5xx(server: Server, body: object) -> None:
    check(server.post("/v1/completions", json.dumps(body).encode()))


@given(body=chats | completions | st.fixed_dictionaries({"tokens": values}))
def test_utility_routes_generated_body_never_returns_5xx(server: Server, body: object) -> None:
    check(server.post("/tokenize", json.dumps(body).encode()))
    check(server.post("/detokenize", json.dumps(body).encode()))


@given(body=st.binary(max_size=200))
def test_chat_arbitrary_bytes_never_return_5xx(server: Server, body: bytes) -> None:
    check(server.post("/v1/chat/completions", body))
