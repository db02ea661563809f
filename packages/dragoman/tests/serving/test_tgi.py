"""TGI's routes with the embedded model: Hugging Face's client over a socket."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator
from typing import Any

import httpx2
import pytest
import pytest_asyncio
from huggingface_hub import AsyncInferenceClient
from huggingface_hub.errors import ValidationError

from dragoman.engines.scripted import Fail, Say, ScriptEntry
from dragoman.launch import Server, ShutdownConfig, build_models, build_uvicorn_config
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings
from dragoman_check.rules import tgi as grammar

from .harness import build_server
from .test_vllm import post, serving

PARAMETERS: dict[str, Any] = {"max_new_tokens": 6, "details": True}


def hugging_face(url: str) -> Any:
    """Return Hugging Face's client, as Any because it has hardly any types."""
    return AsyncInferenceClient(url, provider="hf-inference")


@pytest_asyncio.fixture
async def http() -> AsyncGenerator[httpx2.AsyncClient]:
    async with serving() as client:
        yield client


@pytest_asyncio.fixture
async def address() -> AsyncGenerator[str]:
    settings = Settings()
    models = build_models(settings, SystemClock())
    server = Server(
        build_uvicorn_config(build_asgi_app(models), settings),
        models,
        shutdown_config=ShutdownConfig(timeout=0.0),
    )
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        task = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        await task


@pytest.mark.parametrize("path", ["", "/generate"])
async def test_tgi_client_stream_equals_full_response(address: str, path: str):
    async with hugging_face(address + path) as client:
        full = await client.text_generation(
            "Once upon", **PARAMETERS, decoder_input_details=True, seed=3
        )
        stream = await client.text_generation(
            "Once upon", **PARAMETERS, top_n_tokens=2, stream=True
        )
        events = [event async for event in stream]
        texts = [
            text
            async for text in await client.text_generation(
                "Once upon", max_new_tokens=6, stream=True
            )
        ]
        plain = await client.text_generation("Once upon", max_new_tokens=6)
    details = full.details
    last = events[-1]
    assert details is not None
    assert last.details is not None
    assert (details.finish_reason, details.generated_tokens, details.seed) == ("length", 6, 3)
    assert (
        last.details.finish_reason,
        last.details.generated_tokens,
        last.details.input_length,
    ) == ("length", 6, 2)
    assert full.generated_text == last.generated_text == plain == "".join(texts)
    assert [token.id for token in details.tokens] == [event.token.id for event in events]
    assert [token.logprob for token in details.tokens] == [event.token.logprob for event in events]
    assert [len(event.top_tokens or ()) for event in events] == [2] * 6
    assert [token.logprob is None for token in details.prefill] == [True, False]


async def test_tgi_client_grammar_and_stop(address: str):
    async with hugging_face(address) as client:
        schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
        grammar: Any = {"type": "json", "value": schema}
        text = await client.text_generation("A pet:", grammar=grammar, max_new_tokens=40)
        stopped = await client.text_generation(
            "Once upon", stop=["there"], max_new_tokens=20, return_full_text=True
        )
        best = await client.text_generation(
            "Once upon", best_of=2, do_sample=True, seed=1, max_new_tokens=4
        )
        nothing = await client.text_generation(
            "Once upon", temperature=0.7, top_p=0.9, top_k=5, max_new_tokens=2
        )
    assert isinstance(json.loads(text)["a"], bool)
    assert stopped == "Once upon a time there", "TGI leaves a stop string in"
    assert best
    assert nothing


async def test_tgi_client_parses_errors(address: str):
    async with hugging_face(address) as client:
        with pytest.raises(ValidationError, match="watermark"):
            await client.text_generation("Once", watermark=True)
        with pytest.raises(ValidationError, match="nobody"):
            await client.text_generation("Once", adapter_id="nobody")
        info = await client.get_endpoint_info()
    assert (info["model_id"], info["model_pipeline_tag"]) == ("tiny", "text-generation")


async def test_tgi_stream_failure_sends_error_event():
    it = build_server(ScriptEntry((Say("Hello"), Fail(500, "the engine broke")), repeat=True))
    stream = await it.post("/generate_stream", {"inputs": "hi"})
    assert grammar.check_stream(stream.content) == []
    assert '"error_type":"generation"' in stream.text
    full = await it.post("/generate", {"inputs": "hi"})
    assert full.status_code == 424
    grammar.check_error(full.json())


async def test_tgi_stream_without_token_ids_returns_text():
    it = build_server(ScriptEntry((Say("Hello there"),), repeat=True))
    events = grammar.check_stream((await it.post("/generate_stream", {"inputs": "hi"})).content)
    assert events[-1]["generated_text"] == "Hello there"


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"do_sample": True, "seed": 4, "temperature": 2.0, "max_new_tokens": 12},
        {"max_new_tokens": 30, "stop": [" a"]},
        {"max_new_tokens": 30, "stop": ["e "]},
        {"max_new_tokens": 30, "stop": ["t t"]},
        {"max_new_tokens": 1},
    ],
)
async def test_tgi_stream_tokens_equal_full_response(
    http: httpx2.AsyncClient, params: dict[str, Any]
):
    body: dict[str, Any] = {
        "inputs": "Count to 3.",
        "parameters": {"max_new_tokens": 20, **params, "details": True},
    }
    full = await post(http, "/generate", **body)
    streamed = await http.post("/generate_stream", json=body)
    events = grammar.check_stream(streamed.content)
    grammar.check_object(full)
    assert events[-1]["generated_text"] == full["generated_text"]
    names = ("id", "text", "special", "logprob")
    streamed_tokens = [{name: each["token"][name] for name in names} for each in events]
    assert streamed_tokens == [
        {name: token[name] for name in names} for token in full["details"]["tokens"]
    ]
    assert events[-1]["details"].pop("input_length") == 5
    assert events[-1]["details"] == {name: full["details"][name] for name in events[-1]["details"]}


async def test_tgi_body_with_token_ids_matches_sglang_body(http: httpx2.AsyncClient):
    own = await post(
        http, "/generate", inputs=[5, 6, 7], parameters={"max_new_tokens": 6, "details": True}
    )
    grammar.check_object(own)
    theirs = await post(
        http,
        "/generate",
        input_ids=[5, 6, 7],
        sampling_params={"max_new_tokens": 6, "temperature": 0},
    )
    assert [token["id"] for token in own["details"]["tokens"]] == theirs["output_ids"]
    assert own["generated_text"] == theirs["text"]


async def test_tgi_errors_use_envelope_of_body_dialect(http: httpx2.AsyncClient):
    for path in ("/", "/generate", "/generate_stream"):
        rejected = await http.post(path, json={"inputs": "a", "parameters": {"temperature": "hot"}})
        assert rejected.status_code == 422
        grammar.check_error(rejected.json())
        assert "parameters.temperature" in rejected.json()["error"]
    assert (await http.post("/generate", json={"text": 1})).json()["error"]["param"] == "text"
    wrong = await http.get("/generate_stream")
    assert wrong.status_code == 405
    grammar.check_error(wrong.json())
    missing = await http.get("/info?model=nobody")
    assert missing.status_code == 404
    grammar.check_error(missing.json())
