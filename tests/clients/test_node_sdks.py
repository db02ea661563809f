"""The official SDKs for Node, in their own runtime: tool runners, streams, failures and objects."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from .running import Said, tried

HERE = Path(__file__).parent / "node"
INSTALLED = shutil.which("node") is not None and all(
    (HERE / "node_modules" / name).is_dir() for name in ("openai", "@anthropic-ai/sdk")
)

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(not INSTALLED, reason="needs node, and `npm install --prefix tests/clients/node`"),
]

DIALECTS = ("chat", "responses", "messages")


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Said:
    return tried(tmp_path_factory.mktemp("node"), "node", str(HERE / "sdks.mjs"))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_stream_is_what_the_whole_answer_is(said: Said, dialect: str) -> None:
    whole = said[f"{dialect} whole"]
    assert said[f"{dialect} streamed"] == whole
    assert all(whole["usage"])


def test_a_tool_runner_comes_to_its_end(said: Said) -> None:
    assert (said["chat whole"]["text"], said["chat whole"]["results"]) == ("5 and 8", ["5", "8"])
    assert said["messages runner"] == said["messages streamed runner"] == {"text": "5 and 8"}


def test_calls_and_thoughts_are_read(said: Said) -> None:
    response, message = said["responses whole"], said["messages whole"]
    assert response["items"] == ["reasoning", "function_call", "function_call"]
    assert response["calls"] == ['{"a": 2, "b": 3}', '{"a": 4, "b": 4}']
    assert (message["blocks"], message["stop"]) == (["Sums.", {"a": 2, "b": 3}, {"a": 4, "b": 4}], "tool_use")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_fails_is_an_exception(said: Said, dialect: str) -> None:
    refused, broken = said[f"{dialect} refused"], said[f"{dialect} broken"]
    assert (refused["error"], refused["status"]) == ("RateLimitError", 429)
    assert "out of memory" in broken["message"], broken


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_object_follows_its_schema(said: Said, dialect: str) -> None:
    assert said[f"{dialect} object"] == said[f"{dialect} streamed object"] == {"valid": True}


def test_a_stream_is_resumed(said: Said) -> None:
    assert said["responses resumed"] == {"text": "one two three"}


def test_an_uploaded_file_is_named_in_a_message(said: Said) -> None:
    assert said["messages file"] == {"text": "read", "filename": "a.pdf", "mime": "application/pdf"}
