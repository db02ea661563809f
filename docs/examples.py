"""An example of every parameter that a generating dialect honours: used by the tables
of the docs and by a test.

A value is the parameter's own; if it needs other fields beside it, it is an `Example`
with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dragoman.dialects.anthropic import read_messages
from dragoman.dialects.chat import read_chat
from dragoman.dialects.completions.reader import read_completions
from dragoman.dialects.interfaces import GenerationCall, ReaderOptions
from dragoman.dialects.responses import read_responses


@dataclass(frozen=True)
class Example:
    """A value with the fields that it needs beside it."""

    value: Any
    beside: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Dialect:
    """base: the least body that is understood. examples: by parameter."""

    read: Callable[[bytes, ReaderOptions], GenerationCall]
    base: Mapping[str, Any]
    examples: Mapping[str, Any]


def _responses(data: bytes, options: ReaderOptions) -> GenerationCall:
    return read_responses(data, options, now=lambda: 0).call


SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
FUNCTION = {
    "name": "weather",
    "description": "d",
    "parameters": {"type": "object", "properties": {}},
}
TOOL = {"type": "function", "function": FUNCTION}
HELLO = [{"role": "user", "content": "hello"}]
PREFILL = [*HELLO, {"role": "assistant", "content": "Well"}]
STREAM = {"stream": True}

DECODING: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 5,
    "min_p": 0.1,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.5,
    "seed": 7,
    "logit_bias": {"5": 1},
    "allowed_token_ids": [5],
    "bad_words": ["blue"],
    "min_tokens": 2,
    "stop_token_ids": [5],
    "include_stop_str_in_output": True,
    "ignore_eos": True,
    "truncate_prompt_tokens": 3,
    "structured_outputs": {"regex": "a+"},
    "guided_json": SCHEMA,
    "guided_regex": "a+",
    "guided_choice": ["a", "b"],
    "guided_grammar": 'start: "a"',
    "skip_special_tokens": False,
    "add_special_tokens": False,
    "priority": 3,
    "request_id": "mine",
    "cache_salt": "salt",
    "kv_transfer_params": {"a": 1},
    "vllm_xargs": {"a": 1},
}
SHARED: dict[str, Any] = {
    **DECODING,
    "cache_hit_threshold": 0.5,
    "session_id": "session-1",
    "model": "another",
    "stream": True,
    "stream_options": Example({"include_usage": True}, STREAM),
    "n": 2,
    "metadata": {"a": "b"},
    "service_tier": "default",
    "max_tokens": 5,
    "stop": ["END"],
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
    "prompt_logprobs": 1,
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
    "return_weight_versions": True,
}
CHAT: dict[str, Any] = {
    **SHARED,
    "add_special_tokens": True,
    "messages": [{"role": "user", "content": "bye"}],
    "max_completion_tokens": 5,
    "logprobs": True,
    "top_logprobs": Example(2, {"logprobs": True}),
    "logprob_token_ids": Example([5, 6], {"logprobs": True}),
    "return_tokens_as_token_ids": Example(True, {"logprobs": True}),
    "tools": [TOOL],
    "tool_choice": Example("required", {"tools": [TOOL]}),
    "parallel_tool_calls": Example(False, {"tools": [TOOL]}),
    "functions": [FUNCTION],
    "function_call": Example({"name": "weather"}, {"functions": [FUNCTION]}),
    "reasoning_effort": "low",
    "thinking_token_budget": 5,
    "include_reasoning": False,
    "chat_template": "{{ messages }}",
    "chat_template_kwargs": {"enable_thinking": True},
    "documents": [{"title": "a", "text": "b"}],
    "add_generation_prompt": False,
    "continue_final_message": Example(True, {"messages": PREFILL, "add_generation_prompt": False}),
    "return_prompt_text": True,
    "verbosity": "medium",
    "store": True,
}
COMPLETIONS: dict[str, Any] = {
    **SHARED,
    "prompt": [5, 6],
    "suffix": "bye",
    "best_of": 3,
    "echo": True,
    "logprobs": 2,
    "logprob_token_ids": Example([5, 6], {"logprobs": 1}),
    "return_tokens_as_token_ids": Example(True, {"logprobs": 1}),
}
RESPONSES: dict[str, Any] = {
    **DECODING,
    "add_special_tokens": True,
    "model": "another",
    "input": "bye",
    "instructions": "Be brief.",
    "previous_response_id": "resp_1",
    "conversation": "conv_1",
    "store": False,
    "background": True,
    "stream": True,
    "stream_options": Example({"include_obfuscation": False}, STREAM),
    "include": ["message.output_text.logprobs"],
    "tools": [{"type": "function", **FUNCTION}],
    "tool_choice": Example("required", {"tools": [{"type": "function", **FUNCTION}]}),
    "parallel_tool_calls": False,
    "max_tool_calls": 3,
    "max_output_tokens": 20,
    "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}},
    "reasoning": {"effort": "low"},
    "top_logprobs": 2,
    "truncation": "auto",
    "metadata": {"a": "b"},
    "user": "me",
    "safety_identifier": "me",
    "background_options": {"completion_window": "soonest"},
    "prompt_cache_options": {"mode": "explicit"},
    "prompt_cache_key": "k",
    "service_tier": "priority",
    "stop": ["END"],
    "include_reasoning": False,
    "thinking_token_budget": 5,
    "chat_template": "{{ messages }}",
    "chat_template_kwargs": {"enable_thinking": True},
}
CLAUDE_TOOL = {"name": "weather", "input_schema": {"type": "object", "properties": {}}}
MESSAGES: dict[str, Any] = {
    **DECODING,
    "add_special_tokens": True,
    "model": "another",
    "messages": [{"role": "user", "content": "bye"}],
    "system": "Be brief.",
    "tools": [CLAUDE_TOOL],
    "tool_choice": Example({"type": "any"}, {"tools": [CLAUDE_TOOL]}),
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
    "output_format": {"type": "json_schema", "schema": SCHEMA},
    "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]},
    "cache_control": {"type": "ephemeral", "ttl": "1h"},
    "chat_template": "{{ messages }}",
    "chat_template_kwargs": {"enable_thinking": True},
    "max_tokens": 5,
    "stream": True,
    "stop_sequences": ["END"],
    "metadata": {"user_id": "me"},
    "diagnostics": {"previous_message_id": "msg_1"},
    "mcp_servers": [{"type": "url", "name": "weather", "url": "https://mcp.example.com/mcp"}],
    "service_tier": "standard_only",
}

DIALECTS: dict[str, Dialect] = {
    "chat": Dialect(read_chat, {"messages": HELLO}, CHAT),
    "completions": Dialect(read_completions, {"prompt": "hello"}, COMPLETIONS),
    "responses": Dialect(_responses, {"input": "hello"}, RESPONSES),
    "messages": Dialect(read_messages, {"messages": HELLO, "max_tokens": 100}, MESSAGES),
}

REFUSES: dict[str, frozenset[str]] = {"messages": frozenset({"thread"})}
"""Honoured by being refused in the form that a client understands. Nothing of them
reaches an engine.
"""

READ_ONLY: dict[str, frozenset[str]] = {
    "chat": frozenset({"metadata", "store", "verbosity"}),
    "completions": frozenset({"metadata"}),
    "responses": frozenset(
        {"background_options", "max_tool_calls", "prompt_cache_options", "stream_options"}
    ),
    "messages": frozenset({"cache_control", "diagnostics", "metadata", "service_tier"}),
}
"""Of no effect on the answer to a request by itself: that they are read shows when a
wrong value is refused.
"""


def body(dialect: str, parameter: str | None = None) -> dict[str, Any]:
    """The base body with an example of the parameter in it."""
    known = DIALECTS[dialect]
    if parameter is None:
        return dict(known.base)
    example = known.examples[parameter]
    example = example if isinstance(example, Example) else Example(example)
    return {**known.base, **example.beside, parameter: example.value}
