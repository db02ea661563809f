"""vLLM's utility routes with the embedded model, and details of prompts."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import httpx2
import pytest
import pytest_asyncio

from dragoman.launch import build_models
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.serving.serving_options import ServingOptions
from dragoman.settings import Settings
from dragoman.store import MemoryStore, Store

CHAT: list[dict[str, Any]] = [{"role": "user", "content": "Count to 12."}]


@asynccontextmanager
async def serving(
    model: str = "tiny",
    offloading: Path | None = None,
    dtype: Literal["auto", "float32"] = "auto",
    store: Store | None = None,
    **options: Any,
) -> AsyncGenerator[httpx2.AsyncClient]:
    directory = None if offloading is None else str(offloading)
    models = build_models(
        Settings(model=model, dtype=dtype, kv_offloading_dir=directory), SystemClock()
    )
    app = build_asgi_app(models, options=ServingOptions(**options), store=store)
    await models.start()
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app), base_url="http://localhost"
    ) as client:
        yield client
    await models.stop()


@pytest_asyncio.fixture
async def http() -> AsyncGenerator[httpx2.AsyncClient]:
    async with serving(explain=True) as client:
        yield client


async def post(http: httpx2.AsyncClient, path: str, **fields: object) -> Any:
    answer = await http.post(path, json=fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_tokenizer_info_returns_eos_template_and_class(http: httpx2.AsyncClient):
    info = (await http.get("/tokenizer_info")).json()
    assert info["eos_token"]
    assert "messages" in info["chat_template"]
    assert info["tokenizer_class"]
    ids = (await post(http, "/tokenize", prompt=info["eos_token"], add_special_tokens=False))[
        "tokens"
    ]
    assert len(ids) == 1
    assert (await http.get("/tokenizer_info?model=nobody")).status_code == 404


async def test_tokenizer_info_of_simulated_engine(http: httpx2.AsyncClient):
    async with serving("sim") as simulated:
        assert (await simulated.get("/tokenizer_info")).json() == (
            await http.get("/tokenizer_info")
        ).json()


async def test_load_and_world_size_respond(http: httpx2.AsyncClient):
    assert (await http.get("/load")).json() == {"server_load": 0}
    assert (await http.get("/get_world_size")).json() == {"world_size": 1}
    assert (await http.head("/load")).status_code == 200
    assert (await http.get("/reset_prefix_cache")).status_code == 405


async def test_server_info_requires_admin_key_and_hides_keys():
    async with serving(api_key=("user-secret",), admin_api_key=("admin-secret",)) as http:
        for key, status in (("user-secret", 403), ("admin-secret", 200), ("none", 401)):
            headers = {"Authorization": f"Bearer {key}"}
            response = await http.get("/server_info?config_format=json", headers=headers)
            assert response.status_code == status
            assert (await http.post("/reset_prefix_cache", headers=headers)).status_code == status
            assert "secret" not in response.text
        headers = {"Authorization": "Bearer admin-secret"}
        response = (await http.get("/server_info?config_format=json", headers=headers)).json()
        assert response["vllm_config"]["weight_transfer_config"] is None
        assert response["vllm_config"]["model_config"]["max_model_len"] > 1000
        # Before temperature: TRL's trainer reads this.
        assert response["vllm_config"]["model_config"]["logprobs_mode"] == "raw_logprobs"
        assert isinstance(
            (await http.get("/server_info", headers=headers)).json()["vllm_config"], str
        )
        assert (
            await http.get("/server_info?config_format=xml", headers=headers)
        ).status_code == 400


async def test_reset_prefix_cache_clears_cached_prefix(http: httpx2.AsyncClient):
    long = " ".join(["Count to 12."] * 30)

    async def cached() -> int:
        completion = await post(http, "/v1/completions", model="tiny", prompt=long, max_tokens=1)
        return completion["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert await cached() == 0
    assert await cached() > 100
    assert (await post(http, "/v1/completions/explain", prompt=long))[
        "cached_tokens"
    ] == await cached()
    assert (await http.post("/reset_prefix_cache")).status_code == 200
    assert await cached() == 0


async def test_generate_from_token_ids_equals_chat_completion(http: httpx2.AsyncClient):
    body = {
        "model": "tiny",
        "messages": CHAT,
        "temperature": 0,
        "max_tokens": 12,
        "return_token_ids": True,
    }
    chat = await post(http, "/v1/chat/completions", **body)
    params = {"temperature": 0, "max_tokens": 12, "logprobs": 0}
    result = await post(
        http, "/inference/v1/generate", token_ids=chat["prompt_token_ids"], sampling_params=params
    )
    (choice,) = result["choices"]
    assert choice["token_ids"] == chat["choices"][0]["token_ids"]
    assert [entry["token_id"] for entry in choice["logprobs"]["content"]] == choice["token_ids"]
    assert {entry["token"] for entry in choice["logprobs"]["content"]} == {
        f"token_id:{id}" for id in choice["token_ids"]
    }
    rejected = await http.post("/inference/v1/generate", json={"token_ids": [10**6]})
    assert rejected.status_code == 400


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_token_ids_and_logprobs_have_equal_length(http: httpx2.AsyncClient, path: str):
    rendered = (await post(http, "/tokenize", messages=CHAT))["tokens"]
    fields: dict[str, Any] = {
        "model": "tiny",
        "max_tokens": 100,
        "temperature": 0,
        "return_token_ids": True,
    }
    fields |= (
        {"prompt": rendered, "logprobs": 0}
        if path == "/v1/completions"
        else {"messages": CHAT, "logprobs": True}
    )
    [full] = (await post(http, path, **fields))["choices"]
    streamed = await http.post(path, json={**fields, "stream": True})
    chunks = [
        json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")
    ]
    parts = [choice for chunk in chunks for choice in chunk["choices"]]

    def list_scores(choice: Any) -> list[Any]:
        logprobs: dict[str, list[Any]] = choice["logprobs"] or {}
        return logprobs.get("token_logprobs") or logprobs.get("content") or []

    assert full["finish_reason"] == "stop"
    assert len(list_scores(full)) == len(full["token_ids"])
    assert [score for part in parts for score in list_scores(part)] == list_scores(full)
    assert [id for part in parts for id in part.get("token_ids") or ()] == full["token_ids"]


async def test_render_output_generates_same_tokens(http: httpx2.AsyncClient):
    fields = {"messages": CHAT, "temperature": 0.9, "seed": 5, "max_tokens": 10, "n": 2}
    chat = await post(http, "/v1/chat/completions", **fields, return_token_ids=True)
    body = await post(http, "/v1/chat/completions/render", **fields)
    assert body["token_ids"] == chat["prompt_token_ids"]
    assert body["features"] is None
    result = await post(http, "/inference/v1/generate", **body)
    assert [each["token_ids"] for each in result["choices"]] == [
        each["token_ids"] for each in chat["choices"]
    ]
    several = await post(http, "/v1/completions/render", prompt=["a", "b"])
    assert len(several) == 2


async def test_explain_returns_prompt_and_tokens(http: httpx2.AsyncClient):
    explained = await post(http, "/v1/chat/completions/explain", messages=CHAT)
    tokens = await post(http, "/tokenize", messages=CHAT)
    assert explained["tokens"] == tokens["tokens"]
    assert explained["prompt_tokens"] == len(explained["tokens"])
    assert "Count to 12." in explained["prompt"]
    assert "".join(explained["token_strs"]) == explained["prompt"]
    assert explained["previous"] is None, "no token was generated yet"
    messages = await post(http, "/v1/messages/explain", messages=CHAT, max_tokens=5)
    assert messages["tokens"] == explained["tokens"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": CHAT, "max_tokens": 1}),
        ("/v1/completions", {"prompt": "Hello there", "max_tokens": 1}),
        ("/v1/messages", {"model": "tiny", "messages": CHAT, "max_tokens": 1}),
        ("/v1/responses", {"model": "tiny", "input": "Hello there", "max_output_tokens": 1}),
        ("/inference/v1/generate", {"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 1}}),
        ("/generate", {"text": "Hello there", "sampling_params": {"max_new_tokens": 1}}),
        ("/generate", {"inputs": "Hello there", "parameters": {"max_new_tokens": 1}}),
    ],
)
async def test_explain_matches_prompt_of_request_in_each_dialect(
    http: httpx2.AsyncClient, path: str, body: dict[str, object]
):
    explained = await post(http, f"{path}/explain", **body)
    await post(http, path, **body)
    again = await post(http, f"{path}/explain", **body)
    assert (
        again["previous"]["common_tokens"]
        == again["previous"]["previous_tokens"]
        == explained["prompt_tokens"]
        > 0
    )
    assert again["tokens"] == explained["tokens"]


async def test_explain_response_includes_previous_response():
    async with serving(explain=True, store=MemoryStore()) as http:
        first = await post(
            http, "/v1/responses", model="tiny", input="Count to 12.", max_output_tokens=4
        )
        turn = {
            "model": "tiny",
            "input": "Go on.",
            "previous_response_id": first["id"],
            "max_output_tokens": 1,
        }
        explained = await post(http, "/v1/responses/explain", **turn)
        second = await post(http, "/v1/responses", **turn)
        missing = await http.post(
            "/v1/responses/explain", json={**turn, "previous_response_id": "resp_none"}
        )
    assert "Count to 12." in explained["prompt"]
    assert explained["previous"]["at"] is None
    assert explained["prompt_tokens"] == second["usage"]["input_tokens"]
    assert missing.json()["error"]["code"] == "previous_response_not_found"


async def test_explain_message_includes_thread():
    async with serving(explain=True, store=MemoryStore()) as http:
        fields = {"model": "tiny", "max_tokens": 4}
        first = await post(http, "/v1/messages", **fields, messages=CHAT, thread={"type": "create"})
        turn = {"type": "continue", "previous_message_id": first["id"]}
        explained = await post(
            http,
            "/v1/messages/explain",
            **fields,
            messages=[CHAT[0] | {"content": "On."}],
            thread=turn,
        )
    assert "Count to 12." in explained["prompt"]
    assert explained["prompt"].count("On.") == 1


async def test_explain_reports_first_difference_to_previous_prompt(http: httpx2.AsyncClient):
    system = [{"role": "system", "content": "It is 12:01. Be brief."}]
    await post(http, "/v1/chat/completions", messages=[*system, *CHAT], max_tokens=1)
    turn = [*CHAT, {"role": "assistant", "content": "1, 2"}, {"role": "user", "content": "Go on."}]
    same = (await post(http, "/v1/chat/completions/explain", messages=[*system, *turn]))["previous"]
    assert same["common_tokens"] > 10
    moved = [{"role": "system", "content": "It is 12:02. Be brief."}]
    previous = (await post(http, "/v1/chat/completions/explain", messages=[*moved, *turn]))[
        "previous"
    ]
    assert previous["at"] == previous["common_tokens"] < same["common_tokens"]
    assert previous["before"].endswith("12:0")
    assert previous["previous"].startswith("1")
    assert previous["now"].startswith("2")


async def test_explain_hides_previous_prompt_of_other_key():
    async with serving(explain=True, api_key=("one", "two")) as http:
        first, second = ({"Authorization": f"Bearer {key}"} for key in ("one", "two"))
        body = {"messages": CHAT, "max_tokens": 1}
        await http.post("/v1/chat/completions", json=body, headers=first)
        own = await http.post("/v1/chat/completions/explain", json=body, headers=first)
        other = await http.post("/v1/chat/completions/explain", json=body, headers=second)
    assert own.json()["previous"] is not None
    assert other.json()["previous"] is None
    assert other.json()["cached_tokens"] == 0


@pytest.mark.parametrize("path", ["/v1/chat/completions/explain", "/v1/chat/completions/render"])
async def test_explain_disabled_by_default(path: str):
    async with serving() as http:
        assert (await http.post(path, json={"messages": CHAT})).status_code == 404


async def test_explain_unsupported_engine_rejected():
    async with serving("scripted", explain=True) as http:
        rejected = await http.post("/v1/chat/completions/explain", json={"messages": CHAT})
    assert (rejected.status_code, rejected.json()["error"]["param"]) == (400, "model")


async def test_offloaded_kv_cache_survives_restart_but_not_reset(tmp_path: Path):
    cached: list[int] = []
    for reset in (False, True, False):
        async with serving(offloading=tmp_path) as client:
            answer = await post(
                client, "/v1/completions", model="tiny", prompt=[7] * 100, max_tokens=1
            )
            cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
            if reset:
                assert (await client.post("/reset_prefix_cache")).status_code == 200
    assert cached == [0, 96, 0]
