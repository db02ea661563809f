"""LangChain in a separate process: agents, streams, failures, objects and vectors in
our dialects.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.docs.blocks import blocks
from tests.docs.harness import PageRunner

from .client_process import Results, needs, run_trials

PAGE = Path(__file__).parents[2] / "docs" / "agents" / "langchain.md"
SCRIPT = Path(__file__).parent / "langchain" / "program.py"
DIALECTS = ("chat", "responses", "messages")

pytestmark = [pytest.mark.clients, needs("langchain", "langchain_openai", "langchain_anthropic")]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run_trials(tmp_path_factory.mktemp("langchain"), sys.executable, str(SCRIPT))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_langchain_agent_completes_tool_loop(results: Results, dialect: str) -> None:
    loop = {"text": "5 and 8", "calls": [{"a": 2, "b": 3}, {"a": 4, "b": 4}], "results": ["5", "8"]}
    assert results[f"{dialect} loop"] == loop


@pytest.mark.parametrize("dialect", DIALECTS)
def test_langchain_stream_chunks_add_up_to_full_response(results: Results, dialect: str) -> None:
    assert results[f"{dialect} streamed"] == results[f"{dialect} whole"]
    assert len(results[f"{dialect} whole"]["calls"]) == 2
    assert all(results[f"{dialect} whole"]["usage"])


@pytest.mark.parametrize("dialect", DIALECTS)
def test_langchain_error_response_raises_exception(results: Results, dialect: str) -> None:
    refused = results[f"{dialect} refused"]
    broken = results[f"{dialect} broken"]
    assert refused["status"] == 429
    assert "RateLimitError" in refused["error"]
    assert "out of memory" in broken["message"]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_langchain_structured_output_follows_schema(
    results: Results, dialect: str, method: str
) -> None:
    assert results[f"{dialect} {method}"].get("valid"), results[f"{dialect} {method}"]


def test_langchain_completions_and_embeddings_work(results: Results) -> None:
    assert results["completions whole"] == results["completions streamed"] == {"text": "5 and 8"}
    assert results["embeddings"] == {"sizes": [192, 192]}


@needs("langchain_ollama")
def test_langchain_docs_examples_print_documented_output(tmp_path: Path) -> None:
    """The programs have separate markers, because LangChain is not installed for the
    ordinary tests of the docs.
    """
    page = PAGE.read_text(encoding="utf-8").replace("<!-- clients: ", "<!-- test: ")
    marked = list(blocks(page.replace("<!-- clients output -->", "<!-- output -->")))
    assert [block.kind for block in marked] == ["test", "output"] * 3
    runner = PageRunner(tmp_path)
    try:
        runner.run(marked)
    finally:
        runner.close()
