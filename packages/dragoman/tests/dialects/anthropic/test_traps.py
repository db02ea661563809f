"""Incompatibilities with real clients of Messages, each with its bug reports.

Headers and keys (20, 23) are tested with the server.
"""

from __future__ import annotations

import json

from dragoman.core.events import (
    ChoiceFinished,
    Event,
    Finished,
    FinishReason,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)
from dragoman.core.message import Reasoning, Role, Text, ToolResult
from dragoman.dialects.anthropic import render_anthropic_error
from dragoman_check.rules.anthropic import check_stream

from ...laws.anthropic_sdk import AnthropicSdk
from ..bodies import render, render_full
from .bodies import HELLO, WEATHER, JsonObject, conversation, count, messages, read_error, turns

STOP = ChoiceFinished(0, FinishReason.STOP)
LENGTH = ChoiceFinished(0, FinishReason.LENGTH)
DONE = Finished(Usage(1, 200))
CALLS: tuple[Event, ...] = (
    Started(1),
    ReasoningDelta(0, "Hm."),
    TextDelta(0, "I look."),
    ToolCallStart(0, "c1", "f"),
    ToolCallDelta(0, '{"a":'),
    ToolCallDelta(0, "1}"),
    ToolCallStart(0, "c2", "g"),
    ToolCallDelta(0, "{}"),
)


def events(*sequence: Event) -> list[JsonObject]:
    return check_stream(render(messages(), *sequence).encode())


def reasons(*sequence: Event) -> tuple[str, str]:
    """Return the stop reason of the stream and of the object."""
    return events(*sequence)[-2]["delta"]["stop_reason"], json.loads(
        render_full(messages(), *sequence)
    )["stop_reason"]


def test_hosted_tools_do_not_reject_request():
    """llama.cpp#20156, #23465"""
    search = {"type": "web_search_20250305", "name": "web_search"}
    assert [tool.name for tool in conversation(tools=[search, WEATHER]).tools] == ["weather"]


def test_tool_result_accepts_list_of_parts():
    """llama.cpp#23465"""
    content = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    block = {"type": "tool_result", "tool_use_id": "x", "content": content}
    (turn,) = turns({"role": "user", "content": [block]})
    assert turn.parts == (ToolResult("x", (Text("a"), Text("b"))),)


def test_tool_calls_set_stop_reason():
    assert reasons(*CALLS, STOP, DONE) == ("tool_use", "tool_use")
    assert reasons(*CALLS, LENGTH, DONE) == ("max_tokens", "max_tokens")
    assert reasons(Started(1), TextDelta(0, "x"), STOP, DONE) == ("end_turn", "end_turn")


def test_tool_call_cut_at_max_tokens_keeps_partial_input():
    """mlx-lm#905: max_tokens inside a tool call dropped the connection."""
    cut = (
        Started(1),
        ToolCallStart(0, "c", "f"),
        ToolCallDelta(0, '{"a": 1, "b": "x'),
        LENGTH,
        DONE,
    )
    assert reasons(*cut) == ("max_tokens", "max_tokens")
    assert json.loads(render_full(messages(), *cut))["content"][0]["input"] == {"a": 1}


def test_tool_call_cut_by_stop_string_keeps_partial_input():
    stopped = ChoiceFinished(0, FinishReason.STOP, "END")
    cut = (
        Started(1),
        ToolCallStart(0, "c", "f"),
        ToolCallDelta(0, '{"a": 1, "b": "x'),
        stopped,
        DONE,
    )
    assert reasons(*cut) == ("stop_sequence", "stop_sequence")
    assert json.loads(render_full(messages(), *cut))["content"][0]["input"] == {"a": 1}


def test_deeply_nested_arguments_are_readable_by_sdk():
    deep = (
        Started(1),
        ToolCallStart(0, "c", "f"),
        ToolCallDelta(0, '{"a":' + "[" * 1_000),
        STOP,
        DONE,
    )
    (block,) = AnthropicSdk().message(render(messages(), *deep).encode()).content
    assert block.type == "tool_use"
    assert "INVALID_JSON" in block.input


def test_system_messages_are_accepted_between_turns():
    """vllm#44000: Claude Code since 2.1.154."""
    messages = turns(*HELLO, {"role": "system", "content": "Be brief."})
    assert [turn.role for turn in messages] == [Role.USER, Role.SYSTEM]


def test_thinking_without_signature_is_replayed():
    """intel/llm-scaler#341"""
    block = {"type": "thinking", "thinking": "Hm.", "signature": ""}
    messages = turns(
        *HELLO, {"role": "assistant", "content": [block, {"type": "text", "text": "x"}]}, *HELLO
    )
    assert messages[1].parts == (Reasoning("Hm."), Text("x"))


def test_content_blocks_have_unique_indices():
    """CLIProxyAPI#539, sglang#39782, anthropics/claude-code#63487"""
    stream = events(*CALLS, STOP, DONE)
    opened = [event["index"] for event in stream if event["type"] == "content_block_start"]
    kinds = [
        event["content_block"]["type"] for event in stream if event["type"] == "content_block_start"
    ]
    assert opened == [0, 1, 2, 3]
    assert kinds == ["thinking", "text", "tool_use", "tool_use"]
    assert [event["index"] for event in stream if event["type"] == "content_block_stop"] == opened


def test_count_tokens_includes_system_prompt_and_tools():
    """litellm#13252, CLIProxyAPI#679"""
    counted = count(system="Be brief.", tools=[WEATHER]).conversation
    assert [turn.role for turn in counted.messages] == [Role.SYSTEM, Role.USER]
    assert [tool.name for tool in counted.tools] == ["weather"]


def test_error_body_has_only_anthropic_keys():
    """vLLM's global handlers use its own envelope under /v1/messages."""
    body = json.loads(render_anthropic_error(read_error(messages=5), "req_1"))
    assert set(body) == {"type", "error", "request_id"}
    assert set(body["error"]) == {"type", "message"}
