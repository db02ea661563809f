"""Ollama's own client, LangChain-Ollama and LiteLLM on Ollama's API, each in a separate
process.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .client_process import Results, needs, run_trials

SCRIPT = Path(__file__).parent / "ollama" / "program.py"
CALLS = [["add", {"a": 2, "b": 3}], ["add", {"a": 4, "b": 4}]]

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run_trials(tmp_path_factory.mktemp("ollama"), sys.executable, str(SCRIPT), "ollama")


@pytest.fixture(scope="module")
def langchain(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run_trials(
        tmp_path_factory.mktemp("langchain"), sys.executable, str(SCRIPT), "langchain"
    )


@pytest.fixture(scope="module")
def litellm(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run_trials(tmp_path_factory.mktemp("litellm"), sys.executable, str(SCRIPT), "litellm")


@needs("ollama")
def test_ollama_client_chat_runs_tool_loop(official: Results):
    whole = official["chat whole"]
    assert whole == official["chat streamed"]
    assert (whole["calls"], whole["thinking"], whole["timed"]) == (CALLS, "Sums.", True)
    assert whole["counts"][2] == "stop"
    assert official["chat loop"] == {"text": "5 and 8", "results": [5, 8]}


@needs("ollama")
def test_ollama_client_returns_thinking_and_structured_output(official: Results):
    whole = official["think whole"]
    assert whole == official["think streamed"]
    assert (whole["thinking"], whole["text"]) == (
        "I need to add 17 and 26. The sum is 43.",
        "17 + 26 = 43.",
    )
    assert official["format"] == official["generate format"] == {"valid": True}
    assert (
        official["generate"]
        == official["generate streamed"]
        == {"text": "The capital of Japan is Tokyo."}
    )
    assert (official["context"], official["logprobs"]) == ({"begins": True}, {"top": 2})


@needs("ollama")
def test_ollama_client_model_and_embed_routes_work(official: Results):
    assert (official["embed"], official["embeddings"]) == ({"sizes": [192, 192]}, {"size": 192})
    assert "thinking" in official["show"]["capabilities"]
    assert any(name.endswith(".context_length") for name in official["show"]["info"])
    assert official["list"]["names"] == ["scripted:latest", "tiny:latest"]
    assert official["ps"]["names"] == ["scripted:latest", "tiny:latest"]
    assert (official["pull"], official["pull streamed"]["statuses"][-1]) == (
        {"status": "success"},
        "success",
    )
    assert official["load"] == {"reason": "load"}


@needs("ollama")
def test_ollama_client_error_response_raises_exception(official: Results):
    for name, status, text in (
        ("unknown", 404, "model 'llama3.2' not found"),
        ("delete", 400, "not supported"),
        ("refused", 429, "slowly"),
    ):
        assert (official[name]["error"], official[name]["status"]) == ("ResponseError", status)
        assert text in official[name]["message"]
    assert (official["broken"]["error"], "out of memory" in official["broken"]["message"]) == (
        "ResponseError",
        True,
    )


@needs("langchain_ollama")
def test_langchain_ollama_stream_equals_full_response(langchain: Results):
    assert langchain["whole"] == langchain["streamed"]
    assert (langchain["whole"]["calls"], langchain["whole"]["thinking"]) == (CALLS, "Sums.")
    assert all(langchain["whole"]["usage"])
    assert langchain["loop"] == {"text": "5 and 8", "results": ["5", "8"]}
    assert (langchain["object"], langchain["embed"]) == ({"valid": True}, {"sizes": [192, 192]})
    assert langchain["text"] == {"text": "The capital of Japan is Tokyo."}
    assert "out of memory" in langchain["broken"]["message"]


@needs("litellm")
def test_litellm_ollama_request_and_response_are_translated(litellm: Results):
    assert litellm["whole"]["calls"] == litellm["streamed"]["calls"] == CALLS
    assert litellm["whole"]["thinking"] == litellm["streamed"]["thinking"] == "Sums."
    assert litellm["whole"]["reason"] == "tool_calls"
    for kind in ("ollama_chat", "ollama"):
        assert litellm[f"{kind} text"]["text"] == "The capital of Japan is Tokyo."
        assert litellm[f"{kind} text streamed"]["text"] == "The capital of Japan is Tokyo."
        assert all(litellm[f"{kind} text"]["usage"])
    assert (litellm["object"], litellm["embed"]) == ({"valid": True}, {"size": 192})
    assert "slowly" in litellm["refused"]["message"]
