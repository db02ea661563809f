"""Anthropic's error envelope: the type for each status, the field in the message, and
no long echo of input.
"""

from __future__ import annotations

import json

import anthropic
import httpx2
import pytest

from dragoman.core.errors import (
    AuthenticationError,
    BodyTooLarge,
    Conflict,
    ContextTooLong,
    DragomanError,
    EngineError,
    EngineTimeout,
    MethodNotAllowed,
    ModelNotFound,
    Overloaded,
    PermissionDenied,
    RateLimited,
    RequestError,
    UnsupportedMediaType,
)
from dragoman.dialects.anthropic import (
    ThreadUnsupported,
    map_anthropic_status,
    render_anthropic_error,
)
from dragoman_check.rules.anthropic import check_error

from ...laws.anthropic_sdk import client


def message(error: DragomanError) -> str:
    return json.loads(render_anthropic_error(error))["error"]["message"]


@pytest.mark.parametrize(
    ("error", "status", "kind", "raised"),
    [
        (RequestError("x"), 400, "invalid_request_error", anthropic.BadRequestError),
        (AuthenticationError("x"), 401, "authentication_error", anthropic.AuthenticationError),
        (PermissionDenied("x"), 403, "permission_error", anthropic.PermissionDeniedError),
        (ModelNotFound("x"), 404, "not_found_error", anthropic.NotFoundError),
        (MethodNotAllowed("x"), 405, "invalid_request_error", anthropic.APIStatusError),
        (Conflict("x"), 409, "conflict_error", anthropic.ConflictError),
        (BodyTooLarge("x"), 413, "request_too_large", anthropic.APIStatusError),
        (UnsupportedMediaType("x"), 415, "invalid_request_error", anthropic.APIStatusError),
        (RateLimited("x"), 429, "rate_limit_error", anthropic.RateLimitError),
        (EngineError("x"), 500, "api_error", anthropic.InternalServerError),
        (Overloaded("x"), 529, "overloaded_error", anthropic.InternalServerError),
        (EngineTimeout("x"), 504, "timeout_error", anthropic.InternalServerError),
    ],
)
def test_error_type_matches_status_and_sdk_exception(
    error: DragomanError, status: int, kind: str, raised: type[anthropic.APIStatusError]
):
    body = render_anthropic_error(error, "req_1")
    assert json.loads(body) == {
        "type": "error",
        "error": {"type": kind, "message": "x"},
        "request_id": "req_1",
    }
    check_error(json.loads(body))
    sdk = client(
        lambda _: httpx2.Response(
            map_anthropic_status(error), content=body, headers={"request-id": "req_1"}
        )
    )
    with pytest.raises(raised) as caught:
        sdk.messages.create(model="m", max_tokens=1, messages=[{"role": "user", "content": "x"}])
    assert (caught.value.status_code, caught.value.request_id) == (status, "req_1")


def test_error_without_request_has_no_id():
    assert "request_id" not in json.loads(render_anthropic_error(EngineError("x")))


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RequestError("Not so.", param="messages[0].content"), "messages.0.content: Not so."),
        (
            RequestError("Missing required parameter: 'a.b[3].c'.", param="a.b[3].c"),
            "a.b.3.c: Field required",
        ),
        (
            RequestError("Missing required parameter: 'a'. Try b.", param="a"),
            "a: Field required. Try b.",
        ),
        (RequestError("Invalid type for 'a': expected b.", param="a"), "a: expected b."),
        (RequestError("Invalid value for 'a': 'it's'. No.", param="a"), "a: 'it's'. No."),
        (
            RequestError("No budget.", param="thinking_token_budget"),
            "thinking.budget_tokens: No budget.",
        ),
        (RequestError("No schema.", param="response_format"), "output_config.format: No schema."),
    ],
)
def test_error_message_starts_with_field(error: DragomanError, expected: str):
    assert message(error) == expected


@pytest.mark.parametrize(
    ("limit", "prompt", "expected"),
    [
        (1024, 2000, "prompt is too long: 2000 tokens > 1024 maximum"),
        (1024, 1024, "prompt is too long: 1024 tokens > 1023 maximum"),
    ],
)
def test_context_too_long_message_matches_client_pattern(limit: int, prompt: int, expected: str):
    """Claude Code, LangChain and LiteLLM match these words to shorten the conversation."""
    assert message(ContextTooLong(limit=limit, prompt=prompt, param="messages")) == expected


def test_unsupported_thread_error_has_details():
    error = json.loads(render_anthropic_error(ThreadUnsupported()))["error"]
    assert error["details"] == {
        "error_code": "thread_unsupported_request",
        "unsupported": ["thread"],
    }
    assert map_anthropic_status(ThreadUnsupported()) == 400


def test_error_messages_are_bounded_and_printable():
    assert len(render_anthropic_error(RequestError("x" * 100_000))) < 3_000
    assert "?" in message(RequestError("\ud800"))
    assert b"\xe2\x80\xa8" not in render_anthropic_error(RequestError("\u2028"))
