"""Every engine over HTTP: each parameter is applied, rejected with a 400 that names it,
or listed in a warning.

`REJECTED` lists what an engine rejects, so that an engine can neither start nor stop
ignoring a parameter unnoticed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx2
import jsonschema_rs
import pytest
import pytest_asyncio

from dragoman import CONSTRAINED_TOKEN_CAPABILITIES, BaseTokenEngine, TokenRequest
from dragoman.engines import tiny
from dragoman.launch import build_models
from dragoman.launch.plugin import build_served_model
from dragoman.pipeline.model_registry import Models
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings

from .test_kit import (
    documented,
    embedded,
    in_llamacpp,
    in_torch,
    scripted,
    simulated,
    started,
    upstream,
)

PLAIN = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
)
"""A chat template without tools, like many models'."""


class FirstTokenPlugin(BaseTokenEngine):
    """A plug-in that samples the first token that a grammar allows, or words without a
    grammar.
    """

    capabilities = CONSTRAINED_TOKEN_CAPABILITIES

    async def generate(self, request: TokenRequest) -> AsyncGenerator[int]:
        while True:
            mask = None if request.matcher is None else request.matcher.mask()
            yield (
                300
                if mask is None
                else next(id for id in range(8 * len(mask)) if mask[id >> 3] >> (id & 7) & 1)
            )


class WordsPlugin(BaseTokenEngine):
    """A plug-in that supports only sampling."""

    async def generate(self, request: TokenRequest) -> AsyncGenerator[int]:
        for number in range(1000):
            yield 300 + (request.prompt[-1] + number) % 100


def plug_in(kind: type[BaseTokenEngine]) -> Models:
    engine = kind(tiny.find_bundled_model(), max_model_len=4096)
    return Models([build_served_model(engine, Settings(), SystemClock(), own_name="plug-in")])


@asynccontextmanager
async def without_tools() -> AsyncGenerator[Models]:
    with TemporaryDirectory() as folder:
        template = Path(folder) / "plain.jinja"
        template.write_text(PLAIN)
        settings = Settings(chat_template=str(template), max_model_len=4096)
        async with started(build_models(settings, SystemClock())) as models:
            yield models


ENGINES: dict[str, Callable[[], AbstractAsyncContextManager[Models]]] = {
    "tiny": lambda: started(embedded()),
    "without tools": without_tools,
    "llamacpp": in_llamacpp,
    "transformers": lambda: started(in_torch()),
    "upstream": upstream,
    "upstream: anthropic": lambda: upstream("anthropic"),
    "upstream: responses": lambda: upstream("responses"),
    "plug-in with grammars": lambda: started(plug_in(FirstTokenPlugin)),
    "plug-in": lambda: started(plug_in(WordsPlugin)),
    "documented plug-in": lambda: started(documented()),
    "sim": lambda: started(simulated()),
    "scripted": lambda: started(scripted()),
}
REJECTED = {
    "upstream": {"count"},
    "upstream: anthropic": {"logprobs", "token ids", "count", "text"},
    "upstream: responses": {"logprobs", "token ids", "count", "text"},
    "plug-in with grammars": {"logprobs"},
    "plug-in": {"logprobs", "tool_choice", "response_format"},
    "documented plug-in": {
        "logprobs",
        "tool_choice",
        "tools auto",
        "response_format",
        "token ids",
        "count",
    },
    "scripted": {"tool_choice", "response_format", "count"},
}
"""What each engine rejects, by the name of the check."""
MARKS = {"llamacpp": pytest.mark.llamacpp, "transformers": pytest.mark.torch}


@dataclass
class Subject:
    name: str
    models: Models
    client: httpx2.AsyncClient

    async def chat(self, text: str = "Tell me a story.", **fields: Any) -> httpx2.Response:
        body = {
            "messages": [{"role": "user", "content": text}],
            "temperature": 0,
            "seed": 7,
            "max_tokens": 24,
        }
        return await self.client.post("/v1/chat/completions", json={**body, **fields})

    async def check(
        self, check: str, answer: httpx2.Response, *params: str
    ) -> dict[str, Any] | None:
        """Return the response, or None if this engine rejects the request and names one
        of these fields.
        """
        rejects = check in REJECTED.get(self.name, set())
        assert answer.status_code == (400 if rejects else 200), answer.text
        if not rejects:
            return answer.json()
        error = answer.json()["error"]
        assert error["message"]
        assert (error["param"] or "").split(".")[0] in params, error
        return None


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=[pytest.param(name, id=name, marks=MARKS.get(name, ())) for name in ENGINES],
)
async def subject(request: pytest.FixtureRequest) -> AsyncGenerator[Subject]:
    async with ENGINES[request.param]() as models:
        transport = httpx2.ASGITransport(build_asgi_app(models))
        async with httpx2.AsyncClient(
            transport=transport, base_url="http://localhost", timeout=60
        ) as client:
            yield Subject(request.param, models, client)


def events(answer: httpx2.Response) -> list[dict[str, Any]]:
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def message(body: dict[str, Any], choice: int = 0) -> dict[str, Any]:
    return body["choices"][choice]["message"]


async def test_chat_stream_matches_response(subject: Subject) -> None:
    full = (await subject.chat()).json()
    streamed = events(await subject.chat(stream=True, stream_options={"include_usage": True}))
    text = "".join(
        chunk["choices"][0]["delta"].get("content") or "" for chunk in streamed if chunk["choices"]
    )
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in streamed if chunk["choices"]]
    assert text == (message(full)["content"] or "")
    assert reasons[-1] == full["choices"][0]["finish_reason"]
    usage = full["usage"]
    streamed_usage = streamed[-1]["usage"]
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert usage[name] == streamed_usage[name]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert 0 < usage["completion_tokens"] <= 24


async def test_logprobs_tokens_match_text(subject: Subject) -> None:
    body = await subject.check(
        "logprobs", await subject.chat(logprobs=True, top_logprobs=2), "logprobs"
    )
    if body is None:
        return
    tokens = body["choices"][0]["logprobs"]["content"]
    assert "".join(token["token"] for token in tokens) == message(body)["content"]
    assert all(token["logprob"] <= 0 and len(token["top_logprobs"]) <= 3 for token in tokens)
    if not message(body).get("reasoning_content"):
        assert len(tokens) in (
            body["usage"]["completion_tokens"],
            body["usage"]["completion_tokens"] - 1,
        )


async def test_stop_string_truncates_text(subject: Subject) -> None:
    full = message((await subject.chat()).json())["content"]
    stop = full[4:7]
    body = (await subject.chat(stop=[stop])).json()
    assert message(body)["content"] == full[: full.index(stop)]
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] <= 24


async def test_n_choices_return_indexed_choices(subject: Subject) -> None:
    body = await subject.check("n", await subject.chat(n=2), "n")
    if body is not None:
        assert [choice["index"] for choice in body["choices"]] == [0, 1]
        assert 0 < body["usage"]["completion_tokens"] <= 48


TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"sunny": {"type": "boolean"}},
            "required": ["sunny"],
            "additionalProperties": False,
        },
    },
}
NAMED = {"type": "function", "function": {"name": "get_weather"}}


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
async def test_required_tool_call_is_generated_or_rejected(subject: Subject, choice: Any) -> None:
    answer = await subject.chat(tools=[TOOL], tool_choice=choice, max_tokens=200)
    body = await subject.check("tool_choice", answer, "tool_choice", "tools")
    if body is not None:
        for call in message(body)["tool_calls"]:
            assert call["function"]["name"] == "get_weather"
            jsonschema_rs.validate(
                TOOL["function"]["parameters"], json.loads(call["function"]["arguments"])
            )
        assert message(body)["tool_calls"]


@pytest.mark.parametrize("choice", ["none", "auto"])
async def test_optional_tool_choice_causes_no_server_error(subject: Subject, choice: str) -> None:
    answer = await subject.chat(tools=[TOOL], tool_choice=choice)
    body = await subject.check(f"tools {choice}", answer, "tool_choice", "tools")
    if body is None:
        return
    if choice == "none":
        assert not message(body).get("tool_calls")
    elif subject.name == "without tools":
        assert (
            "tools: this model has no known tool call format"
            in answer.headers["x-dragoman-warnings"]
        )


SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}


async def test_json_schema_is_enforced_or_rejected(subject: Subject) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}}
    answer = await subject.chat(response_format=schema, max_tokens=200)
    body = await subject.check("response_format", answer, "response_format")
    if body is not None:
        jsonschema_rs.validate(SCHEMA, json.loads(message(body)["content"]))


async def test_unknown_field_causes_warning(subject: Subject) -> None:
    answer = await subject.chat(temprature=1)
    assert answer.status_code == 200
    assert "temprature is ignored" in answer.headers["x-dragoman-warnings"]


async def test_unsupported_parameters_cause_warnings(subject: Subject) -> None:
    """An engine's capabilities list the parameters that it supports; the client is
    warned about the others.
    """
    fields: dict[str, Any] = {
        "top_k": 5,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "logit_bias": {"5": 1},
        "min_tokens": 2,
    }
    answer = await subject.chat(**fields)
    assert answer.status_code == 200, answer.text
    honoured = next(iter(subject.models)).capabilities.parameters
    warnings = answer.headers.get("x-dragoman-warnings", "")
    assert {name for name in fields if f"{name} is ignored" in warnings} == {
        n for n in fields if n not in honoured
    }


async def test_warning_contains_field_name_of_request(subject: Subject) -> None:
    honours = "truncate_prompt" in next(iter(subject.models)).capabilities.parameters
    chat = await subject.chat(truncate_prompt_tokens=500)
    body = {"inputs": "Hello", "parameters": {"truncate": 500, "max_new_tokens": 2}}
    raw = await subject.client.post("/generate", json=body)
    if "text" in REJECTED.get(subject.name, set()):
        assert (raw.status_code, raw.json()["error"].partition(":")[0]) == (422, "inputs")
        raw = chat
    answers = ((chat, "truncate_prompt_tokens"), (raw, "parameters.truncate"))
    for answer, name in answers if raw is not chat else answers[:1]:
        assert answer.status_code == 200, answer.text
        warning = f"{name} is ignored: this model's engine does not support it"
        assert honours or warning in answer.headers["x-dragoman-warnings"]


async def test_invalid_temperature_returns_400_with_param(subject: Subject) -> None:
    for stream in (False, True):
        answer = await subject.chat(temperature=-1, stream=stream)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "temperature")


async def test_prompt_over_context_returns_400(subject: Subject) -> None:
    answer = await subject.chat("word " * 20_000)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "context_length_exceeded"), error


async def test_client_disconnect_stops_generation(subject: Subject) -> None:
    asking = asyncio.create_task(subject.chat(stream=True, max_tokens=2000))
    model = next(iter(subject.models))
    while not model.progress.running and not asking.done():  # noqa: ASYNC110 - as below
        await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    while model.progress.running or model.backend.engine.health().running:  # noqa: ASYNC110 - there is no event for it
        await asyncio.sleep(0)


async def test_token_ids_are_accepted_and_returned(subject: Subject) -> None:
    body = {"prompt": [300, 301, 302], "temperature": 0, "max_tokens": 5, "return_token_ids": True}
    answer = await subject.client.post("/v1/completions", json=body)
    response = await subject.check("token ids", answer, "prompt", "return_token_ids")
    if response is not None:
        assert response["choices"][0]["prompt_token_ids"] == [300, 301, 302]
        assert response["usage"]["prompt_tokens"] == 3
        ids = response["choices"][0]["token_ids"]
        assert len(ids) == response["usage"]["completion_tokens"]


async def test_usage_prompt_tokens_match_tokenize(subject: Subject) -> None:
    used = (await subject.chat()).json()["usage"]["prompt_tokens"]
    counted = await subject.client.post(
        "/tokenize", json={"messages": [{"role": "user", "content": "Tell me a story."}]}
    )
    response = await subject.check("count", counted, "model", "messages")
    if response is not None:
        assert response["count"] == used


UNKNOWN = [10**9, 10**9 + 1, 10**9 + 2]


@pytest.mark.parametrize(
    "name", ["logit_bias", "stop_token_ids", "allowed_token_ids", "logprob_token_ids", "prompt"]
)
async def test_unknown_token_ids_are_all_listed_in_error(subject: Subject, name: str) -> None:
    """An engine without the parameter rejects it instead."""
    value = {str(id): 1 for id in (5, *UNKNOWN)} if name == "logit_bias" else [5, *UNKNOWN]
    body = {
        "prompt": "Hello",
        "max_tokens": 2,
        "logprobs": 1 if name == "logprob_token_ids" else None,
        name: value,
    }
    answer = await subject.client.post("/v1/completions", json=body)
    if f"{name} is ignored" in answer.headers.get("x-dragoman-warnings", ""):
        return
    assert answer.status_code == 400
    error = answer.json()["error"]
    if "does not support" not in error["message"]:
        assert error["param"] == name
        assert "Token ids 1000000000, 1000000001, 1000000002 are not in" in error["message"]
