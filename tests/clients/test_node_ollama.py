"""Ollama's client for Node."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from .client_process import Results, run_trials

HERE = Path(__file__).parent / "node"
INSTALLED = shutil.which("node") is not None and (HERE / "node_modules" / "ollama").is_dir()

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(
        not INSTALLED, reason="needs node, and `npm install --prefix tests/clients/node`"
    ),
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run_trials(tmp_path_factory.mktemp("node"), "node", str(HERE / "ollama.mjs"))


def test_node_ollama_stream_equals_full_response(results: Results) -> None:
    whole = results["whole"]
    assert results["streamed"] == whole
    assert whole["calls"] == [["add", {"a": 2, "b": 3}], ["add", {"a": 4, "b": 4}]]
    assert (whole["thinking"], whole["counts"][2], whole["dated"]) == ("Sums.", "stop", True)
    assert results["loop"] == {"text": "5 and 8"}


def test_node_ollama_think_format_and_generate_return_output(results: Results) -> None:
    assert results["think"]["thinking"] == "I need to add 17 and 26. The sum is 43."
    assert results["format"] == {"valid": True}
    assert results["generate"] == {"text": "The capital of Japan is Tokyo."}


def test_node_ollama_model_and_embed_routes_work(results: Results) -> None:
    assert results["embed"] == {"sizes": [192, 192]}
    assert results["show"]["capabilities"] == ["completion", "tools", "embedding", "thinking"]
    assert results["list"]["names"] == ["scripted:latest", "tiny:latest"]
    assert results["version"]["version"].count(".") == 2
    assert results["pull"]["statuses"][-1] == "success"


def test_node_ollama_error_response_raises_exception(results: Results) -> None:
    assert (results["unknown"]["status"], "not found" in results["unknown"]["message"]) == (
        404,
        True,
    )
    assert "out of memory" in results["broken"]["message"]
