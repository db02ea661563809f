"""The error envelope in both profiles."""

from __future__ import annotations

import json

import pytest

from dragoman.core import errors
from dragoman.core.errors import DragomanError
from dragoman.dialects.interfaces import Profile
from dragoman.dialects.openai_errors import render_openai_error

TABLE = [
    (errors.RequestError("m", param="n"), "invalid_request_error", None, "BadRequestError"),
    (
        errors.Unsupported("m", param="suffix"),
        "invalid_request_error",
        "unsupported_parameter",
        "BadRequestError",
    ),
    (
        errors.ContextTooLong(limit=10, prompt=20),
        "invalid_request_error",
        "context_length_exceeded",
        "BadRequestError",
    ),
    (
        errors.AuthenticationError("m"),
        "authentication_error",
        "invalid_api_key",
        "AuthenticationError",
    ),
    (
        errors.PermissionDenied("m"),
        "permission_error",
        "permission_denied",
        "PermissionDeniedError",
    ),
    (
        errors.ModelNotFound("m", param="model"),
        "invalid_request_error",
        "model_not_found",
        "NotFoundError",
    ),
    (errors.MethodNotAllowed("m"), "invalid_request_error", None, "Method Not Allowed"),
    (errors.RateLimited("m"), "rate_limit_error", "rate_limit_exceeded", "RateLimitError"),
    (errors.EngineError("m"), "server_error", "engine_error", "InternalServerError"),
    (errors.Overloaded("m"), "server_error", "overloaded", "ServiceUnavailableError"),
    (errors.EngineTimeout("m"), "server_error", "timeout", "TimeoutError"),
]


@pytest.mark.parametrize(("error", "type", "code", "vllm_type"), TABLE)
def test_error_body_has_four_keys_in_both_profiles(
    error: DragomanError, type: str, code: str | None, vllm_type: str
):
    openai = json.loads(render_openai_error(error, Profile.OPENAI))
    assert openai == {
        "error": {"message": error.message, "type": type, "param": error.param, "code": code}
    }
    vllm = json.loads(render_openai_error(error, Profile.VLLM))
    assert vllm["error"]["type"] == vllm_type
    assert vllm["error"]["code"] == error.status


def test_error_body_exists_for_every_core_error():
    pending: list[type[DragomanError]] = [DragomanError]
    while pending:
        kind = pending.pop()
        pending += kind.__subclasses__()
        if kind is not errors.ContextTooLong and kind.__module__ == errors.__name__:
            for profile in Profile:
                assert set(json.loads(render_openai_error(kind("m"), profile))["error"]) == {
                    "message",
                    "type",
                    "param",
                    "code",
                }


def test_error_body_is_bounded_and_encodable():
    body = render_openai_error(
        errors.RequestError("x\ud800\u2028" * 100_000, param="y" * 100_000), Profile.OPENAI
    )
    assert len(body) < 20_000
    assert len(body.decode().splitlines()) == 1
