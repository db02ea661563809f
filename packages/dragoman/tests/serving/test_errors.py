"""Every failure has the dialect's envelope and the right status; invalid requests do
not reach the engine.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from dragoman.dialects.base import Profile
from dragoman.engines.scripted import Fail, Say, ScriptEntry
from dragoman.serving.service import ServingOptions
from tests.serving.harness import build_server

HELLO = ScriptEntry((Say("Hello"),), repeat=True)
CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]


def check(answer: Any, status: int) -> dict[str, Any]:
    assert answer.status_code == status
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"null",
        b'{"model": NaN}',
        b'"\\ud8fe"',
        b"[" * 100_000,
        b'{"a":' * 5_000,
    ],
)
async def test_a_body_that_is_no_request_is_a_400(raw: bytes) -> None:
    it = build_server(HELLO)
    async with it.http() as client:
        answer = await client.post(CHAT, content=raw, headers={"content-type": "application/json"})
    check(answer, 400)
    assert it.engine.num_requests == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 3), ("temperature", "1"), ("top_p", -1), ("n", 1.9), ("n", 0), ("n", True), ("max_tokens", "3"),
        ("stop", [""]), ("seed", 2**70), ("top_logprobs", 3), ("tool_choice", "sometimes"), ("messages", []),
        ("logit_bias", {"x": 1}), ("response_format", {"type": "yaml"}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_bad_field_is_a_400_that_names_it(
    field: str, value: object, streamed: bool
) -> None:
    it = build_server(HELLO)
    answer = await it.post(CHAT, {"model": "m", "messages": HI, "stream": streamed, field: value})
    error = check(answer, 400)
    assert error["param"] is not None
    assert error["param"].startswith(field)
    assert it.engine.num_requests == 0


async def test_an_unknown_model_is_a_404() -> None:
    error = check(await build_server(HELLO).post(CHAT, {"model": "nope", "messages": HI}), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")


async def test_the_only_model_need_not_be_named() -> None:
    answer = await build_server(HELLO).post(CHAT, {"messages": HI})
    assert answer.json()["model"] == "m"


async def test_trap_17_an_unknown_route_is_a_404_in_the_envelope() -> None:
    check(await build_server(HELLO).post("/v1/nope", {}), 404)
    check(await build_server(HELLO).get("/nope"), 404)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/messages", "/v1/messages"),
        ("/api/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completions/chat/completions", "/v1/chat/completions"),
        ("/v1/completions/models", "/v1/models"),
        ("/v1/completions/", "/v1/completions"),
        ("/v1/threads/t/messages", None),
        ("/v1", None),
    ],
)
async def test_the_404_of_a_wrong_base_url_names_the_route(path: str, expected: str | None) -> None:
    message = check(await build_server(HELLO).get(path), 404)["message"]
    assert message.endswith(f"Did you mean {expected}?") if expected else "mean" not in message


async def test_a_wrong_method_is_a_405_in_the_envelope() -> None:
    check(await build_server(HELLO).get("/v1/completions"), 405)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/completions", {"POST"}),
        ("PUT", "/v1/models", {"GET", "HEAD"}),
        ("DELETE", "/v1/chat/completions", {"POST", "GET", "HEAD"}),
        ("PATCH", "/v1/messages", {"POST"}),
    ],
)
async def test_a_405_lists_the_methods_that_the_path_supports(
    method: str, path: str, allowed: set[str]
) -> None:
    async with build_server(HELLO).http() as client:
        response = await client.request(method, path)
    assert response.status_code == 405
    assert set(response.headers["allow"].split(", ")) == allowed


async def test_a_wrong_media_type_is_refused() -> None:
    async with build_server(HELLO).http() as client:
        check(await client.post(CHAT, content=b"{}", headers={"content-type": "text/plain"}), 415)


async def test_a_body_over_the_cap_is_a_413() -> None:
    it = build_server(HELLO, options=ServingOptions(max_body_bytes=100))
    check(
        await it.post(CHAT, {"model": "m", "messages": [{"role": "user", "content": "x" * 200}]}),
        413,
    )


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/m", "/nope", CHAT])
async def test_without_its_key_a_route_is_a_401(path: str) -> None:
    it = build_server(HELLO, options=ServingOptions(api_key=("secret",)))
    error = check(await it.get(path), 401)
    assert error["code"] == "invalid_api_key"
    assert (await it.get("/v1/models", {"authorization": "Bearer secret"})).status_code == 200
    assert (await it.get("/v1/models", {"x-api-key": "secret"})).status_code == 200


async def test_a_foreign_host_is_misdirected() -> None:
    check(await build_server(HELLO).get("/v1/models", {"host": "evil.example"}), 421)


async def test_trap_30_context_overflow_has_the_form_that_clients_look_for() -> None:
    it = build_server(HELLO, max_model_len=16)
    error = check(
        await it.post(CHAT, {"messages": [{"role": "user", "content": "word " * 100}]}), 400
    )
    assert error["code"] == "context_length_exceeded"
    assert error["message"].startswith("This model's maximum context length is 16 tokens. However,")


async def test_trap_29_a_responses_body_is_rejected_with_the_right_route() -> None:
    error = check(await build_server(HELLO).post(CHAT, {"model": "m", "input": "hi"}), 400)
    assert "/v1/responses" in error["message"]


async def test_health_is_public_and_head_is_get() -> None:
    it = build_server(HELLO, options=ServingOptions(api_key=("secret",)))
    assert (await it.get("/health")).status_code == 200
    async with it.http() as client:
        assert (await client.head("/health")).status_code == 200
        assert (await client.head("/version")).content == b""


@pytest.mark.parametrize("profile", list(Profile))
async def test_sglangs_stream_fails_in_the_envelope_of_the_whole(profile: Profile) -> None:
    it = build_server(
        ScriptEntry((Say("Hello"), Fail(500, "broken")), repeat=True),
        options=ServingOptions(profile=profile),
    )
    whole = (await it.post("/generate", {"text": "hi"})).json()
    streamed = await it.post("/generate", {"text": "hi", "stream": True})
    last = streamed.text.strip().split("\n\n")[-1]
    assert json.loads(last.removeprefix("data: ")) == whole
