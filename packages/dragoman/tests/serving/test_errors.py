"""Every failure has the dialect's envelope and the right status; invalid requests do
not reach the engine.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.serving.harness import build_server

from dragoman.dialects.interfaces import Profile
from dragoman.engines.scripted import Fail, Say, ScriptEntry
from dragoman.serving.serving_options import ServingOptions

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
async def test_invalid_body_returns_400(raw: bytes) -> None:
    server = build_server(HELLO)
    async with server.http() as client:
        answer = await client.post(CHAT, content=raw, headers={"content-type": "application/json"})
    check(answer, 400)
    assert server.engine.num_requests == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 3), ("temperature", "1"), ("top_p", -1), ("n", 1.9), ("n", 0), ("n", True),
        ("max_tokens", "3"),
        ("stop", [""]), ("seed", 2**70), ("top_logprobs", 3), ("tool_choice", "sometimes"),
        ("messages", []),
        ("logit_bias", {"x": 1}), ("response_format", {"type": "yaml"}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("streamed", [False, True])
async def test_invalid_field_returns_400_with_param(
    field: str, value: object, streamed: bool
) -> None:
    server = build_server(HELLO)
    answer = await server.post(
        CHAT, {"model": "m", "messages": HI, "stream": streamed, field: value}
    )
    error = check(answer, 400)
    assert error["param"] is not None
    assert error["param"].startswith(field)
    assert server.engine.num_requests == 0


async def test_unknown_model_returns_404() -> None:
    error = check(await build_server(HELLO).post(CHAT, {"model": "nope", "messages": HI}), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")


async def test_request_without_model_uses_only_model() -> None:
    answer = await build_server(HELLO).post(CHAT, {"messages": HI})
    assert answer.json()["model"] == "m"


async def test_unknown_route_returns_404_in_envelope() -> None:
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
async def test_wrong_base_url_404_suggests_route(path: str, expected: str | None) -> None:
    message = check(await build_server(HELLO).get(path), 404)["message"]
    assert message.endswith(f"Did you mean {expected}?") if expected else "mean" not in message


async def test_wrong_method_returns_405_in_envelope() -> None:
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
async def test_wrong_method_405_lists_allowed_methods(
    method: str, path: str, allowed: set[str]
) -> None:
    async with build_server(HELLO).http() as client:
        response = await client.request(method, path)
    assert response.status_code == 405
    assert set(response.headers["allow"].split(", ")) == allowed


async def test_wrong_media_type_returns_415() -> None:
    async with build_server(HELLO).http() as client:
        check(await client.post(CHAT, content=b"{}", headers={"content-type": "text/plain"}), 415)


async def test_oversized_body_returns_413() -> None:
    server = build_server(HELLO, options=ServingOptions(max_body_bytes=100))
    check(
        await server.post(
            CHAT, {"model": "m", "messages": [{"role": "user", "content": "x" * 200}]}
        ),
        413,
    )


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/m", "/nope", CHAT])
async def test_missing_api_key_returns_401(path: str) -> None:
    server = build_server(HELLO, options=ServingOptions(api_key=("secret",)))
    error = check(await server.get(path), 401)
    assert error["code"] == "invalid_api_key"
    assert (await server.get("/v1/models", {"authorization": "Bearer secret"})).status_code == 200
    assert (await server.get("/v1/models", {"x-api-key": "secret"})).status_code == 200


async def test_foreign_host_header_returns_421() -> None:
    check(await build_server(HELLO).get("/v1/models", {"host": "evil.example"}), 421)


async def test_context_overflow_error_has_openai_format() -> None:
    server = build_server(HELLO, max_model_len=16)
    error = check(
        await server.post(CHAT, {"messages": [{"role": "user", "content": "word " * 100}]}), 400
    )
    assert error["code"] == "context_length_exceeded"
    assert error["message"].startswith("This model's maximum context length is 16 tokens. However,")


async def test_responses_body_on_chat_route_suggests_responses_route() -> None:
    error = check(await build_server(HELLO).post(CHAT, {"model": "m", "input": "hi"}), 400)
    assert "/v1/responses" in error["message"]


async def test_health_needs_no_key_and_head_is_supported() -> None:
    server = build_server(HELLO, options=ServingOptions(api_key=("secret",)))
    assert (await server.get("/health")).status_code == 200
    async with server.http() as client:
        assert (await client.head("/health")).status_code == 200
        assert (await client.head("/version")).content == b""


@pytest.mark.parametrize("profile", list(Profile))
async def test_sglang_stream_error_equals_full_response_error(profile: Profile) -> None:
    server = build_server(
        ScriptEntry((Say("Hello"), Fail(500, "broken")), repeat=True),
        options=ServingOptions(profile=profile),
    )
    full = (await server.post("/generate", {"text": "hi"})).json()
    streamed = await server.post("/generate", {"text": "hi", "stream": True})
    last = streamed.text.strip().split("\n\n")[-1]
    assert json.loads(last.removeprefix("data: ")) == full
