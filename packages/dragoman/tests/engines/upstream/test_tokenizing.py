"""The upstream tokenizes and counts as the server itself does; if it cannot, nothing is
guessed.
"""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from tests.engines.upstream.relays import VLLM, build_app, build_client, build_engine, direct
from tests.engines.upstream.stub_server import far_server
from tests.http.wire import serving

from dragoman.core.errors import EngineError, Unsupported
from dragoman.core.message import Message, Role, Text
from dragoman.core.request import Conversation, GenerateRequest
from dragoman.launch import build_models
from dragoman.pipeline.engine_backends import EventBackend
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.served_model import ServedModel
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings

HI = [{"role": "user", "content": "Say hi, 日本 😀, please."}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
FUNCTION = {"name": "add", "description": "Adds", "parameters": SCHEMA}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("/tokenize", {"prompt": "Grüße, 日本! 😀"}),
    ("/tokenize", {"prompt": "Once upon", "add_special_tokens": False, "return_token_strs": True}),
    ("/tokenize", {"messages": HI}),
    (
        "/tokenize",
        {
            "messages": HI,
            "tools": [{"type": "function", "function": FUNCTION}],
            "return_token_strs": True,
        },
    ),
    ("/tokenize", {"messages": HI, "add_generation_prompt": False}),
    ("/tokenize", {"messages": HI, "chat_template_kwargs": {"enable_thinking": False}}),
    ("/detokenize", {"tokens": [40, 41, 300, 301]}),
    ("/detokenize", {"tokens": [40, 10**8]}),
    ("/v1/messages/count_tokens", {"messages": HI}),
    ("/v1/messages/count_tokens", {"messages": HI, "system": "Be brief."}),
    (
        "/v1/messages/count_tokens",
        {"messages": HI, "tools": [{"name": "add", "input_schema": SCHEMA}]},
    ),
    ("/v1/messages/count_tokens", {"messages": HI, "thinking": {"type": "disabled"}}),
    (
        "/v1/messages/count_tokens",
        {"messages": HI, "thinking": {"type": "enabled", "budget_tokens": 1024}},
    ),
    ("/v1/messages/count_tokens", {"messages": HI, "output_config": {"effort": "low"}}),
    (
        "/v1/messages/count_tokens",
        {
            "messages": HI,
            "tools": [{"name": "add", "input_schema": SCHEMA}],
            "tool_choice": {"type": "none"},
        },
    ),
    ("/v1/responses/input_tokens", {"input": HI, "reasoning": {"effort": "low"}}),
    ("/v1/responses/input_tokens", {"input": HI, "instructions": "Be brief."}),
]
ASK = GenerateRequest("m", Conversation((Message(Role.USER, (Text("hi"),)),)))


@pytest.fixture(scope="module")
def embedded() -> Models:
    return build_models(Settings(served_model_name=("m",), max_model_len=2048), SystemClock())


@pytest.mark.parametrize("kind", ["dragoman", "vllm"])
@pytest.mark.parametrize(("path", "body"), CASES)
async def test_tokenize_matches_through_upstream(
    embedded: Models, path: str, body: dict[str, Any], kind: str
) -> None:
    if kind == "vllm" and "tool_choice" in body:
        pytest.skip("vLLM's prompts show tools that must not be called, and this server's do not")
    async with direct(embedded, VLLM) as client:
        expected = await client.post(path, json={"model": "m", **body})
    await embedded.start()
    try:
        async with serving(build_app(embedded, VLLM)) as wire:
            upstream = build_engine(f"http://127.0.0.1:{wire.port}", kind=kind)
            front = Models([ServedModel("m", EventBackend(upstream), 2048, 1)])
            await front.start()
            try:
                async with build_client(build_app(front, VLLM)) as client:
                    found = await client.post(path, json={"model": "m", **body})
            finally:
                await front.stop()
    finally:
        await embedded.stop()
    assert found.status_code == expected.status_code
    assert found.json() == expected.json()


async def test_tokenize_without_upstream_support_raises() -> None:
    client = build_engine("http://127.0.0.1:9", kind="openai")
    for call in (
        client.count_prompt_tokens(ASK),
        client.tokenize_prompt(ASK),
        client.detokenize((1, 2)),
    ):
        with pytest.raises(Unsupported, match="does not offer tokenization"):
            await call


async def test_detokenize_return_token_strs_is_rejected() -> None:
    front = Models([ServedModel("m", EventBackend(build_engine("http://127.0.0.1:9")), 2048, 1)])
    async with build_client(build_app(front, VLLM)) as client:
        answer = await client.post(
            "/detokenize", json={"model": "m", "tokens": [1], "return_token_strs": True}
        )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "return_token_strs"


@pytest.mark.parametrize(
    "body", ['{"count": 3, "tokens": [1, 2]}', "{}", "no JSON", '{"count": 1, "tokens": ["a"]}']
)
async def test_count_prompt_tokens_invalid_response_raises(body: str) -> None:
    async with far_server(lambda _: httpx2.Response(200, text=body)) as address:
        client = build_engine(address)
        await client.start()
        try:
            with pytest.raises(EngineError, match="invalid response"):
                await client.count_prompt_tokens(ASK)
        finally:
            await client.stop()
