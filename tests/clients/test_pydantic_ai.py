"""Pydantic AI, in a process of its own: tool loops, conversations, failures, objects and vectors in our dialects."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .running import Said, needs, tried

SCRIPT = Path(__file__).parent / "pydantic_ai" / "says.py"
DIALECTS = ("chat", "responses", "messages")

pytestmark = [pytest.mark.clients, needs("pydantic_ai", "openai", "anthropic")]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Said:
    return tried(tmp_path_factory.mktemp("pydantic_ai"), sys.executable, str(SCRIPT))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_tool_loop_runs_to_its_end_and_streams_the_same(said: Said, dialect: str) -> None:
    whole = said[f"{dialect} whole"]
    usage = whole["usage"]
    assert whole == {
        "text": "5 and 8",
        "thoughts": ["Sums."],
        "calls": [{"a": 2, "b": 3}, {"a": 4, "b": 4}],
        "results": [5, 8],
        "usage": [2, *usage[1:]],
    }
    assert all(usage)
    assert said[f"{dialect} streamed"] == whole


def test_the_same_is_counted_in_other_dialects(said: Said) -> None:
    """But for Responses, into whose messages it writes thoughts of models that it does not know."""
    assert said["chat whole"]["usage"] == said["messages whole"]["usage"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_conversation_goes_on(said: Said, dialect: str) -> None:
    assert said[f"{dialect} kept"] == {"text": "again"}


def test_a_conversation_goes_through_all_dialects(said: Said) -> None:
    assert said["handed over"] == {"texts": ["5 and 8"] * 3}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_fails_is_an_exception(said: Said, dialect: str) -> None:
    refused, broken = said[f"{dialect} refused"], said[f"{dialect} broken"]
    assert (refused["error"], refused["status"]) == ("ModelRateLimitError", 429)
    assert (broken["error"], broken["status"]) == ("ModelOverloadedError", 529 if dialect == "messages" else 503)
    assert "out of memory" in broken["message"]


@pytest.mark.parametrize("kind", ["chat tool", "chat native", "responses tool", "responses native", "messages tool"])
def test_an_object_follows_its_schema(said: Said, kind: str) -> None:
    assert said[f"{kind} object"].get("valid"), said[f"{kind} object"]
    assert said[f"{kind} streamed object"].get("valid"), said[f"{kind} streamed object"]


def test_vectors_have_the_models_size(said: Said) -> None:
    assert said["embeddings"] == {"sizes": [192, 192]}
