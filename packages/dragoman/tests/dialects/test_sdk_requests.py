"""Every field that the official SDKs declare for a request is honoured, rejected by name
or reported, whatever its variant. A new version of an SDK fails here with what is new.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from anthropic.types import message_create_params
from anthropic.types.beta import message_count_tokens_params
from anthropic.types.beta import message_create_params as beta_message_create_params
from openai.types import completion_create_params, decision_create_params
from openai.types.beta import response_create_params as beta_response_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params
from tests.dialects.sdk_requests import FieldGenerator, SdkField
from tests.dialects.sealing_key import ReadableSealingKey

from dragoman.core.errors import RequestError
from dragoman.core.events import FinishReason, Usage
from dragoman.core.message import Reasoning, Text
from dragoman.core.reply import Choice, Reply
from dragoman.dialects.anthropic import read_count_tokens, read_messages
from dragoman.dialects.chat.reader import read_chat
from dragoman.dialects.completions.reader import read_completions
from dragoman.dialects.decisions import read_decisions
from dragoman.dialects.interfaces import GenerationCall, Header, ReaderOptions
from dragoman.dialects.responses.reader import read_responses

OPTIONS = ReaderOptions(default_model="m", sealing_key=ReadableSealingKey())
REPLY = Reply((Choice((Reasoning("r"), Text("t")), FinishReason.STOP),), Usage(1, 1, 1))
EXAMPLES = {
    "actions": [{"type": "wait"}],
    "call_id": "c",
    "data": "aGk=",
    "file_data": "aGk=",
    **dict.fromkeys(("url", "image_url", "file_url"), "https://localhost/x"),
}
"""Values for fields that the SDKs declare as any string."""


class SdkBody(NamedTuple):
    """A body that an SDK declares.

    read: returns the warnings, the unknown fields, and what the body means.
    fixed: fields of every request.
    reported: fields without support that the general warning about unknown fields
        names.
    ignored: fields that change nothing and are no reason for a warning, such as hints
        for caches, and what a client replays from an answer.
    """

    declared: Any
    read: Callable[[bytes], tuple[tuple[str, ...], tuple[str, ...], object]]
    fixed: dict[str, Any]
    reported: frozenset[str]
    ignored: frozenset[str]


def describe(call: GenerationCall) -> tuple[object, ...]:
    """Return what a call does, to compare it with another."""
    rendered = call.writer(Header("i", 0, "m")).render_full(REPLY)
    return call.requests, call.stream, call.unlisted, rendered


def read_generation(
    read: Callable[[bytes, ReaderOptions], GenerationCall],
) -> Callable[[bytes], tuple[tuple[str, ...], tuple[str, ...], object]]:
    def read_body(data: bytes) -> tuple[tuple[str, ...], tuple[str, ...], object]:
        call = read(data, OPTIONS)
        return call.warnings, call.unknown, describe(call)

    return read_body


def read_response(data: bytes) -> tuple[tuple[str, ...], tuple[str, ...], object]:
    parsed = read_responses(data, OPTIONS)
    return parsed.call.warnings, parsed.call.unknown, (*describe(parsed.call), parsed.tools)


def read_count(data: bytes) -> tuple[tuple[str, ...], tuple[str, ...], object]:
    call = read_count_tokens(data, OPTIONS)
    return call.warnings, call.unknown, (call.conversation, call.reports_edits)


def read_decision(data: bytes) -> tuple[tuple[str, ...], tuple[str, ...], object]:
    call = read_decisions(data, OPTIONS)
    return call.warnings, call.unknown, call.requests


OPENAI_DEFAULTS = frozenset({"n", "parallel_tool_calls", "stream", "store", "stream_options"})
OPENAI_HINTS = frozenset(
    {"metadata", "prompt_cache_breakpoint", "prompt_cache_key", "prompt_cache_options"}
) | {"prompt_cache_retention", "safety_identifier", "user"}
RESPONSES_IGNORED = (
    OPENAI_DEFAULTS
    | OPENAI_HINTS
    | {"access_programs", "background_options", "betas", "image"}
    # Of replayed items and their parts.
    | {"agent", "annotations", "approval_request_id", "attributes", "caller", "execution"}
    | {"file_id", "id", "logprobs", "max_output_length", "score", "status"}
    # Equal to another part of the same item, or to the default.
    | {"content", "environment", "format", "reasoning", "reason", "text", "type"}
    # Of tools: all are in the prompt, and not what they return.
    | {"async", "defer_loading", "output_schema", "description"}
    # Of hosted tools, which are left out with a warning, and of MCP servers.
    | {"allowed_tools", "headers", "require_approval", "server_description"}
)
MESSAGES_IGNORED = frozenset(
    {"betas", "billing_policy", "fallback_credit_token", "metadata", "service_tier"}
    | {"stream", "user_profile_id", "workspace_id"}
    # Hints for caches, and of replayed blocks.
    | {"cache_control", "caller", "citations", "page_age", "toolset_name"}
    # Of tools: all are in the prompt; what only the client needs to run them.
    | {"defer_loading", "display_number", "eager_input_streaming", "max_characters"}
    # The route reads it.
    | {"diagnostics"}
    # The value is the default.
    | {"clear_at_least", "fallbacks", "keep", "output_config", "tool_choice"}
    | {"type", "tool_configuration"}
)
COUNT_IGNORED = MESSAGES_IGNORED | {"compaction", "display", "mcp_servers", "speed"}
INPUT: dict[str, Any] = {"input": "a"}
BODIES = {
    "chat": SdkBody(
        chat_create_params.CompletionCreateParamsNonStreaming,
        read_generation(read_chat),
        {},
        frozenset({"messages[].audio"}),
        OPENAI_DEFAULTS | OPENAI_HINTS | {"description", "format", "response_format", "strict"},
    ),
    "completions": SdkBody(
        completion_create_params.CompletionCreateParamsNonStreaming,
        read_generation(read_completions),
        {},
        frozenset(),
        OPENAI_DEFAULTS | OPENAI_HINTS,
    ),
    "responses": SdkBody(
        response_create_params.ResponseCreateParamsNonStreaming,
        read_response,
        INPUT,
        frozenset({"input[].async", "tools[].async", "tools[].tools[].async"}),
        RESPONSES_IGNORED,
    ),
    "beta responses": SdkBody(
        beta_response_create_params.ResponseCreateParamsNonStreaming,
        read_response,
        INPUT,
        frozenset({"input[].agent", "input[].async", "tools[].async", "tools[].tools[].async"}),
        RESPONSES_IGNORED,
    ),
    "messages": SdkBody(
        message_create_params.MessageCreateParamsNonStreaming,
        read_generation(read_messages),
        {},
        frozenset(),
        MESSAGES_IGNORED,
    ),
    "beta messages": SdkBody(
        beta_message_create_params.MessageCreateParamsNonStreaming,
        read_generation(read_messages),
        {},
        frozenset({"output_config.task_budget", "thinking.block_binding"}),
        MESSAGES_IGNORED,
    ),
    "beta count": SdkBody(
        message_count_tokens_params.MessageCountTokensParams,
        read_count,
        {},
        frozenset({"output_config.task_budget", "thinking.block_binding"}),
        COUNT_IGNORED,
    ),
    "decisions": SdkBody(
        decision_create_params.DecisionCreateParams,
        read_decision,
        {},
        frozenset({"input[].phase"}),
        OPENAI_HINTS | {"id", "name", "status", "type"},
    ),
}


class Outcome(NamedTuple):
    """What the fields of a body caused.

    unnamed: errors that do not name the field, by its path.
    unknown: fields that the warning about unknown fields names.
    silent: fields of which no value has an effect or causes a warning.
    """

    unnamed: dict[str, str]
    unknown: set[str]
    silent: set[str]


def try_fields(body: SdkBody, fields: Iterator[SdkField], base: dict[str, Any]) -> Outcome:
    outcome = Outcome({}, set(), set())
    has_effect: dict[str, set[bool]] = defaultdict(set)

    def read(value: dict[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...], object]:
        return body.read(json.dumps({**base, **value, "model": "m"}).encode())

    for field in fields:
        name = re.split(r"[.\[<=]", field.path)[0]
        try:
            warnings, unknown, meaning = read(field.body)
            if not (warnings or unknown or field.rest is None):
                has_effect[field.name].add(read(field.rest)[2] != meaning)
                continue
        except RequestError as error:
            if not (error.param or "").startswith(name) and name not in str(error):
                outcome.unnamed[field.path] = str(error)
        else:
            outcome.unknown.update(re.sub(r"\[\d+\]", "[]", path) for path in unknown)
        has_effect[field.name].add(True)
    outcome.silent.update(name for name, effects in has_effect.items() if effects == {False})
    return outcome


def find_leaf(path: str) -> str:
    """Return the name of a path's last field."""
    return re.sub(r"<[^<>]*>|\[\]", "", path).rsplit(".", 1)[-1]


def has_silent_parent(path: str, silent: set[str]) -> bool:
    return any(path.startswith((f"{parent}.", f"{parent}[", f"{parent}<")) for parent in silent)


@pytest.mark.parametrize("name", BODIES)
def test_sdk_request_field_is_honoured_rejected_or_reported(name: str) -> None:
    body = BODIES[name]
    generator = FieldGenerator(EXAMPLES)
    base = {**generator.build_minimal(body.declared), **body.fixed}
    outcome = try_fields(body, generator.generate(body.declared), base)
    assert outcome.unnamed == {}
    new = outcome.unknown - body.reported
    assert not new, f"unknown here: {sorted(new)}"
    new = {
        path
        for path in outcome.silent
        if find_leaf(path) not in body.ignored | {"model"}
        and not has_silent_parent(path, outcome.silent)
    }
    assert not new, f"without effect or warning: {sorted(new)}"
