"""Google's client for Node."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from .client_process import Results, run_trials

HERE = Path(__file__).parent / "node"
INSTALLED = (
    shutil.which("node") is not None and (HERE / "node_modules" / "@google" / "genai").is_dir()
)

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(
        not INSTALLED, reason="needs node, and `npm install --prefix tests/clients/node`"
    ),
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run_trials(tmp_path_factory.mktemp("node"), "node", str(HERE / "google_genai.mjs"))


@pytest.mark.parametrize("name", ["calls", "text", "thoughts", "length"])
def test_node_google_genai_stream_equals_whole(results: Results, name: str) -> None:
    whole = results[name]
    assert results[f"{name} streamed"] == whole
    assert all(whole["usage"])


def test_node_google_genai_reads_calls_and_thoughts(results: Results) -> None:
    calls = [["add", {"a": 2, "b": 3}], ["add", {"a": 4, "b": 4}]]
    whole = results["calls"]
    assert (whole["calls"], whole["thoughts"], whole["signed"]) == (calls, "Sums.", True)
    assert results["text"]["text"] == "The capital of Japan is Tokyo."
    assert results["thoughts"]["thoughts"] == "I need to add 17 and 26. The sum is 43."
    assert results["length"]["reason"] == "MAX_TOKENS"
    assert results["forced"]["calls"] == [["add", {"a": 17, "b": 26}]]


def test_node_google_genai_chat_keeps_history(results: Results) -> None:
    whole = results["chat"]
    assert results["chat streamed"] == whole
    assert whole["texts"] == ["5 and 8", "again"]
    assert whole["prompts"][0] < whole["prompts"][1]


@pytest.mark.parametrize("name", ["openapi", "json"])
def test_node_google_genai_output_follows_schema(results: Results, name: str) -> None:
    assert results[f"{name} object"] == results[f"{name} streamed object"] == {"valid": True}


def test_node_google_genai_other_routes_work(results: Results) -> None:
    assert results["counted"] == {"tokens": results["text"]["usage"][0]}
    assert results["embed"] == {"sizes": [192, 192]}
    assert results["list"] == {"names": ["models/scripted", "models/tiny"]}
    assert results["show"] == {"model": "models/tiny"}


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("unknown", 404, "The model `other` does not exist"),
        ("audio", 400, "generationConfig.responseModalities"),
        ("refused", 429, "slowly"),
        ("broken", 503, "out of memory"),
        ("broken stream", 503, "out of memory"),
    ],
)
def test_node_google_genai_error_raises_exception(
    results: Results, name: str, status: int, words: str
) -> None:
    failure = results[name]
    assert (failure["error"], failure["status"]) == ("ApiError", status)
    assert words in failure["message"]
