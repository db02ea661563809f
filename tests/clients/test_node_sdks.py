"""The official SDKs for Node: tool runners, streams, failures and objects."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from .client_process import Results, run_trials

HERE = Path(__file__).parent / "node"
INSTALLED = shutil.which("node") is not None and all(
    (HERE / "node_modules" / name).is_dir() for name in ("openai", "@anthropic-ai/sdk")
)

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(
        not INSTALLED, reason="needs node, and `npm install --prefix tests/clients/node`"
    ),
]

DIALECTS = ("chat", "responses", "messages")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run_trials(tmp_path_factory.mktemp("node"), "node", str(HERE / "sdks.mjs"))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_node_sdk_stream_equals_full_response(results: Results, dialect: str) -> None:
    whole = results[f"{dialect} whole"]
    assert results[f"{dialect} streamed"] == whole
    assert all(whole["usage"])


def test_node_sdk_tool_runner_completes(results: Results) -> None:
    assert (results["chat whole"]["text"], results["chat whole"]["results"]) == (
        "5 and 8",
        ["5", "8"],
    )
    assert results["messages runner"] == results["messages streamed runner"] == {"text": "5 and 8"}


def test_node_sdk_parses_tool_calls_and_reasoning(results: Results) -> None:
    response = results["responses whole"]
    message = results["messages whole"]
    assert response["items"] == ["reasoning", "function_call", "function_call"]
    assert response["calls"] == ['{"a": 2, "b": 3}', '{"a": 4, "b": 4}']
    assert (message["blocks"], message["stop"]) == (
        ["Sums.", {"a": 2, "b": 3}, {"a": 4, "b": 4}],
        "tool_use",
    )


@pytest.mark.parametrize("dialect", DIALECTS)
def test_node_sdk_error_response_raises_exception(results: Results, dialect: str) -> None:
    refused = results[f"{dialect} refused"]
    broken = results[f"{dialect} broken"]
    assert (refused["error"], refused["status"]) == ("RateLimitError", 429)
    assert "out of memory" in broken["message"], broken


@pytest.mark.parametrize("dialect", DIALECTS)
def test_node_sdk_structured_output_follows_schema(results: Results, dialect: str) -> None:
    assert results[f"{dialect} object"] == results[f"{dialect} streamed object"] == {"valid": True}


def test_node_sdk_resumes_responses_stream(results: Results) -> None:
    assert results["responses resumed"] == {"text": "one two three"}


def test_node_sdk_message_refers_to_uploaded_file(results: Results) -> None:
    assert results["messages file"] == {
        "text": "read",
        "filename": "a.pdf",
        "mime": "application/pdf",
    }
