"""Ollama's routes with the embedded model, a script, and models that are loaded on
demand.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from dragoman.core.errors import EngineError, NotFound
from dragoman.core.events import Event, Started, TextDelta, Token
from dragoman.core.model_download import ModelPuller, PullProgress
from dragoman.dialects.ollama import LATEST, OllamaModelCard, render_tags
from dragoman.engines.scripted import Fail, Say, ScriptEntry
from dragoman.launch import build_models
from dragoman.pipeline.driver import BatchStream
from dragoman.pipeline.engine_backends import EventBackend, TokenBackend
from dragoman.pipeline.model_lifecycle import ModelSpec, ModelState
from dragoman.pipeline.model_registry import Models
from dragoman.pipeline.response_times import ResponseTimes
from dragoman.pipeline.served_model import ServedModel
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.serving.serving_options import ServingOptions
from dragoman.settings import GenerationConfig, Settings
from dragoman_check.rules import ollama as grammar

from ..pipeline.failing_engine import Clock, FailingEngine, sleep_forever
from .harness import build_server, load_tiny_tokenizer
from .infill_model import build_infill_models
from .test_vllm import serving

HELLO = [{"role": "user", "content": "What is the capital of Japan?"}]
GREEDY = {"temperature": 0}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


@pytest_asyncio.fixture
async def http() -> AsyncGenerator[httpx2.AsyncClient]:
    async with serving() as client:
        yield client


@pytest_asyncio.fixture
async def small() -> AsyncGenerator[httpx2.AsyncClient]:
    """With a context of 256 tokens."""
    models = build_models(Settings(max_model_len=256), SystemClock())
    await models.start()
    transport = httpx2.ASGITransport(build_asgi_app(models))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client
    await models.stop()


async def answer(http: httpx2.AsyncClient, path: str, **fields: Any) -> dict[str, Any]:
    """Return the full response, after checking that a stream of the same request equals
    it.
    """
    response = await http.post(path, json={"stream": False, **fields})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    full = response.json()
    is_chat = path == "/api/chat"
    grammar.check_object(full, is_chat=is_chat)
    streamed = await http.post(path, json=fields)
    assert streamed.headers["content-type"] == "application/x-ndjson"
    folded = grammar.fold_chunks(
        grammar.check_stream(streamed.content, is_chat=is_chat), is_chat=is_chat
    )
    assert drop_times(folded) == drop_times(full)
    return full


def drop_times(answer: dict[str, Any]) -> dict[str, Any]:
    message = answer.get("message", {})
    calls = [call["function"] for call in message.get("tool_calls", ())]
    stripped = {
        name: value
        for name, value in answer.items()
        if name != "created_at" and not name.endswith("duration")
    }
    return {**stripped, "message": {**message, "tool_calls": calls}}


async def refuse(
    http: httpx2.AsyncClient, method: str, path: str, json: object = None
) -> tuple[int, str]:
    response = await http.request(method, path, json=json)
    grammar.check_error(response.json())
    return response.status_code, response.json()["error"]


async def test_ollama_chat_full_response_and_stream(http: httpx2.AsyncClient):
    full = await answer(http, "/api/chat", model="tiny:latest", messages=HELLO, options=GREEDY)
    assert full["model"] == "tiny:latest"
    assert full["message"] == {"role": "assistant", "content": "The capital of Japan is Tokyo."}
    assert (full["done_reason"], full["prompt_eval_count"]) == ("stop", 17)
    assert (
        full["total_duration"]
        >= full["load_duration"] + full["prompt_eval_duration"] + full["eval_duration"]
    )
    assert full["eval_duration"] > 0


async def test_ollama_chat_streams_by_default(http: httpx2.AsyncClient):
    response = await http.post(
        "/api/chat", json={"model": "tiny", "messages": HELLO, "options": GREEDY}
    )
    chunks = grammar.check_stream(response.content, is_chat=True)
    assert len(chunks) > 4
    assert [chunk["done"] for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


async def test_ollama_think_separates_thinking_from_content(http: httpx2.AsyncClient):
    sums = [{"role": "user", "content": "What is 17 + 26?"}]
    for think in (True, "high"):
        message = (await answer(http, "/api/chat", messages=sums, options=GREEDY, think=think))[
            "message"
        ]
        assert message["thinking"] == "I need to add 17 and 26. The sum is 43."
        assert message["content"] == "17 + 26 = 43."
    assert (
        "thinking"
        not in (await answer(http, "/api/chat", messages=sums, options=GREEDY, think=False))[
            "message"
        ]
    )
    assert (
        "43"
        in (
            await answer(
                http, "/api/generate", prompt=sums[0]["content"], options=GREEDY, think=True
            )
        )["thinking"]
    )


async def test_ollama_format_enforces_json_schema(http: httpx2.AsyncClient):
    body = {"messages": HELLO, "options": {"seed": 3, "num_predict": 60}}
    value = json.loads(
        (await answer(http, "/api/chat", **body, format=SCHEMA))["message"]["content"]
    )
    assert set(value) == {"a"}
    completion = await answer(
        http, "/api/generate", prompt="Say", format=SCHEMA, options={"seed": 3}
    )
    assert isinstance(json.loads(completion["response"])["a"], int)
    begun = await answer(http, "/api/chat", **body, format="json")
    assert begun["message"]["content"].lstrip().startswith("{")


async def test_ollama_tool_call_and_result_round_trip(http: httpx2.AsyncClient):
    question: list[dict[str, Any]] = [{"role": "user", "content": "What is the weather in Rome?"}]
    body = {"tools": [WEATHER], "options": GREEDY}
    message = (await answer(http, "/api/chat", messages=question, **body))["message"]
    (call,) = message["tool_calls"]
    assert (call["function"]["name"], call["function"]["arguments"]) == (
        "get_weather",
        {"city": "Rome"},
    )
    result = {"role": "tool", "tool_name": "get_weather", "content": "sunny"}
    last = await answer(http, "/api/chat", messages=[*question, message, result], **body)
    assert last["message"]["content"]


async def test_ollama_logprobs_match_tokens(http: httpx2.AsyncClient):
    response = await answer(
        http, "/api/chat", messages=HELLO, options=GREEDY, logprobs=True, top_logprobs=2
    )
    assert (
        "".join(entry["token"] for entry in response["logprobs"]) == response["message"]["content"]
    )
    assert all(len(entry["top_logprobs"]) == 2 for entry in response["logprobs"])
    plain = await answer(http, "/api/generate", prompt="Hello", options=GREEDY, logprobs=True)
    assert all("top_logprobs" not in entry for entry in plain["logprobs"])


async def test_ollama_generate_context_continues_prompt(http: httpx2.AsyncClient):
    first = await answer(
        http, "/api/generate", prompt="What is the capital of Japan?", options=GREEDY
    )
    assert len(first["context"]) == first["prompt_eval_count"] + first["eval_count"]
    second = await answer(
        http, "/api/generate", prompt="And of France?", context=first["context"], options=GREEDY
    )
    alone = await answer(http, "/api/generate", prompt="And of France?", options=GREEDY)
    assert second["context"][: len(first["context"])] == first["context"]
    assert second["prompt_eval_count"] == len(first["context"]) + alone["prompt_eval_count"]
    status, error = await refuse(http, "POST", "/api/generate", {"prompt": "a", "context": [10**6]})
    assert (status, "vocabulary" in error) == (400, True)


async def test_ollama_generate_raw_skips_template_and_context(http: httpx2.AsyncClient):
    raw = await answer(
        http, "/api/generate", prompt="Once upon", raw=True, options={**GREEDY, "num_predict": 4}
    )
    assert "context" not in raw
    assert (raw["prompt_eval_count"], raw["eval_count"], raw["done_reason"]) == (2, 4, "length")


async def test_ollama_chat_continues_final_assistant_message(http: httpx2.AsyncClient):
    begun = [*HELLO, {"role": "assistant", "content": "The capital of"}]
    assert (await answer(http, "/api/chat", messages=begun, options=GREEDY))["message"][
        "content"
    ] == " Japan is Tokyo."


async def test_ollama_generate_suffix_unsupported_model_rejected(http: httpx2.AsyncClient):
    status, error = await refuse(
        http, "POST", "/api/generate", {"prompt": "def f(", "suffix": "return 1"}
    )
    assert (status, error) == (400, "suffix: 'tiny' does not support insert")


async def test_ollama_generate_suffix_builds_infill_prompt(tmp_path: Path):
    models, size = build_infill_models(tmp_path)
    (model,) = models
    await models.start()
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(build_asgi_app(models)), base_url="http://localhost"
    ) as client:
        body = {
            "prompt": "def f(",
            "suffix": "return 1",
            "stream": False,
            "options": {"num_predict": 2},
        }
        response = (await client.post("/api/generate", json=body)).json()
        details = (await client.post("/api/show", json={"model": "coder"})).json()
    await models.stop()
    assert isinstance(model.backend, TokenBackend)
    encode = model.backend.tokenizer.encode
    texts = [encode("def f(", special=False), encode("return 1", special=False)]
    prompt = [size, *texts[0], size + 1, *texts[1], size + 2]
    assert response["context"][: response["prompt_eval_count"]] == prompt
    assert "insert" in details["capabilities"]


async def test_ollama_generate_template_requires_trust_setting(http: httpx2.AsyncClient):
    status, error = await refuse(
        http, "POST", "/api/generate", {"prompt": "a", "template": "{{ messages }}"}
    )
    assert status == 400
    assert "--trust-request-chat-template" in error


async def test_ollama_chat_oversized_context_rejected(
    small: httpx2.AsyncClient,
):
    body = {"messages": HELLO, "stream": False, "options": {**GREEDY, "num_ctx": 8192}}
    response = await small.post("/api/chat", json=body)
    assert (
        response.headers["x-dragoman-warnings"]
        == "options.num_ctx: the context of this model is 256 tokens"
    )
    lower = await small.post("/api/chat", json={**body, "options": {**GREEDY, "num_ctx": 64}})
    assert "x-dragoman-warnings" not in lower.headers
    long = [{"role": "user", "content": "word " * 400}]
    status, error = await refuse(small, "POST", "/api/chat", {"messages": long, "stream": True})
    assert (status, "maximum context length" in error) == (400, True)


async def test_ollama_warnings_use_option_names_outside_stream(small: httpx2.AsyncClient):
    fields = {"messages": HELLO, "options": {**GREEDY, "num_predict": 8192}}
    body = {"x-dragoman-warnings": "body"}
    streamed = await small.post("/api/chat", json=fields, headers=body)
    assert streamed.headers["x-dragoman-warnings"].startswith(
        "options.num_predict is reduced from 8192"
    )
    grammar.check_stream(streamed.content, is_chat=True)
    full = (await small.post("/api/chat", json={**fields, "stream": False}, headers=body)).json()
    assert full["dragoman_warnings"] == [streamed.headers["x-dragoman-warnings"]]


async def test_ollama_chat_truncate_drops_oldest_turns_with_warning(small: httpx2.AsyncClient):
    turns = [
        {"role": role, "content": "word " * 50} for _ in range(4) for role in ("user", "assistant")
    ]
    body = {"messages": [*turns, *HELLO], "options": GREEDY, "stream": False}
    assert (await refuse(small, "POST", "/api/chat", body))[0] == 400
    response = await small.post("/api/chat", json={**body, "truncate": True})
    assert response.status_code == 200, response.text
    assert "oldest messages were omitted" in response.headers["x-dragoman-warnings"]


async def test_ollama_embed_equals_openai_embeddings(http: httpx2.AsyncClient):
    texts = ["a cat", "a dog"]
    response = (await http.post("/api/embed", json={"model": "tiny", "input": texts})).json()
    theirs = (await http.post("/v1/embeddings", json={"model": "tiny", "input": texts})).json()
    expected = [entry["embedding"] for entry in theirs["data"]]
    assert [pytest.approx(vector, abs=1e-6) for vector in expected] == response["embeddings"]
    assert response["prompt_eval_count"] == theirs["usage"]["prompt_tokens"]
    assert response["total_duration"] >= response["load_duration"] >= 0
    single = (await http.post("/api/embeddings", json={"model": "tiny", "prompt": "a cat"})).json()
    assert single["embedding"] == pytest.approx(expected[0], abs=1e-6)
    nothing = (await http.post("/api/embed", json={"model": "tiny", "input": []})).json()
    assert nothing["embeddings"] == []
    assert (await http.post("/api/embeddings", json={"model": "tiny"})).json() == {"embedding": []}


async def test_ollama_embed_truncates_by_default(small: httpx2.AsyncClient):
    long = {"model": "tiny", "input": "word " * 400}
    assert len((await small.post("/api/embed", json=long)).json()["embeddings"]) == 1
    status, error = await refuse(small, "POST", "/api/embed", {**long, "truncate": False})
    assert (status, "maximum context length" in error) == (400, True)


@pytest.mark.parametrize(
    ("count", "written"),
    [
        (None, ""),
        (512, "512"),
        (22_000, "22K"),
        (1967808, "1.97M"),
        (8_000_000_000, "8B"),
        (8_190_735_360, "8.2B"),
    ],
)
def test_ollama_parameter_size_format(count: int | None, written: str):
    card = OllamaModelCard("m", "m", 0, parameters=count)
    (listed,) = json.loads(render_tags([card]))["models"]
    assert listed["details"]["parameter_size"] == written


async def test_ollama_durations_measured_by_pipeline():
    """Two seconds in the queue, three until the first token, four more until the last,
    one until the end.
    """
    clock = iter((0.0, 2.0, 5.0, 7.0, 9.0))
    times = ResponseTimes(lambda: next(clock))

    async def answer_slowly() -> AsyncGenerator[list[Event]]:
        yield [Started(3)]
        for word in "abc":
            yield [TextDelta(0, word, (Token(1, word),))]

    assert len([batch async for batch in BatchStream(answer_slowly(), times)]) == 4
    assert (times.prefill_seconds, times.decode_seconds) == (3.0, 4.0)


async def test_ollama_tags_show_and_ps_describe_model(http: httpx2.AsyncClient):
    (listed,) = (await http.get("/api/tags")).json()["models"]
    assert listed["name"] == listed["model"] == "tiny:latest"
    assert len(listed["digest"]) == 64
    facts = {
        "format": "safetensors",
        "family": "llama",
        "families": ["llama"],
        "parameter_size": "1.97M",
    }
    assert listed["details"] == {"parent_model": "", **facts, "quantization_level": "BF16"}
    assert listed["size"] > 2 * 1967808
    details = (await http.post("/api/show", json={"model": "tiny:latest"})).json()
    assert details["capabilities"] == ["completion", "tools", "embedding", "thinking"]
    assert details["details"] == listed["details"]
    architecture = details["model_info"]["general.architecture"]
    assert (architecture, details["model_info"]["general.parameter_count"]) == ("llama", 1967808)
    cards = (await http.get("/v1/models")).json()["data"]
    assert details["model_info"][f"{architecture}.context_length"] == cards[0]["max_model_len"]
    assert details["model_info"][f"{architecture}.embedding_length"] == 192
    assert "{%" in details["template"]
    (running,) = (await http.get("/api/ps")).json()["models"]
    assert (running["details"], running["size"]) == (listed["details"], listed["size"])
    assert (running["name"], running["context_length"]) == (
        "tiny:latest",
        cards[0]["max_model_len"],
    )
    assert running["expires_at"] > "2200"
    assert (await http.get("/api/version")).json()["version"].count(".") == 2


@pytest.mark.parametrize(
    "path", ["/api/chat", "/api/generate", "/api/embed", "/api/embeddings", "/api/show"]
)
async def test_ollama_unknown_model_returns_404(http: httpx2.AsyncClient, path: str):
    status, error = await refuse(
        http, "POST", path, {"model": "llama3.2", "messages": HELLO, "prompt": "a"}
    )
    assert (status, error) == (404, "model 'llama3.2' not found, served here: tiny")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("DELETE", "/api/delete"),
        ("POST", "/api/copy"),
        ("POST", "/api/create"),
        ("POST", "/api/push"),
        ("POST", "/api/blobs/sha256:0123"),
    ],
)
async def test_ollama_model_changing_routes_rejected(
    http: httpx2.AsyncClient, method: str, path: str
):
    status, error = await refuse(http, method, path, {"model": "tiny"})
    assert status == 400
    assert error.startswith(f"{method} {path.partition('/sha256')[0]} is not supported: ")


async def test_ollama_errors_use_envelope_on_unknown_routes(http: httpx2.AsyncClient):
    assert (await refuse(http, "GET", "/api/nothing"))[0] == 404
    assert (await refuse(http, "GET", "/api/chat"))[0] == 405
    assert (await refuse(http, "POST", "/api/chat", []))[0] == 400
    status, error = await refuse(
        http, "POST", "/api/chat", {"messages": HELLO, "options": {"num_predict": "a"}}
    )
    assert (status, "options.num_predict" in error) == (400, True)


async def test_ollama_form_content_type_accepted_without_origin(http: httpx2.AsyncClient):
    """Ollama's documentation has `curl URL -d '{...}'`, which sends a form's content
    type.
    """
    body = json.dumps({"model": "tiny", "messages": HELLO, "stream": False}).encode()
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert (await http.post("/api/chat", content=body, headers=form)).status_code == 200
    for origin in ("http://localhost", "null", "https://evil.example"):
        rejected = await http.post("/api/chat", content=body, headers={**form, "origin": origin})
        assert rejected.status_code in (403, 415)
    chat = await http.post("/v1/chat/completions", content=body, headers=form)
    assert chat.status_code == 415


async def test_ollama_missing_content_type_accepted_without_origin(
    http: httpx2.AsyncClient,
):
    body = json.dumps({"model": "tiny", "messages": HELLO, "stream": False}).encode()
    assert (await http.post("/api/chat", content=body)).status_code == 200
    assert (
        await http.post("/api/chat", content=body, headers={"content-type": "text/plain"})
    ).status_code == 415
    assert (
        await http.post("/api/chat", content=body, headers={"origin": "https://evil.example"})
    ).status_code == 403


async def test_ollama_root_text_only_for_ollama_user_agents(http: httpx2.AsyncClient):
    for agent in (
        "ollama-python/0.6.3 (x86_64 linux)",
        "ollama/0.12.0 (amd64 linux) Go/1.24",
        "ollama-js/0.6.3",
    ):
        assert (await http.get("/", headers={"user-agent": agent})).text == "Ollama is running"
    assert (await http.get("/")).text.startswith("Dragoman")
    head = await http.request("HEAD", "/", headers={"user-agent": "ollama"})
    assert (head.status_code, head.content) == (200, b"")


async def test_ollama_request_without_prompt_loads_model(http: httpx2.AsyncClient):
    loaded = (await http.post("/api/chat", json={"model": "tiny", "messages": []})).json()
    assert (loaded["message"], loaded["done"], loaded["done_reason"]) == (
        {"role": "assistant", "content": ""},
        True,
        "load",
    )
    loaded = (await http.post("/api/generate", json={"model": "tiny"})).json()
    assert (loaded["response"], loaded["done"], loaded["done_reason"]) == ("", True, "load")
    status, error = await refuse(http, "POST", "/api/generate", {"model": "tiny", "keep_alive": 0})
    assert (status, "not loaded on demand" in error) == (400, True)
    response = await http.post("/api/generate", json={"model": "tiny", "keep_alive": "5m"})
    assert "keep_alive is ignored" in response.headers["x-dragoman-warnings"]
    assert (
        "x-dragoman-warnings"
        not in (await http.post("/api/generate", json={"keep_alive": -1})).headers
    )


async def test_ollama_stream_failure_sends_error_line():
    server = build_server(ScriptEntry((Say("So far"), Fail(503, "out of memory")), repeat=True))
    body = {"model": "m", "messages": HELLO}
    lines = [
        json.loads(line) for line in (await server.post("/api/chat", body)).content.splitlines()
    ]
    assert (lines[-1], lines[0]["message"]["content"]) == ({"error": "out of memory"}, "S")
    full = await server.post("/api/chat", {**body, "stream": False})
    assert (full.status_code, full.json()) == (503, {"error": "out of memory"})


async def test_ollama_context_unsupported_by_event_engine_rejected():
    server = build_server(ScriptEntry((Say("Hi"),), repeat=True))
    response = (
        await server.post("/api/generate", {"model": "m", "prompt": "a", "stream": False})
    ).json()
    assert ("context" in response, response["response"]) == (False, "Hi")
    rejected = await server.post("/api/generate", {"model": "m", "prompt": "a", "context": [1]})
    assert (rejected.status_code, "does not support context" in rejected.json()["error"]) == (
        400,
        True,
    )


async def test_ollama_strict_mode_rejects_ignored_options():
    async with serving(strict=True) as client:
        status, error = await refuse(
            client, "POST", "/api/chat", {"messages": HELLO, "options": {"num_gpu": 1}}
        )
        assert (status, "options.num_gpu" in error) == (400, True)
        assert (await refuse(client, "POST", "/api/chat", {"messages": HELLO, "oops": 1}))[0] == 400


class OnDemand:
    """A server of a model that is loaded on demand and unloaded after a minute."""

    def __init__(self, puller: ModelPuller | None = None, **options: Any) -> None:
        tokenizer = load_tiny_tokenizer()

        def load() -> ServedModel:
            return ServedModel("a", EventBackend(FailingEngine(tokenizer)), 4096, 0)

        self.clock = Clock()
        spec = ModelSpec("a", load, 0, aliases=("b",), ttl=60.0, memory=10)
        self.models = Models([spec], clock=self.clock, sleep=sleep_forever)
        self.slot = self.models.slots[0]
        app = build_asgi_app(self.models, options=ServingOptions(**options), puller=puller)
        self.client = httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app), base_url="http://localhost"
        )

    async def post(self, path: str, key: str | None = None, **fields: object) -> httpx2.Response:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        return await self.client.post(
            path, json={"model": "a", "stream": False, **fields}, headers=headers
        )

    async def poll_after(self, seconds: float) -> ModelState:
        self.clock.now += seconds
        await self.models.poll(self.slot)
        return self.slot.state


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
async def test_keep_alive_loads_and_unloads(path: str):
    server = OnDemand()
    assert (await server.post(path, keep_alive="10m")).json()["done_reason"] == "load"
    assert server.slot.state is ModelState.LOADED
    assert await server.poll_after(599) is ModelState.LOADED
    (running,) = (await server.client.get("/api/ps")).json()["models"]
    assert running["size"] == 10
    assert await server.poll_after(1) is ModelState.UNLOADED
    assert (await server.client.get("/api/ps")).json() == {"models": []}
    assert (await server.post(path)).json()["done_reason"] == "load"
    assert await server.poll_after(60) is ModelState.UNLOADED, (
        "the server's own setting applies again"
    )
    await server.post(path, keep_alive=-1)
    assert await server.poll_after(10**9) is ModelState.LOADED
    assert (await server.post(path, keep_alive=0)).json()["done_reason"] == "unload"
    assert server.slot.state is ModelState.UNLOADED


async def test_ollama_keep_alive_zero_unloads_after_response():
    server = OnDemand()
    response = await server.post("/api/chat", messages=HELLO, keep_alive=0)
    assert response.json()["message"]["content"] == "One two three four."
    assert await server.poll_after(0) is ModelState.UNLOADED


async def test_ollama_keep_alive_requires_admin_key():
    server = OnDemand(api_key=("user",), admin_api_key=("root",))
    warned = await server.post("/api/chat", "user", messages=HELLO, keep_alive=0)
    assert "needs an administrator's key" in warned.headers["x-dragoman-warnings"]
    assert await server.poll_after(59) is ModelState.LOADED
    assert (await server.post("/api/chat", "user", keep_alive=0)).status_code == 403
    assert (await server.post("/api/chat", "root", keep_alive=0)).json()["done_reason"] == "unload"
    assert (await server.client.get("/api/tags")).status_code == 401
    assert (await server.client.get("/api/version")).status_code == 200


async def test_ollama_show_unloaded_model_omits_capabilities():
    server = OnDemand()
    details = (await server.post("/api/show", model="b:latest")).json()
    assert "capabilities" not in details
    await server.post("/api/generate")
    assert (await server.post("/api/show")).json()["capabilities"][0] == "completion"
    names = [model["name"] for model in (await server.client.get("/api/tags")).json()["models"]]
    assert names == ["a:latest", "b:latest"]


async def test_ollama_pull_served_model_succeeds_immediately():
    server = OnDemand()
    response = await server.client.post("/api/pull", json={"model": "a" + LATEST})
    assert response.headers["content-type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in response.content.splitlines()]
    statuses = [line["status"] for line in lines]
    digest = lines[1]["digest"].removeprefix("sha256:")
    ends = ["verifying sha256 digest", "writing manifest", "success"]
    assert statuses == ["pulling manifest", f"pulling {digest[:12]}", *ends]
    assert (lines[1]["total"], lines[1]["completed"]) == (10, 10)
    assert (await server.post("/api/pull")).json() == {"status": "success"}
    rejected = await server.post("/api/pull", model="llama3.2")
    assert (rejected.status_code, "does not download models" in rejected.json()["error"]) == (
        404,
        True,
    )


class Hub:
    """A downloader that knows one model, and fails on another."""

    def __init__(self) -> None:
        self.closed: list[str] = []

    async def pull(self, model: str) -> AsyncGenerator[PullProgress]:
        if model == "none":
            raise NotFound("There is no such model on the hub.")
        try:
            yield PullProgress("pulling manifest")
            if model == "broken":
                raise EngineError("The disk is full.")
            yield PullProgress("pulling 0123", "sha256:0123", 10, 5)
            yield PullProgress("success")
        finally:
            self.closed.append(model)


async def test_ollama_pull_other_model_uses_downloader():
    hub = Hub()
    server = OnDemand(hub)
    response = await server.client.post("/api/pull", json={"name": "org/name:Q4_K_M"})
    lines = [json.loads(line) for line in response.content.splitlines()]
    assert lines[1] == {
        "status": "pulling 0123",
        "digest": "sha256:0123",
        "total": 10,
        "completed": 5,
    }
    assert (lines[-1], hub.closed) == ({"status": "success"}, ["org/name:Q4_K_M"])
    assert (await server.post("/api/pull", model="org/name")).json() == {"status": "success"}
    for stream in (True, False):
        rejected = await server.post("/api/pull", model="none", stream=stream)
        assert (rejected.status_code, rejected.json()) == (
            404,
            {"error": "There is no such model on the hub."},
        )
    broken = await server.client.post("/api/pull", json={"model": "broken"})
    assert json.loads(broken.content.splitlines()[-1]) == {"error": "The disk is full."}
    guarded = OnDemand(hub, api_key=("user",), admin_api_key=("root",))
    assert (await guarded.post("/api/pull", "user", model="org/name")).status_code == 403
    assert (await guarded.post("/api/pull", "root", model="org/name")).status_code == 200


async def test_ollama_show_parameters_list_generation_config():
    models = build_models(
        Settings(override_generation_config=GenerationConfig(temperature=0.5, top_k=7)),
        SystemClock(),
    )
    app = build_asgi_app(models)
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app), base_url="http://localhost"
    ) as client:
        details = (await client.post("/api/show", json={"model": "tiny"})).json()
    assert [line.split() for line in details["parameters"].splitlines()][:2] == [
        ["temperature", "0.5"],
        ["top_k", "7"],
    ]
