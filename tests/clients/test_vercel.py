"""The Vercel AI SDK in Node: tool loops, streams, failures, objects and vectors in all
of our dialects.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from .client_process import Results, run_trials

HERE = Path(__file__).parent / "node"
INSTALLED = shutil.which("node") is not None and (HERE / "node_modules" / "ai").is_dir()

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(
        not INSTALLED, reason="needs node, and `npm install --prefix tests/clients/node`"
    ),
]

DIALECTS = ("responses", "chat", "completions", "compatible", "messages")
THINKING = {"compatible", "messages"}
"""Dialects in which this SDK shows reasoning that is not a summary."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run_trials(tmp_path_factory.mktemp("vercel"), "node", str(HERE / "vercel.mjs"))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_vercel_stream_equals_full_response(results: Results, dialect: str) -> None:
    whole = results[f"{dialect} whole"]
    streamed = results[f"{dialect} streamed"]
    assert (streamed.pop("deltas"), streamed.pop("failures")) == ("5 and 8", [])
    assert streamed == whole
    assert (whole["text"], whole["finish"]) == ("5 and 8", "stop")
    assert all(whole["usage"])


@pytest.mark.parametrize("dialect", [name for name in DIALECTS if name != "completions"])
def test_vercel_tool_loop_completes(results: Results, dialect: str) -> None:
    whole = results[f"{dialect} whole"]
    assert whole["calls"] == [{"a": 2, "b": 3}, {"a": 4, "b": 4}]
    assert whole["results"] == ["5", "8"]
    assert whole["reasoning"] == ("Two numbers." if dialect in THINKING else "")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_vercel_error_response_is_reported(results: Results, dialect: str) -> None:
    refused = results[f"{dialect} refused"]
    broken = results[f"{dialect} broken"]
    # Anthropic's status for an overloaded engine is 529.
    status = 529 if dialect == "messages" else 503
    assert (refused["error"], refused["status"], refused["message"]) == (
        "AI_APICallError",
        status,
        "out of memory",
    )
    assert (broken["deltas"], broken["finish"], broken["failures"]) == (
        "So far",
        "error",
        ["out of memory"],
    )


@pytest.mark.parametrize("dialect", [name for name in DIALECTS if name != "completions"])
def test_vercel_structured_output_follows_schema(results: Results, dialect: str) -> None:
    result = results[f"{dialect} object"]
    assert result.get("valid"), result
    assert result["object"].keys() == {"name", "age"}


def test_vercel_embed_many_returns_all_vectors(results: Results) -> None:
    assert results["embeddings"]["sizes"] == [192, 192]
    assert results["embeddings"]["usage"] > 0
