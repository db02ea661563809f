"""Google's official client in a separate process, directly and through a server whose
upstream has Google's API.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .client_process import Results, needs, run_at, run_trials, serving, serving_both

SCRIPT = Path(__file__).parent / "google_genai" / "program.py"
CALLS = [["add", {"a": 2, "b": 3}], ["add", {"a": 4, "b": 4}]]
UPSTREAM_MODELS = """models:
  scripted: {{model: "{address}", upstream-kind: gemini, upstream-model: scripted, pinned: true}}
  tiny:
    model: "{address}"
    upstream-kind: gemini
    upstream-model: tiny
    upstream-task: ["generate,embed"]
    pinned: true
"""

pytestmark = [pytest.mark.clients, needs("google.genai")]


@pytest.fixture(scope="module")
def direct(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("google_genai")
    return run_trials(folder, sys.executable, str(SCRIPT))


@pytest.fixture(scope="module")
def relayed(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("google_genai_upstream")
    relay = tmp_path_factory.mktemp("google_genai_relay")
    with serving_both(folder) as upstream:
        (relay / "models.yaml").write_text(UPSTREAM_MODELS.format(address=upstream))
        with serving("--config models.yaml --store memory", relay) as address:
            return run_at(address, folder, sys.executable, str(SCRIPT))


@pytest.fixture(params=["direct", "relayed"])
def results(request: pytest.FixtureRequest) -> Results:
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("name", ["calls", "text", "thoughts", "length"])
def test_google_genai_stream_equals_full_response(results: Results, name: str) -> None:
    whole = results[name]
    assert results[f"{name} streamed"] == whole
    assert results[f"{name} streamed async"] == whole
    prompt, answer, total = whole["usage"]
    assert 0 < prompt + answer <= total


def test_google_genai_reads_calls_thoughts_and_reasons(results: Results) -> None:
    calls, text, thoughts = results["calls"], results["text"], results["thoughts"]
    # The SDK describes what an annotated function returns.
    described = "tools[0].functionDeclarations[0].responseJsonSchema: the model is not shown it"
    assert calls["warnings"] == described
    assert (calls["calls"], calls["thoughts"], calls["signed"]) == (CALLS, "Sums.", True)
    assert (text["text"], text["reason"]) == ("The capital of Japan is Tokyo.", "STOP")
    assert text["warnings"] is None
    assert (thoughts["text"], thoughts["thoughts"]) == (
        "17 + 26 = 43.",
        "I need to add 17 and 26. The sum is 43.",
    )
    assert results["thoughts off"]["thoughts"] == ""
    assert results["length"]["reason"] == "MAX_TOKENS"
    assert results["forced"]["calls"] == [["add", {"a": 17, "b": 26}]]


def test_google_genai_count_equals_prompt_tokens(results: Results) -> None:
    assert results["counted"] == {"tokens": results["text"]["usage"][0]}


def test_google_genai_calls_functions_automatically(results: Results) -> None:
    loop = {"text": "5 and 8", "results": [{"result": 5}, {"result": 8}]}
    assert results["loop"] == results["loop streamed"] == loop


@pytest.mark.parametrize("name", ["chat", "chat streamed"])
def test_google_genai_chat_keeps_history(results: Results, name: str) -> None:
    chat = results[name]
    assert chat["texts"] == ["5 and 8", "two", "three"]
    assert chat["results"] == [{"result": 5}, {"result": 8}]
    assert chat["prompts"] == sorted(set(chat["prompts"])) == results["chat"]["prompts"]


@pytest.mark.parametrize(
    "name",
    [
        f"{kind}{stream} object"
        for kind in ("class", "json", "array")
        for stream in ("", " streamed")
    ]
    + ["parsed", "enum"],
)
def test_google_genai_output_follows_schema(results: Results, name: str) -> None:
    assert results[name] == {"valid": True}


def test_google_genai_model_and_embed_routes_work(results: Results) -> None:
    assert results["embed"] == {"sizes": [192, 192]}
    names = {"names": ["models/scripted", "models/tiny"]}
    assert results["list"] == results["list async"] == names
    assert results["show"] == {
        "model": "models/tiny",
        "actions": ["generateContent", "countTokens", "embedContent"],
        "has_limit": True,
    }


@pytest.mark.parametrize(
    ("name", "status", "kind", "words"),
    [
        ("unknown", 404, "NOT_FOUND", "The model `other` does not exist"),
        ("audio", 400, "INVALID_ARGUMENT", "generationConfig.responseModalities"),
        ("cached", 400, "INVALID_ARGUMENT", "cachedContent"),
        ("out of range", 400, "INVALID_ARGUMENT", "generationConfig.topP"),
        ("refused", 429, "RESOURCE_EXHAUSTED", ""),
        ("broken", 503, "UNAVAILABLE", ""),
        ("broken stream", 503, "UNAVAILABLE", ""),
    ],
)
def test_google_genai_error_response_raises_exception(
    results: Results, name: str, status: int, kind: str, words: str
) -> None:
    failure = results[name]
    error = "ClientError" if status < 500 else "ServerError"
    assert (failure["error"], failure["status"], failure["kind"]) == (error, status, kind)
    assert words in failure["message"]
