"""A field of another role or type is reported like an unknown one, in every dialect."""

from __future__ import annotations

import json
from collections.abc import Set
from importlib import import_module
from typing import Any

import pytest
from msgspec import Struct
from tests.dialects.test_nested_fields import OPTIONS

from dragoman.core.errors import RequestError
from dragoman.dialects.anthropic import content_blocks, message_history, read_messages
from dragoman.dialects.anthropic.wire import MESSAGES_NESTED, AnthropicWireMessage, WireContentBlock
from dragoman.dialects.chat import messages as chat_messages
from dragoman.dialects.chat.reader import read_chat
from dragoman.dialects.chat.wire import CHAT_NESTED, ChatContentPart, ChatWireMessage
from dragoman.dialects.completions.reader import read_completions
from dragoman.dialects.ollama import messages as ollama_messages
from dragoman.dialects.ollama.reader import AnswerClock, read_ollama_chat
from dragoman.dialects.ollama.wire import OLLAMA_NESTED, OllamaWireMessage
from dragoman.dialects.ollama.writer import OllamaTimings
from dragoman.dialects.responses import item_reader
from dragoman.dialects.responses.reader import read_responses
from dragoman.dialects.responses.wire import (
    RESPONSES_NESTED,
    ResponsesContentPart,
    WireItem,
)
from dragoman.dialects.unknown_fields import NestedRules

RULES = {
    "chat": CHAT_NESTED,
    "responses": RESPONSES_NESTED,
    "messages": MESSAGES_NESTED,
    "ollama": OLLAMA_NESTED,
}
HOSTED_FIELDS = {
    *("code", "error", "outputs", "queries", "result", "results", "revised_prompt"),
    *("server_label", "approval_request_id", "approve", "reason"),
}
"""Fields of items of hosted tools, which are the vendor's own and not checked."""
UNCHECKED: dict[type[Struct], set[str]] = {
    WireItem: HOSTED_FIELDS,
    # Of blocks and tools of hosted tools, which are not checked.
    WireContentBlock: {"url", "server_name", "encrypted_content"},
}
TAGS: dict[type[Struct], Set[str | None]] = {
    ChatWireMessage: set(chat_messages.ROLES),
    ChatContentPart: set(chat_messages.PARTS),
    OllamaWireMessage: set(ollama_messages.ROLES),
    AnthropicWireMessage: set(message_history.ROLES),
    WireContentBlock: set(content_blocks.VISIBLE_TYPES)
    | {"thinking", "redacted_thinking", "tool_use", "tool_result", "tool_reference"}
    | {"compaction", *content_blocks.TOOL_CHANGES},
    WireItem: {None, *item_reader.READ_TYPES, *item_reader.REFERENCE_TYPES},
    ResponsesContentPart: {None, *item_reader.PART_TYPES},
}
"""The roles and types that the readers know."""


@pytest.mark.parametrize("dialect", RULES)
def test_every_field_of_tagged_struct_has_role_or_type(dialect: str) -> None:
    rules: NestedRules = RULES[dialect]
    for struct, tagged in rules.tagged.items():
        with_meaning = {name for names in tagged.fields.values() for name in names}
        accepted = rules.accepted.get(struct, frozenset[str]())
        fields = {*struct.__struct_fields__} - {tagged.tag} - accepted
        if "display_width_px" in fields:
            fields -= {"display_width_px", "display_height_px", "enable_zoom"}
        assert fields - with_meaning == UNCHECKED.get(struct, set()), struct


@pytest.mark.parametrize("struct", TAGS)
def test_every_role_and_type_of_reader_has_fields(struct: type[Struct]) -> None:
    (tagged,) = [rules.tagged[struct] for rules in RULES.values() if struct in rules.tagged]
    assert set(tagged.fields) == TAGS[struct]


@pytest.mark.parametrize("dialect", RULES)
def test_every_struct_with_role_or_type_has_rule(dialect: str) -> None:
    """A struct with a type and several optional fields holds several kinds of objects."""
    folder = "anthropic" if dialect == "messages" else dialect
    module = import_module(f"dragoman.dialects.{folder}.wire")
    rules: NestedRules = RULES[dialect]
    single = {
        *("EditThreshold", "OutputFormat", "ToolChange", "OllamaTool", "CacheControl"),
        *("GrammarDefinition",),
    }
    members: dict[str, Any] = vars(module)
    for name, struct in members.items():
        if not (isinstance(struct, type) and issubclass(struct, Struct)):
            continue
        if struct.__module__ == module.__name__ and {"role", "type"} & {*struct.__struct_fields__}:
            assert struct in rules.tagged or name in single, name


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
USER = {"role": "user", "content": "hi"}


def read_ollama(data: bytes, options: Any) -> Any:
    clock = AnswerClock(lambda: 0.0, lambda: OllamaTimings(0, 0, 0, 0))
    return read_ollama_chat(data, options, clock=clock).call


def read_responses_call(data: bytes, options: Any) -> Any:
    return read_responses(data, options).call


READERS: dict[str, Any] = {
    "chat": read_chat,
    "completions": read_completions,
    "responses": read_responses_call,
    "messages": read_messages,
    "ollama": read_ollama,
}


def put(dialect: str, message: dict[str, Any]) -> dict[str, Any]:
    """Build a body with this message or item at its beginning."""
    if dialect == "responses":
        return {"input": [message, USER]}
    limit = {"max_tokens": 9} if dialect == "messages" else {}
    return {**limit, "messages": [message, USER]}


MEANINGLESS: list[tuple[str, dict[str, Any], str]] = [
    ("chat", put("chat", {**USER, "tool_calls": [CALL]}), "messages[0].tool_calls"),
    ("chat", put("chat", {**USER, "reasoning_content": "Hm"}), "messages[0].reasoning_content"),
    ("chat", put("chat", {**USER, "refusal": "No"}), "messages[0].refusal"),
    ("chat", put("chat", {**USER, "tool_call_id": "c"}), "messages[0].tool_call_id"),
    (
        "chat",
        put("chat", {"role": "system", "content": "s", "reasoning": "Hm"}),
        "messages[0].reasoning",
    ),
    (
        "chat",
        put("chat", {"role": "assistant", "content": "a", "tool_call_id": "c"}),
        "messages[0].tool_call_id",
    ),
    (
        "chat",
        put("chat", {**USER, "content": [{"type": "text", "text": "a", "refusal": "b"}]}),
        "messages[0].content[0].refusal",
    ),
    (
        "chat",
        {
            "messages": [USER],
            "tools": [{"type": "function", "function": {"name": "f"}, "custom": {"name": "g"}}],
        },
        "tools[0].custom",
    ),
    (
        "chat",
        {
            "messages": [USER],
            "response_format": {"type": "text", "json_schema": {"name": "n", "schema": {}}},
        },
        "response_format.json_schema",
    ),
    (
        "completions",
        {
            "prompt": "a",
            "response_format": {"type": "json_object", "json_schema": {"name": "n", "schema": {}}},
        },
        "response_format.json_schema",
    ),
    ("responses", put("responses", {**USER, "output": "x"}), "input[0].output"),
    ("responses", put("responses", {**USER, "arguments": "{}"}), "input[0].arguments"),
    (
        "responses",
        put("responses", {"type": "reasoning", "summary": [], "call_id": "c"}),
        "input[0].call_id",
    ),
    (
        "responses",
        put(
            "responses",
            {**USER, "content": [{"type": "input_text", "text": "a", "detail": "low"}]},
        ),
        "input[0].content[0].detail",
    ),
    (
        "responses",
        {
            "input": "hi",
            "tools": [{"type": "function", "name": "f", "parameters": {}, "display_width": 3}],
        },
        "tools[0].display_width",
    ),
    (
        "responses",
        {"input": "hi", "text": {"format": {"type": "json_object", "schema": {"type": "object"}}}},
        "text.format.schema",
    ),
    (
        "messages",
        put("messages", {**USER, "clear_at": "next_user_message"}),
        "messages[0].clear_at",
    ),
    (
        "messages",
        put("messages", {**USER, "content": [{"type": "text", "text": "a", "is_error": True}]}),
        "messages[0].content[0].is_error",
    ),
    (
        "messages",
        {
            "max_tokens": 9,
            "messages": [USER],
            "thinking": {"type": "disabled", "budget_tokens": 1024},
        },
        "thinking.budget_tokens",
    ),
    (
        "messages",
        {
            "max_tokens": 9,
            "messages": [USER],
            "tools": [{"name": "f", "input_schema": {"type": "object"}}],
            "tool_choice": {"type": "auto", "name": "f"},
        },
        "tool_choice.name",
    ),
    ("ollama", put("ollama", {**USER, "thinking": "Hm"}), "messages[0].thinking"),
    ("ollama", put("ollama", {**USER, "tool_name": "f"}), "messages[0].tool_name"),
    ("ollama", put("ollama", {**USER, "role": "User", "thinking": "Hm"}), "messages[0].thinking"),
    (
        "ollama",
        put("ollama", {**USER, "tool_calls": [{"function": {"name": "f"}}]}),
        "messages[0].tool_calls",
    ),
    (
        "ollama",
        put("ollama", {"role": "assistant", "content": "a", "tool_call_id": "c"}),
        "messages[0].tool_call_id",
    ),
]


@pytest.mark.parametrize(("dialect", "body", "path"), MEANINGLESS, ids=str)
def test_field_of_other_role_or_type_is_unknown(
    dialect: str, body: dict[str, Any], path: str
) -> None:
    assert READERS[dialect](json.dumps(body).encode(), OPTIONS).unknown == (path,)


@pytest.mark.parametrize("value", [None, "", [], {}, False])
def test_empty_field_of_other_role_is_not_reported(value: object) -> None:
    body = put("chat", {**USER, "refusal": None, "annotations": [], "tool_calls": value or None})
    assert read_chat(json.dumps(body).encode(), OPTIONS).unknown == ()
    message = {**USER, "reasoning_content": "" if value is None else None}
    assert read_chat(json.dumps(put("chat", message)).encode(), OPTIONS).unknown == ()


INVALID: list[tuple[str, dict[str, Any], str]] = [
    (
        "messages",
        put(
            "messages",
            {
                **USER,
                "content": [
                    {
                        "type": "text",
                        "text": "a",
                        "cache_control": {"type": "ephemeral", "ttl": "9h"},
                    }
                ],
            },
        ),
        "messages[0].content[0].cache_control.ttl",
    ),
    (
        "messages",
        {
            "max_tokens": 9,
            "messages": [USER],
            "tools": [
                {
                    "name": "f",
                    "input_schema": {"type": "object"},
                    "cache_control": {"type": "lasting"},
                }
            ],
        },
        "tools[0].cache_control.type",
    ),
    (
        "messages",
        {
            "max_tokens": 9,
            "messages": [USER],
            "system": [{"type": "text", "text": "s", "cache_control": {"type": "x"}}],
        },
        "system[0].cache_control.type",
    ),
    (
        "messages",
        {
            "max_tokens": 9,
            "messages": [USER],
            "cache_control": {"type": "ephemeral", "ttl": "2h"},
        },
        "cache_control.ttl",
    ),
    (
        "responses",
        put("responses", {"role": "assistant", "content": "a", "phase": "bogus"}),
        "input[0].phase",
    ),
    (
        "chat",
        {"messages": [USER], "prompt_cache_retention": "9h"},
        "prompt_cache_retention",
    ),
    ("responses", {"input": "hi", "prompt_cache_retention": "9h"}, "prompt_cache_retention"),
    (
        "responses",
        {"input": "hi", "reasoning": {"summary": "bogus"}},
        "reasoning.summary",
    ),
]


@pytest.mark.parametrize(("dialect", "body", "param"), INVALID, ids=str)
def test_value_unknown_to_vendor_is_400(dialect: str, body: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as rejected:
        READERS[dialect](json.dumps(body).encode(), OPTIONS)
    assert rejected.value.param == param
    assert "Supported values are" in rejected.value.message


def test_value_of_vendor_is_accepted() -> None:
    mark = {"type": "ephemeral", "ttl": "1h", "scope": "global"}
    content = [{"type": "text", "text": "a", "cache_control": mark}]
    body = {**put("messages", {**USER, "content": content}), "cache_control": mark}
    call = read_messages(json.dumps(body).encode(), OPTIONS)
    assert (call.warnings, call.unknown) == ((), ())
