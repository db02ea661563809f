"""The output of a server through the upstream engine is the same, byte for byte.

This holds in every dialect, streamed or not, although the two servers communicate only
by Chat Completions (and by Completions for text prompts). Only the ids of calls may
differ if each dialect generates its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import httpx2
import msgspec
import pytest
from tests.engines.upstream.relays import VLLM, direct, relay
from tests.serving.harness import load_tiny_tokenizer

from dragoman.engines.scripted import (
    CallTool,
    Refuse,
    Say,
    Script,
    ScriptedEngine,
    ScriptEntry,
    Think,
)
from dragoman.launch import build_models
from dragoman.pipeline.engine_backends import EventBackend
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.served_model import ServedModel
from dragoman.prompts.hf_tokenizer import HfTokenizer
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings

CALL = CallTool("add", '{"a": 1, "b": [2, {}]}', id="call_one")
REPLIES = {
    "text": (Say("One two three four."),),
    "bytes": (Say("Grüße, 日本! 😀"),),
    "thought": (Think("Let me think."), Say("Done.")),
    "call": (Say("I add."), CALL),
    "calls": (
        Think("Two."),
        CALL,
        CallTool("add", "{}", id="call_two"),
        CallTool("add", '{"a": "}"}', id="call_three"),
    ),
    "text after a call": (CALL, Say("There it is.")),
    "refusal": (Refuse("I would rather not."),),
    "nothing": (),
}
FUNCTION: dict[str, Any] = {
    "name": "add",
    "description": "Adds",
    "parameters": {"type": "object", "properties": {"a": {}}},
}
WARNINGS = "x-dragoman-warnings"
HI = [{"role": "user", "content": "Say hi, please."}]


def chat(**more: Any) -> tuple[str, dict[str, Any]]:
    tools = [{"type": "function", "function": FUNCTION}]
    return "/v1/chat/completions", {"model": "m", "messages": HI, "tools": tools, **more}


def completions(**more: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/completions", {"model": "m", "prompt": "Once upon a time", "max_tokens": 40, **more}


def responses(**more: Any) -> tuple[str, dict[str, Any]]:
    return "/v1/responses", {
        "model": "m",
        "input": HI,
        "tools": [{"type": "function", **FUNCTION}],
        **more,
    }


def messages(**more: Any) -> tuple[str, dict[str, Any]]:
    tools = [{"name": "add", "input_schema": FUNCTION["parameters"]}]
    return "/v1/messages", {"model": "m", "max_tokens": 100, "messages": HI, "tools": tools, **more}


CASES = {
    "chat": chat(),
    "chat of three": chat(n=3),
    "chat with logprobs": chat(logprobs=True, top_logprobs=2),
    "chat with ids": chat(return_token_ids=True, logprobs=True, return_tokens_as_token_ids=True),
    "chat cut short": chat(max_tokens=5),
    "chat with a stop": chat(stop=["three"]),
    "chat that forces a call": chat(tool_choice={"type": "function", "function": {"name": "add"}}),
    "completions": completions(),
    "completions of two prompts": completions(prompt=["Once", "Twice"], n=2),
    "completions of ids": completions(prompt=[40, 41, 42]),
    "completions with logprobs": completions(logprobs=2, return_token_ids=True),
    "completions of ids, with ids": completions(prompt=[300, 301, 302], return_token_ids=True),
    "completions of ids, echoed": completions(prompt=[300, 301, 302], echo=True),
    "completions with an echo": completions(echo=True),
    "completions with scores of the prompt": completions(prompt_logprobs=2),
    "chat with scores of the prompt": chat(prompt_logprobs=0),
    "responses": responses(),
    "messages": messages(),
    "messages with a stop": messages(stop_sequences=["three"]),
}


@pytest.fixture(scope="module")
def tokenizer() -> HfTokenizer:
    return load_tiny_tokenizer()


@pytest.fixture(scope="module")
def embedded() -> Models:
    return build_models(Settings(served_model_name=("m",), max_model_len=2048), SystemClock())


def build_scripted(tokenizer: HfTokenizer, *parts: Any) -> Models:
    engine = ScriptedEngine(Script((ScriptEntry(parts, repeat=True),)), tokenizer=tokenizer)
    return Models([ServedModel("m", EventBackend(engine, tokenizer), 4096, 1_700_000_000)])


def plain(body: bytes) -> bytes:
    """Replace ids by numbers in their order of appearance, and signatures, whose key
    differs per process.
    """
    found: dict[bytes, bytes] = {}

    def number(match: re.Match[bytes]) -> bytes:
        return found.setdefault(match[0], b"#%d" % len(found))

    body = re.sub(rb'"signature":"[^"]+"', b'"signature":"signed"', body)
    return re.sub(rb"(call|toolu|fc|rs|msg|resp|cmpl|chatcmpl)_?-?[0-9a-f]+", number, body)


Sending = tuple[str, dict[str, Any]]
"""The path and the body of a request."""


async def find_differences(make: Callable[[], Models], sendings: dict[str, Sending]) -> list[str]:
    """Send the requests to a server of these models, and to one whose upstream that is;
    return the requests whose responses differ, and how.
    """
    async with direct(make(), VLLM) as client:
        expected = [await client.post(path, json=body) for path, body in sendings.values()]
    async with relay(make(), VLLM) as client:
        found = [await client.post(path, json=body) for path, body in sendings.values()]
    return [
        f"{name}: {each.text} instead of {other.text}"
        for (name, (_, body)), each, other in zip(sendings.items(), found, expected, strict=True)
        if not is_same(each, other, body)
    ]


def is_same(found: httpx2.Response, expected: httpx2.Response, body: dict[str, Any]) -> bool:
    if (found.status_code, found.headers.get(WARNINGS)) != (
        expected.status_code,
        expected.headers.get(WARNINGS),
    ):
        return False
    if ("n" in body or isinstance(body.get("prompt"), list)) and body.get("stream"):
        # The interleaving of several answers is random.
        return sorted(plain(found.content).splitlines()) == sorted(
            plain(expected.content).splitlines()
        )
    return plain(found.content) == plain(expected.content)


def whole_and_streamed(cases: dict[str, Sending]) -> dict[str, Sending]:
    return {
        f"{name}{', streamed' if stream else ''}": (path, {**body, "stream": stream})
        for name, (path, body) in cases.items()
        for stream in (False, True)
    }


@pytest.mark.parametrize("reply", REPLIES)
async def test_scripted_responses_match_through_upstream(
    tokenizer: HfTokenizer, reply: str
) -> None:
    cases = whole_and_streamed(CASES)
    if reply == "bytes":
        # A completion's logprobs tell a token's text and not its bytes, by which offsets
        # are counted.
        del cases["completions with logprobs"], cases["completions with logprobs, streamed"]
    assert await find_differences(lambda: build_scripted(tokenizer, *REPLIES[reply]), cases) == []


async def test_bundled_model_responses_match_through_upstream(embedded: Models) -> None:
    sampling = {"temperature": 1.0, "seed": 5}
    cases: dict[str, Sending] = {}
    for name, (path, body) in whole_and_streamed(CASES).items():
        if body["stream"] and "prompt_logprobs" in body:
            # A stream has no logprobs of a prompt.
            continue
        limit = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
        cases[name] = (path, {limit: 24, **body, **sampling})
    assert await find_differences(lambda: embedded, cases) == []


ECHOES: dict[str, dict[str, Any]] = {
    "a text": {},
    "with alternatives": {"logprobs": 3},
    "ids": {"prompt": [300, 301, 302]},
    "one token": {"prompt": [300]},
    "two texts": {"prompt": ["Once upon", "Twice"], "logprobs": 1},
    "the prompt alone": {"max_tokens": 0},
    "two answers": {"n": 2, "max_tokens": 3},
    "tokens as ids": {"return_tokens_as_token_ids": True},
    "with ids": {"return_token_ids": True, "prompt_logprobs": 1},
}


async def test_echo_logprobs_match_through_upstream(embedded: Models) -> None:
    path, body = completions(echo=True, logprobs=0, max_tokens=8, temperature=1.0, seed=5)
    cases = {name: (path, {**body, **more}) for name, more in ECHOES.items()}
    assert await find_differences(lambda: embedded, cases) == []


@pytest.mark.parametrize("case", ECHOES)
async def test_echo_stream_matches_response(embedded: Models, case: str) -> None:
    body = {
        "model": "m",
        "prompt": "Once upon a time",
        "echo": True,
        "logprobs": 0,
        "max_tokens": 8,
        "seed": 5,
    }
    body = {**body, **ECHOES[case]}
    body.pop("prompt_logprobs", None)
    async with relay(embedded, VLLM) as client:
        full = (await client.post("/v1/completions", json=body)).json()
        streamed = (await client.post("/v1/completions", json={**body, "stream": True})).text
    chunks = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
    for choice in full["choices"]:
        parts = [
            part
            for chunk in chunks
            for part in chunk["choices"]
            if part["index"] == choice["index"]
        ]
        assert "".join(part["text"] for part in parts) == choice["text"]
        scores = [part["logprobs"] for part in parts if part["logprobs"] is not None]
        for column, values in choice["logprobs"].items():
            assert [value for score in scores for value in score[column]] == values


async def test_cache_salt_differs_per_api_key(tokenizer: HfTokenizer) -> None:
    behind = build_scripted(tokenizer, Say("Hi"))
    (model,) = behind
    assert isinstance(model.backend.engine, ScriptedEngine)
    options = msgspec.structs.replace(VLLM, api_key=("one", "two"))
    async with relay(behind, options) as client:
        for key in ("one", "two", "two"):
            path, body = chat(cache_salt="mine")
            answer = await client.post(path, json=body, headers={"authorization": f"Bearer {key}"})
            assert answer.status_code == 200
    first, second, third = (request.cache_salt for request in model.backend.engine.requests)
    assert first != second == third
    assert "mine" not in first
