"""The error bodies of each API."""

from __future__ import annotations

from typing import Any, cast

from .rules.json_values import JsonObject, require, require_string
from .rules.openai_values import check_error


def check_openai_error(body: JsonObject) -> None:
    """Check an error body of OpenAI's APIs. Raises Violation."""
    check_error(body.get("error"))


def check_error_basics(body: JsonObject) -> None:
    """Check that an error body has a message: `error.message`, or Ollama's `error`
    string. Raises Violation.
    """
    error: Any = body.get("error")
    message: object = cast(JsonObject, error).get("message") if isinstance(error, dict) else error
    require(
        isinstance(message, str) and message,
        f"the body is not an error of this API: {str(body)[:200]}",
    )


def check_ollama_error(body: JsonObject) -> None:
    """Check an error body of Ollama's API. Raises Violation."""
    require(require_string(body.get("error"), "error"), "error is empty")
