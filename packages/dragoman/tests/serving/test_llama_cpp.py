"""llama.cpp's own routes and LM Studio's lists of models, over HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.serving.infill_model import build_infill_models
from tests.serving.test_tenancy import serving as serving_tenants
from tests.serving.test_tenancy import tenant

from dragoman.launch import build_models
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings

BODY: dict[str, Any] = {"model": "m", "prompt": "Once upon a time", "n_predict": 6, "seed": 3}


@asynccontextmanager
async def serving(model: str = "tiny") -> AsyncGenerator[httpx2.AsyncClient]:
    models = build_models(Settings(model=model, served_model_name=("m",)), SystemClock())
    await models.start()
    transport = httpx2.ASGITransport(build_asgi_app(models))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client
    await models.stop()


def read_events(answer: httpx2.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line[:6] == "data: "]


@pytest.mark.parametrize("model", ["tiny", "sim", "scripted"])
@pytest.mark.parametrize(
    "fields",
    [
        {"n_probs": 2, "return_tokens": True},
        {"prompt": [1, 2, 3], "return_tokens": True},
        {"stop": ["e"], "return_tokens": True},
        {"json_schema": {"type": "integer"}, "n_predict": -1, "return_tokens": True},
        {"grammar": 'root ::= "yes" | "no"', "return_tokens": True},
    ],
)
async def test_completion_stream_folds_to_full_answer(model: str, fields: dict[str, Any]) -> None:
    async with serving(model) as client:
        full = await client.post("/completion", json={**BODY, **fields})
        streamed = await client.post("/completion", json={**BODY, **fields, "stream": True})
    if full.status_code == 400:
        # An engine without the feature rejects it by name, streamed or not.
        assert full.json() == streamed.json()
        assert full.json()["error"]["param"] in (*fields, "prompt")
        return
    assert full.status_code == 200, full.text
    *chunks, last = read_events(streamed)
    assert [chunk["stop"] for chunk in chunks] == [False] * len(chunks)
    answer = full.json()
    for name in ("content", "tokens", "completion_probabilities"):
        if name in answer:
            folded = [event[name] for event in (*chunks, last) if name in event]
            last[name] = "".join(folded) if name == "content" else [*chain(*folded)]
    assert last == answer


async def test_completion_reports_counts_and_reason() -> None:
    async with serving() as client:
        answer = (await client.post("/completion", json=BODY)).json()
        stopped = (await client.post("/completion", json={**BODY, "stop": ["e", "a"]})).json()
    assert answer["tokens_predicted"] == 6
    assert answer["tokens_evaluated"] > 1
    assert (answer["stop_type"], answer["stopping_word"]) == ("limit", "")
    assert (stopped["stop_type"], stopped["stopping_word"] in "ea") == ("word", True)
    assert answer["content"].startswith(stopped["content"])


async def test_completion_equals_completions_of_openai() -> None:
    body = {"model": "m", "prompt": BODY["prompt"], "seed": 3, "max_tokens": 6}
    async with serving() as client:
        own = (await client.post("/completion", json=BODY)).json()
        other = (await client.post("/v1/completions", json=body)).json()
    assert own["content"] == other["choices"][0]["text"]


async def test_response_fields_select_fields_of_every_event() -> None:
    fields = ["content", "timings/predicted_n", "missing", "stop/inner"]
    async with serving() as client:
        body = {**BODY, "response_fields": fields}
        full = (await client.post("/completion", json=body)).json()
        events = read_events(await client.post("/completion", json={**body, "stream": True}))
    assert list(full) == ["content", "timings/predicted_n"]
    assert full["timings/predicted_n"] == 6
    assert "".join(event["content"] for event in events) == full["content"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"mirostat": 2}, "mirostat"),
        ({"n_predict": 0}, "n_predict"),
        ({"n_predict": -2}, "n_predict"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"logit_bias": [[1, True]]}, "logit_bias"),
        ({"grammar": "root ::= [a", "n_predict": 2}, "grammar"),
        ({"grammar": 'root ::= "a"', "json_schema": {"type": "null"}}, "json_schema"),
        ({"lora": [{"id": 0, "scale": 1.0}]}, "lora"),
    ],
)
async def test_unsupported_value_is_rejected_by_name(fields: dict[str, Any], param: str) -> None:
    async with serving() as client:
        answer = await client.post("/completion", json={**BODY, **fields})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param, answer.text


async def test_ignored_value_is_reported_in_warning() -> None:
    body = {**BODY, "samplers": ["top_k"], "repeat_last_n": 8, "cache_prompt": True}
    async with serving() as client:
        answer = await client.post("/completion", json=body)
    warnings = answer.headers["x-dragoman-warnings"]
    assert "samplers" in warnings
    assert "repeat_last_n" in warnings
    assert "cache_prompt" not in warnings


async def test_banned_token_of_pairs_is_not_sampled() -> None:
    body = {**BODY, "temperature": 0, "n_predict": 1, "return_tokens": True}
    async with serving() as client:
        first = (await client.post("/completion", json=body)).json()["tokens"][0]
        other = await client.post("/completion", json={**body, "logit_bias": [[first, False]]})
    assert other.json()["tokens"] != [first]


async def test_infill_equals_completion_with_suffix(tmp_path: Path) -> None:
    models, _ = build_infill_models(tmp_path)
    await models.start()
    transport = httpx2.ASGITransport(build_asgi_app(models))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
        body = {"model": "coder", "temperature": 0, "max_tokens": 4}
        suffix = {"prompt": "x\n1\ndef f(a", "suffix": "return 1"}
        plain = await client.post("/v1/completions", json={**body, **suffix})
        extra = [{"filename": "x", "text": "1"}]
        parts = {"input_prefix": "def f(", "prompt": "a", "input_suffix": "return 1"}
        infill = await client.post("/infill", json={**body, **parts, "input_extra": extra})
    await models.stop()
    assert infill.json()["content"] == plain.json()["choices"][0]["text"]
    assert infill.json()["tokens_evaluated"] == plain.json()["usage"]["prompt_tokens"]


async def test_infill_without_tokens_is_rejected_by_name() -> None:
    async with serving() as client:
        answer = await client.post("/infill", json={"input_prefix": "a", "input_suffix": "b"})
        empty = await client.post("/infill", json={"input_prefix": ""})
    assert answer.json()["error"]["param"] == "input_suffix"
    assert empty.json()["error"]["param"] == "input_prefix"


async def test_props_tell_context_defaults_and_template() -> None:
    async with serving() as client:
        props = (await client.get("/props")).json()
        card = (await client.get("/v1/models")).json()["data"][0]
    assert props["default_generation_settings"]["n_ctx"] == card["max_model_len"]
    assert props["modalities"] == {"vision": False, "audio": False}
    assert "{%" in props["chat_template"]
    assert "/" not in props["model_path"]


async def test_applied_template_continues_as_chat() -> None:
    chat = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "seed": 1}
    async with serving() as client:
        prompt = (await client.post("/apply-template", json=chat)).json()["prompt"]
        answer = await client.post("/v1/chat/completions", json={**chat, "max_tokens": 1})
        sent = {"model": "m", "prompt": prompt, "add_special_tokens": False, "n_predict": 1}
        completion = await client.post("/completion", json=sent)
    counts = answer.json()["usage"]["prompt_tokens"], completion.json()["tokens_evaluated"]
    assert "Hello" in prompt
    assert counts[0] >= counts[1] > 0


async def test_slots_require_administrator() -> None:
    tenants = {"boss": tenant("boss", role="admin"), "user": tenant("user")}
    async with serving_tenants(tenants) as server:
        refused = await server.get("user", "/slots")
        slots = await server.get("boss", "/slots")
    assert refused.status_code == 403
    assert [slot["is_processing"] for slot in slots.json()] == [False]


async def test_studio_lists_tell_context_and_abilities() -> None:
    async with serving() as client:
        listed = (await client.get("/api/v0/models")).json()["data"]
        single = (await client.get(f"/api/v0/models/{listed[0]['id']}")).json()
        (model,) = (await client.get("/api/v1/models")).json()["models"]
        missing = await client.get("/api/v0/models/none")
    assert listed == [single]
    assert single["state"] == "loaded"
    assert single["max_context_length"] == model["max_context_length"] > 0
    assert (single["type"], model["type"], model["key"]) == ("llm", "llm", single["id"])
    assert model["loaded_instances"][0]["config"]["context_length"] > 0
    assert missing.status_code == 404
