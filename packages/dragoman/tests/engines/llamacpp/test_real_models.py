"""Real models in llama.cpp: the answers of llama.cpp's own server, tools and schemas."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import jsonschema_rs
import pytest
from tests.engines.real_models import find_smollm2, join_gemma3

from dragoman.launch import build_models
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings

xllamacpp: Any = pytest.importorskip("xllamacpp", reason="needs xllamacpp")

pytestmark = pytest.mark.llamacpp

QUESTIONS = (
    "Say hello.",
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "Wie geht es dir?",
    "Count to five:\n1, 2,",
)
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@asynccontextmanager
async def serve_file(path: Path) -> AsyncGenerator[httpx2.AsyncClient]:
    settings = Settings(
        model=f"llamacpp:{path}", max_model_len=1024, max_num_seqs=4, threads=1, dtype="float16"
    )
    models = build_models(settings, SystemClock())
    await models.start()
    transport = httpx2.ASGITransport(build_asgi_app(models))
    try:
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield client
    finally:
        await models.stop()


async def complete(client: httpx2.AsyncClient, path: str, **body: Any) -> dict[str, Any]:
    (model,) = (await client.get("/v1/models")).json()["data"]
    response = await client.post(path, json={"model": model["id"], "temperature": 0, **body})
    assert response.status_code == 200, response.text
    return response.json()


def start_llamacpp(path: Path) -> Any:
    """Start llama.cpp's own server."""
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.verbosity = 0
    params.n_ctx = 1024
    params.n_parallel = 1
    params.use_jinja = True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    return xllamacpp.Server(params)


async def test_greedy_chat_answers_match_llamacpp_server() -> None:
    path = find_smollm2()
    server = start_llamacpp(path)
    async with serve_file(path) as client:
        for question in QUESTIONS:
            body = {"messages": [{"role": "user", "content": question}], "max_tokens": 24}
            ours = await complete(client, "/v1/chat/completions", **body)
            theirs = server.handle_chat_completions({**body, "temperature": 0})
            choice = ours["choices"][0]
            expected = theirs["choices"][0]
            assert choice["message"]["content"] == expected["message"]["content"]
            assert choice["finish_reason"] == expected["finish_reason"]
            assert ours["usage"]["prompt_tokens"] == theirs["usage"]["prompt_tokens"]


async def test_greedy_text_of_large_vocabulary_matches_llamacpp(tmp_path: Path) -> None:
    path = join_gemma3(tmp_path)
    server = start_llamacpp(path)
    async with serve_file(path) as client:
        for prompt in ("The capital of France is", "  def add(a, b):\n", "Es war einmal"):
            ours = await complete(client, "/v1/completions", prompt=prompt, max_tokens=12)
            theirs = server.handle_completions(
                {"prompt": prompt, "max_tokens": 12, "n_predict": 12, "temperature": 0}
            )
            assert ours["choices"][0]["text"] == theirs["choices"][0]["text"]
            assert ours["usage"]["prompt_tokens"] == theirs["usage"]["prompt_tokens"]


async def test_schema_and_required_tool_give_valid_json() -> None:
    async with serve_file(find_smollm2()) as client:
        messages = [{"role": "user", "content": "Invent a person called Mike."}]
        answer = await complete(
            client,
            "/v1/chat/completions",
            messages=messages,
            max_tokens=64,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "person", "schema": PERSON, "strict": True},
            },
        )
        content = json.loads(answer["choices"][0]["message"]["content"])
        jsonschema_rs.validate(PERSON, content)

        tool = {"type": "function", "function": {"name": "add_person", "parameters": PERSON}}
        answer = await complete(
            client,
            "/v1/chat/completions",
            messages=messages,
            max_tokens=96,
            tools=[tool],
            tool_choice="required",
        )
        choice = answer["choices"][0]
        assert choice["finish_reason"] == "tool_calls"
        (call,) = choice["message"]["tool_calls"]
        assert call["function"]["name"] == "add_person"
        jsonschema_rs.validate(PERSON, json.loads(call["function"]["arguments"]))
