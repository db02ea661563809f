"""Google's Agent Development Kit in a separate process: tool loops, sessions, objects and
failures in Gemini's API.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from .client_process import Results, run_trials

PYTHON = Path(sys.prefix) / "adk/bin/python"
"""Installed by `make test-clients` in an environment of its own, because it needs an
older version of Google's client.
"""
SCRIPT = Path(__file__).parent / "google_adk" / "program.py"
KINDS = ("whole", "streamed")

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(not PYTHON.exists(), reason="needs google-adk in its environment"),
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("google_adk")
    return run_trials(folder, "env", "GOOGLE_API_KEY=none", str(PYTHON), str(SCRIPT))


@pytest.mark.parametrize("kind", KINDS)
def test_google_adk_runs_function_tool_loop(results: Results, kind: str) -> None:
    assert results[f"loop {kind}"] == {
        "texts": ["5 and 8"],
        "deltas": "5 and 8" if kind == "streamed" else "",
        "calls": [["add", {"a": 2, "b": 3}], ["add", {"a": 4, "b": 4}]],
        "results": [{"result": 5}, {"result": 8}],
    }


@pytest.mark.parametrize("kind", KINDS)
def test_google_adk_session_continues(results: Results, kind: str) -> None:
    assert results[f"session {kind}"]["texts"] == ["one", "two"]


@pytest.mark.parametrize("kind", KINDS)
def test_google_adk_output_follows_schema(results: Results, kind: str) -> None:
    (text,) = results[f"object {kind}"]["texts"]
    assert set(json.loads(text)) == {"name", "age"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("broken", "ServerError", "out of memory"),
        ("unknown", "ClientError", "The model `other` does not exist"),
    ],
)
def test_google_adk_error_response_raises_exception(
    results: Results, kind: str, name: str, error: str, words: str
) -> None:
    failure = results[f"{name} {kind}"]
    assert failure["error"] == error
    assert words in failure["message"]
