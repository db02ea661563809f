"""The OpenAI Agents SDK, in a process of its own: tool loops, handoffs, memory, failures and objects."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .running import Said, needs, tried

SCRIPT = Path(__file__).parent / "openai_agents" / "says.py"
KINDS = ("chat", "responses", "socket")

pytestmark = [pytest.mark.clients, needs("agents", "websockets")]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Said:
    return tried(tmp_path_factory.mktemp("agents"), sys.executable, str(SCRIPT))


@pytest.mark.parametrize("kind", KINDS)
def test_a_tool_loop_runs_to_its_end_and_streams_the_same(said: Said, kind: str) -> None:
    whole, streamed = said[f"{kind} whole"], said[f"{kind} streamed"]
    calls, results = ["tool_call_item"] * 2, ["tool_call_output_item"] * 2
    assert (whole["text"], whole["outputs"]) == ("5 and 8", [5, 8]), whole
    assert whole["items"] == ["reasoning_item", *calls, *results, "message_output_item"]
    assert whole["usage"][0] == 2
    assert all(whole["usage"])
    assert streamed == {"deltas": "5 and 8", **whole}


@pytest.mark.parametrize("kind", KINDS)
def test_agents_ask_each_other(said: Said, kind: str) -> None:
    assert said[f"{kind} handoff"] == {"text": "paid", "agent": "billing"}
    assert said[f"{kind} nested"] == {"text": "outer", "outputs": ["inner"]}


@pytest.mark.parametrize("kind", KINDS)
def test_a_session_remembers(said: Said, kind: str) -> None:
    assert said[f"{kind} session"] == {"texts": ["5 and 8", "again"], "items": 9}


@pytest.mark.parametrize("kind", KINDS)
def test_what_fails_is_an_exception(said: Said, kind: str) -> None:
    refused, broken = said[f"{kind} refused"], said[f"{kind} broken"]
    assert "slowly" in refused["message"], refused
    assert kind == "socket" or (refused["error"], refused["status"]) == ("RateLimitError", 429)
    assert "out of memory" in broken["message"], broken


@pytest.mark.parametrize("kind", KINDS)
def test_an_object_follows_its_schema(said: Said, kind: str) -> None:
    assert said[f"{kind} object"].get("valid"), said[f"{kind} object"]
    assert said[f"{kind} streamed object"].get("valid"), said[f"{kind} streamed object"]


def test_the_server_remembers(said: Said) -> None:
    texts = ["5 and 8", "again"]
    loop = ["message", "reasoning", *["function_call"] * 2, *["function_call_output"] * 2, "message"]
    assert said["continued"] == {"texts": texts}
    assert said["conversation"] == {"texts": texts, "kept": [*loop, "message", "message"]}
    assert said["conversations session"] == {"texts": texts, "items": 9}
