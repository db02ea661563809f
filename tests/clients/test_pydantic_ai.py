"""Pydantic AI in a separate process: tool loops, conversations, failures, objects and
vectors in our dialects.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .client_process import Results, needs, run_trials

SCRIPT = Path(__file__).parent / "pydantic_ai" / "program.py"
DIALECTS = ("chat", "responses", "messages")

pytestmark = [pytest.mark.clients, needs("pydantic_ai", "openai", "anthropic")]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run_trials(tmp_path_factory.mktemp("pydantic_ai"), sys.executable, str(SCRIPT))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_pydantic_ai_tool_loop_stream_equals_full_run(results: Results, dialect: str) -> None:
    whole = results[f"{dialect} whole"]
    usage = whole["usage"]
    assert whole == {
        "text": "5 and 8",
        "thoughts": ["Sums."],
        "calls": [{"a": 2, "b": 3}, {"a": 4, "b": 4}],
        "results": [5, 8],
        "usage": [2, *usage[1:]],
    }
    assert all(usage)
    assert results[f"{dialect} streamed"] == whole


def test_pydantic_ai_usage_is_equal_in_chat_and_messages(results: Results) -> None:
    """Except Responses: Pydantic AI writes reasoning of unknown models into its
    messages.
    """
    assert results["chat whole"]["usage"] == results["messages whole"]["usage"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_pydantic_ai_conversation_continues_with_history(results: Results, dialect: str) -> None:
    assert results[f"{dialect} kept"] == {"text": "again"}


def test_pydantic_ai_conversation_continues_across_dialects(results: Results) -> None:
    assert results["handed over"] == {"texts": ["5 and 8"] * 3}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_pydantic_ai_error_response_raises_exception(results: Results, dialect: str) -> None:
    refused = results[f"{dialect} refused"]
    broken = results[f"{dialect} broken"]
    assert (refused["error"], refused["status"]) == ("ModelRateLimitError", 429)
    assert (broken["error"], broken["status"]) == (
        "ModelOverloadedError",
        529 if dialect == "messages" else 503,
    )
    assert "out of memory" in broken["message"]


@pytest.mark.parametrize(
    "kind", ["chat tool", "chat native", "responses tool", "responses native", "messages tool"]
)
def test_pydantic_ai_structured_output_follows_schema(results: Results, kind: str) -> None:
    assert results[f"{kind} object"].get("valid"), results[f"{kind} object"]
    assert results[f"{kind} streamed object"].get("valid"), results[f"{kind} streamed object"]


def test_pydantic_ai_embeddings_have_model_dimensions(results: Results) -> None:
    assert results["embeddings"] == {"sizes": [192, 192]}
