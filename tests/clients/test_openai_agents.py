"""The OpenAI Agents SDK in a separate process: tool loops, handoffs, memory, failures
and objects.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from .client_process import Results, needs, run_trials

SCRIPT = Path(__file__).parent / "openai_agents" / "program.py"
ROOT = Path(__file__).parents[2]
MCP_SERVER = ROOT / "packages" / "dragoman" / "tests" / "tools" / "official_server.py"
KINDS = ("chat", "responses", "socket")

pytestmark = [pytest.mark.clients, needs("agents", "websockets")]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("agents")
    server = {"command": sys.executable, "args": [str(MCP_SERVER)]}
    (folder / "tools.yaml").write_text(json.dumps({"servers": {"weather": server}}))
    options = "--tools-file tools.yaml"
    return run_trials(folder, sys.executable, str(SCRIPT), options=options)


@pytest.mark.parametrize("kind", KINDS)
def test_agents_sdk_tool_loop_stream_equals_full_run(results: Results, kind: str) -> None:
    whole = results[f"{kind} whole"]
    streamed = results[f"{kind} streamed"]
    calls = ["tool_call_item"] * 2
    outputs = ["tool_call_output_item"] * 2
    assert (whole["text"], whole["outputs"]) == ("5 and 8", [5, 8]), whole
    assert whole["items"] == ["reasoning_item", *calls, *outputs, "message_output_item"]
    assert whole["usage"][0] == 2
    assert all(whole["usage"])
    assert streamed == {"deltas": "5 and 8", **whole}


@pytest.mark.parametrize("kind", KINDS)
def test_agents_sdk_handoff_and_nested_agents_complete(results: Results, kind: str) -> None:
    assert results[f"{kind} handoff"] == {"text": "paid", "agent": "billing"}
    assert results[f"{kind} nested"] == {"text": "outer", "outputs": ["inner"]}


@pytest.mark.parametrize("kind", KINDS)
def test_agents_sdk_session_stores_history(results: Results, kind: str) -> None:
    assert results[f"{kind} session"] == {"texts": ["5 and 8", "again"], "items": 9}


@pytest.mark.parametrize("kind", KINDS)
def test_agents_sdk_error_response_raises_exception(results: Results, kind: str) -> None:
    refused = results[f"{kind} refused"]
    broken = results[f"{kind} broken"]
    assert "slowly" in refused["message"], refused
    assert kind == "socket" or (refused["error"], refused["status"]) == ("RateLimitError", 429)
    assert "out of memory" in broken["message"], broken


@pytest.mark.parametrize("kind", KINDS)
def test_agents_sdk_structured_output_follows_schema(results: Results, kind: str) -> None:
    assert results[f"{kind} object"].get("valid"), results[f"{kind} object"]
    assert results[f"{kind} streamed object"].get("valid"), results[f"{kind} streamed object"]


def test_agents_sdk_server_state_continues_conversation(results: Results) -> None:
    texts = ["5 and 8", "again"]
    loop = [
        "message",
        "reasoning",
        *["function_call"] * 2,
        *["function_call_output"] * 2,
        "message",
    ]
    assert results["continued"] == {"texts": texts}
    assert results["conversation"] == {"texts": texts, "kept": [*loop, "message", "message"]}
    assert results["conversations session"] == {"texts": texts, "items": 9}


@pytest.mark.parametrize("kind", ["responses", "socket"])
@pytest.mark.parametrize("approval", ["never", "always"])
@pytest.mark.parametrize("stream", [False, True])
def test_agents_sdk_hosted_mcp_tool_is_called(
    results: Results, kind: str, approval: str, stream: bool
) -> None:
    result = results[f"{kind} mcp {approval} {stream}"]
    approvals = ["mcp_approval_request_item", "mcp_approval_response_item"]
    assert result == {
        "text": "sunny",
        "items": [
            "mcp_list_tools_item",
            *(approvals if approval == "always" else []),
            "tool_call_item",
            "message_output_item",
        ],
        "outputs": ["It is sunny in Bern."],
    }
