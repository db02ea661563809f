"""No field below the top level of a body is silently ignored, in any dialect."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Protocol

import pytest

from dragoman.core.errors import RequestError
from dragoman.core.message import Reasoning
from dragoman.core.request import Conversation
from dragoman.dialects.anthropic import read_count_tokens, read_messages
from dragoman.dialects.chat.reader import read_chat
from dragoman.dialects.completions.reader import read_completions
from dragoman.dialects.decisions import read_decisions, read_systemone
from dragoman.dialects.interfaces import ReaderOptions
from dragoman.dialects.responses.reader import read_responses
from dragoman.dialects.sglang.reader import read_sglang
from dragoman.dialects.tgi.reader import read_tgi
from dragoman.dialects.tokenize import read_tokenize
from dragoman.dialects.vllm_generate.reader import read_generate

OPTIONS = ReaderOptions(default_model="m")
Body = dict[str, Any]


class Call(Protocol):
    @property
    def unknown(self) -> tuple[str, ...]: ...


CHAT: Body = {
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {
            "role": "assistant",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f"}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "x"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "stream": True,
    "stream_options": {"include_usage": True},
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": {"type": "object"}},
    },
}
RESPONSES: Body = {
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "x"},
    ],
    "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
    "tool_choice": {"type": "function", "name": "f"},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
    "reasoning": {"effort": "low"},
}
MESSAGES: Body = {
    "max_tokens": 5,
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "c",
                    "content": [{"type": "text", "text": "x"}],
                }
            ],
        },
    ],
    "system": [{"type": "text", "text": "s"}],
    "tools": [{"name": "f", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "auto"},
    "thinking": {"type": "disabled"},
    "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
    "metadata": {"user_id": "u"},
}
CASES: list[tuple[str, Callable[[bytes, ReaderOptions], Any], Body, list[str]]] = [
    (
        "chat",
        read_chat,
        CHAT,
        [
            "messages[0]",
            "messages[0].content[0]",
            "messages[1].tool_calls[0]",
            "messages[1].tool_calls[0].function",
            "tools[0]",
            "tools[0].function",
            "tool_choice",
            "tool_choice.function",
            "stream_options",
            "response_format",
            "response_format.json_schema",
        ],
    ),
    (
        "tokenize",
        read_tokenize,
        {"messages": CHAT["messages"], "tools": CHAT["tools"]},
        ["messages[0]", "tools[0]"],
    ),
    (
        "completions",
        read_completions,
        {"prompt": "a", "structured_outputs": {"regex": "a"}, "stream": True, "stream_options": {}},
        ["structured_outputs", "stream_options"],
    ),
    (
        "responses",
        lambda data, options: read_responses(data, options).call,
        RESPONSES,
        [
            "input[0]",
            "input[0].content[0]",
            "input[1]",
            "input[2]",
            "tools[0]",
            "tool_choice",
            "text",
            "text.format",
            "reasoning",
        ],
    ),
    (
        "messages",
        read_messages,
        MESSAGES,
        [
            "messages[0]",
            "messages[0].content[0]",
            "messages[1].content[0]",
            "messages[2].content[0]",
            "messages[2].content[0].content[0]",
            "system[0]",
            "tools[0]",
            "tool_choice",
            "thinking",
            "output_config",
            "output_config.format",
            "metadata",
        ],
    ),
    (
        "count_tokens",
        read_count_tokens,
        {name: MESSAGES[name] for name in ("messages", "system", "tools")},
        ["messages[0].content[0]", "system[0]", "tools[0]"],
    ),
    (
        "tgi",
        read_tgi,
        {"inputs": "a", "parameters": {"grammar": {"type": "regex", "value": "a"}}},
        ["parameters", "parameters.grammar"],
    ),
    ("sglang", read_sglang, {"text": "a", "sampling_params": {}}, ["sampling_params"]),
    (
        "decisions",
        read_decisions,
        {
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}],
            "questions": [
                {
                    "type": "choice",
                    "instructions": [{"type": "input_text", "text": "b"}],
                    "choices": [{"value": "c"}, {"value": "d"}],
                }
            ],
        },
        [
            "input[0]",
            "input[0].content[0]",
            "questions[0]",
            "questions[0].instructions[0]",
            "questions[0].choices[0]",
        ],
    ),
    (
        "systemone",
        read_systemone,
        {"state": "a", "questions": {"q": {"type": "noul"}}},
        ["questions.q"],
    ),
    (
        "generate",
        read_generate,
        {"token_ids": [1], "sampling_params": {"structured_outputs": {"regex": "a"}}},
        ["sampling_params", "sampling_params.structured_outputs"],
    ),
]
PLACES = [(dialect, read, body, place) for dialect, read, body, places in CASES for place in places]


def insert(body: Body, place: str, name: str, value: object) -> bytes:
    copy = json.loads(json.dumps(body))
    target = copy
    for key in place.replace("[", ".").replace("]", "").split("."):
        target = target[int(key)] if key.isdecimal() else target[key]
    target[name] = value
    return json.dumps(copy).encode()


@pytest.mark.parametrize(
    ("read", "body", "place"),
    [case[1:] for case in PLACES],
    ids=[f"{dialect} {place}" for dialect, _, _, place in PLACES],
)
def test_unknown_nested_field_is_reported_with_path(
    read: Callable[[bytes, ReaderOptions], Call], body: Body, place: str
) -> None:
    assert read(json.dumps(body).encode(), OPTIONS).unknown == ()
    assert read(insert(body, place, "foo", 1), OPTIONS).unknown == (f"{place}.foo",)


@pytest.mark.parametrize(
    "place", ["messages[0]", "messages[1].tool_calls[0].function", "tool_choice"]
)
def test_unknown_null_field_is_not_reported(place: str) -> None:
    assert read_chat(insert(CHAT, place, "foo", None), OPTIONS).unknown == ()


def test_repeated_unknown_field_is_reported_once() -> None:
    body = {"messages": [{"role": "user", "content": "a", "foo": 1}] * 50}
    assert read_chat(json.dumps(body).encode(), OPTIONS).unknown == ("messages[0].foo",)


def test_unknown_field_reports_are_limited() -> None:
    body = {
        "messages": [
            {"role": "user", "content": "a", **{f"{i}{'x' * 1000}": 1 for i in range(500)}}
        ]
    }
    unknown = read_chat(json.dumps(body).encode(), OPTIONS).unknown
    assert len(unknown) == 32
    assert max(map(len, unknown)) <= 128


def test_free_form_fields_are_not_searched() -> None:
    body = {
        **CHAT,
        "chat_template_kwargs": {"foo": {"bar": 1}},
        "metadata": {"foo": "1"},
        "tool_choice": "auto",
    }
    body["tools"] = [
        {"type": "function", "function": {"name": "f", "parameters": {"foo": {"bar": [1]}}}}
    ]
    assert read_chat(json.dumps(body).encode(), OPTIONS).unknown == ()


def test_replayed_answer_fields_are_known() -> None:
    openai: Body = {
        "role": "assistant",
        "content": "b",
        "refusal": None,
        "annotations": [],
        "audio": None,
    }
    body: Body = {
        "messages": [{"role": "user", "content": "a"}, openai, {"role": "user", "content": "c"}]
    }
    assert read_chat(json.dumps(body).encode(), OPTIONS).unknown == ()
    part: Body = {"type": "output_text", "text": "b", "annotations": [], "logprobs": []}
    item: Body = {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }
    assert read_responses(json.dumps({"input": [item]}).encode(), OPTIONS).call.unknown == ()


def test_hosted_tool_is_reported_as_whole() -> None:
    body = {
        **RESPONSES,
        "tools": [{"type": "web_search", "search_context_size": "low"}],
        "tool_choice": "auto",
    }
    call = read_responses(json.dumps(body).encode(), OPTIONS).call
    assert call.unknown == ()
    assert "web_search" in call.warnings[0]


@pytest.mark.parametrize("mark", ["prefix", "partial"])
def test_prefix_or_partial_flag_continues_last_message(mark: str) -> None:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "The capital of Jap", mark: True},
    ]
    call = read_chat(json.dumps({"messages": messages}).encode(), OPTIONS)
    prompt = call.requests[0].prompt
    assert isinstance(prompt, Conversation)
    assert prompt.template.continue_final_message
    assert not prompt.template.add_generation_prompt
    assert call.warnings == call.unknown == ()


def test_prefix_flag_on_other_message_warns_or_is_rejected() -> None:
    marked = {"role": "assistant", "content": "b", "prefix": True}
    call = read_chat(
        json.dumps({"messages": [marked, {"role": "user", "content": "a"}]}).encode(), OPTIONS
    )
    assert call.warnings == (
        "messages[0].prefix is ignored: only the last message can be continued",
    )
    with pytest.raises(RequestError) as caught:
        read_chat(json.dumps({"messages": [{**marked, "role": "user"}]}).encode(), OPTIONS)
    assert caught.value.param == "messages[0].prefix"


def test_reasoning_details_are_parsed_into_history() -> None:
    details = [
        {"type": "reasoning.summary", "summary": "First ", "format": "x", "index": 0},
        {"type": "reasoning.text", "text": "then.", "signature": None, "id": "r"},
        {"type": "reasoning.encrypted", "data": "abc"},
    ]
    messages = [
        {"role": "assistant", "content": "b", "reasoning_details": details},
        {"role": "user", "content": "c"},
    ]
    call = read_chat(json.dumps({"messages": messages}).encode(), OPTIONS)
    prompt = call.requests[0].prompt
    assert isinstance(prompt, Conversation)
    assert prompt.messages[0].parts[0] == Reasoning("First then.")
    assert len(call.warnings) == 1
    assert "reasoning_details[2]" in call.warnings[0]
    twice = [{**messages[0], "reasoning": "Only this."}, messages[1]]
    prompt = read_chat(json.dumps({"messages": twice}).encode(), OPTIONS).requests[0].prompt
    assert isinstance(prompt, Conversation)
    assert prompt.messages[0].parts[0] == Reasoning("Only this.")
