"""Plans of fields are reused without any effect on what is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import pytest
from tests.dialects.sealing_key import ReadableSealingKey

from dragoman.core.errors import RequestError
from dragoman.core.events import FinishReason, Token, Usage
from dragoman.core.message import Text
from dragoman.core.reply import Choice, Reply
from dragoman.core.server_tools import HostedTarget
from dragoman.dialects.anthropic import read_messages
from dragoman.dialects.chat import read_chat
from dragoman.dialects.completions.reader import read_completions
from dragoman.dialects.interfaces import GenerationCall, Header, Profile, ReaderOptions
from dragoman.dialects.plan_cache import ENTRY_BYTES
from dragoman.dialects.responses import read_responses

HELLO = [{"role": "user", "content": "Hello"}]
BYE = [{"role": "user", "content": "Bye"}, {"role": "assistant", "content": "So", "prefix": True}]
MESSAGES_FIELDS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.5, "stop_sequences": ["x"]},
    {"tools": [{"name": "f", "input_schema": {}}], "tool_choice": {"type": "any"}},
    {"tools": [{"type": "web_search_20250305", "name": "web_search"}], "unheard": 1},
    {"system": [{"type": "text", "text": "x-anthropic-billing-header: 1"}], "speed": "fast"},
    {"thinking": {"type": "between_tools"}, "output_config": {"effort": "high"}},
    {"mcp_servers": [{"name": "s", "authorization_token": "secret"}]},
    {"structured_outputs": {"json_object": True}},
)
EXTENDED: list[dict[str, Any]] = [
    *HELLO,
    {
        "role": "system",
        "content": [
            {
                "type": "tool_addition",
                "tool": {"type": "custom", "definition": {"name": "g", "input_schema": {}}},
            }
        ],
        "output_config": {"effort": "low"},
    },
]
PREFILLED = [*HELLO, {"role": "assistant", "content": "So"}]
CHAT_FIELDS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.5, "stop": ["x"], "max_tokens": 3},
    {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"},
    {"response_format": {"type": "json_object"}, "unheard": 1, "verbosity": "low"},
    {"tools": [{"type": "function", "strange": 1, "function": {"name": "f"}}], "n": 2},
    {"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "high"},
)
# A value of each option that differs from that of `build_options`.
CHANGES: dict[str, Any] = {
    "profile": Profile.VLLM,
    "default_model": "other",
    "max_stop": 0,
    "max_n": 1,
    "sealing_key": ReadableSealingKey(),
    "drop_nonces": False,
    "tokens_as_ids": True,
    "keeps_seal": True,
    "hosted_tools": {"web_search": HostedTarget("search")},
}
REPLY = Reply((Choice((Text("a", (Token(5, "a", -1.0),)),), FinishReason.STOP),), Usage(1, 1))


RESPONSES_FIELDS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.5, "stop": ["x"], "max_output_tokens": 3},
    {"tools": [{"type": "function", "name": "f"}], "tool_choice": "required"},
    {"tools": [{"type": "web_search"}], "unheard": 1, "text": {"verbosity": "low"}},
    {"tool_choice": {"type": "function", "name": "g"}, "user": "u"},
    {"reasoning": {"effort": "unheard"}, "instructions": "Be brief."},
    {"tools": [{"type": "mcp", "server_label": "t", "authorization": "secret"}]},
    {"include": ["reasoning.encrypted_content"], "store": False, "conversation": "conv_1"},
)
RESPONSES_INPUTS: tuple[Any, ...] = (
    "Hello",
    [
        {"type": "additional_tools", "tools": [{"type": "function", "name": "g"}]},
        {"type": "additional_tools", "tools": [{"type": "mcp", "server_label": "s"}]},
        *HELLO,
        {"type": "configuration_update", "reasoning": {"effort": "low"}},
    ],
)


def read_response_call(body: bytes, options: ReaderOptions) -> GenerationCall:
    return read_responses(body, options).call


class Dialect(NamedTuple):
    """A reader with prompts and other fields of its bodies.

    option_fields: fields that an option affects.
    """

    read: Callable[[bytes, ReaderOptions], GenerationCall]
    prompts: tuple[dict[str, Any], ...]
    fields: tuple[dict[str, Any], ...]
    option_fields: tuple[dict[str, Any], ...]


DIALECTS = {
    "chat": Dialect(
        read_chat,
        ({"messages": HELLO}, {"messages": BYE}),
        CHAT_FIELDS,
        ({}, {"stop": ["x"]}, {"n": 2}, {"logprobs": True}),
    ),
    "messages": Dialect(
        read_messages,
        tuple({"max_tokens": 9, "messages": messages} for messages in (HELLO, EXTENDED, PREFILLED)),
        MESSAGES_FIELDS,
        ({}, {"stop_sequences": ["x"]}, *MESSAGES_FIELDS[3:5]),
    ),
}
DIALECTS["responses"] = Dialect(
    read_response_call,
    tuple({"input": input} for input in RESPONSES_INPUTS),
    RESPONSES_FIELDS,
    ({}, {"stop": ["x"]}, *RESPONSES_FIELDS[3:]),
)
DIALECTS["completions"] = Dialect(
    read_completions,
    ({"prompt": "Once"}, {"prompt": ["a", "b"], "suffix": "c"}, {"prompt": [1, 2]}),
    ({}, {"echo": True}, {"n": 2, "unheard": 1}, {"best_of": 3, "logprobs": 1}),
    ({}, {"stop": ["x"]}, {"n": 2}, {"logprobs": 1}),
)
every_dialect = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)


def build_options() -> ReaderOptions:
    return ReaderOptions(default_model="m")


def read_everything(
    read: Callable[[bytes, ReaderOptions], GenerationCall],
    fields: dict[str, Any],
    options: ReaderOptions,
) -> tuple[Any, ...]:
    try:
        call = read(msgspec.json.encode(fields), options)
    except RequestError as error:
        return error.message, error.param, error.code
    answer = call.writer(Header("id", 1, "m")).render_full(REPLY)
    return call.requests, call.stream, call.warnings, call.unknown, call.unlisted, answer


@every_dialect
def test_reader_reused_plan_reads_the_same_call(dialect: Dialect):
    for fields in dialect.fields:
        options = build_options()
        for prompt in (*dialect.prompts, dialect.prompts[0]):
            body = prompt | fields
            expected = read_everything(dialect.read, body, build_options())
            assert read_everything(dialect.read, body, options) == expected
        has_credentials = "secret" in repr(fields)
        assert (options.plans.n_bytes == 0) == has_credentials
        assert options.plans.n_bytes < 2 * ENTRY_BYTES


@every_dialect
def test_reader_finds_no_plan_of_another_owner(dialect: Dialect):
    options = build_options()
    read_everything(dialect.read, dialect.prompts[0], options)
    size = options.plans.n_bytes
    other = msgspec.structs.replace(options, sealing_key=ReadableSealingKey())
    read_everything(dialect.read, dialect.prompts[0], other)
    assert options.plans.n_bytes == 2 * size


@every_dialect
@pytest.mark.parametrize("name", [*CHANGES])
def test_reader_changed_option_has_its_effect(name: str, dialect: Dialect):
    options = build_options()
    for fields in dialect.option_fields:
        body = dialect.prompts[0] | fields
        read_everything(dialect.read, body, options)
        changed = msgspec.structs.replace(options, **{name: CHANGES[name]})
        fresh = msgspec.structs.replace(build_options(), **{name: CHANGES[name]})
        expected = read_everything(dialect.read, body, fresh)
        assert read_everything(dialect.read, body, changed) == expected


def test_changed_options_are_all_options():
    assert {*CHANGES, "plans"} == {*ReaderOptions.__struct_fields__}


def test_chat_reader_rejected_fields_are_rejected_again():
    options = build_options()
    for _ in range(2):
        with pytest.raises(RequestError, match="top_logprobs"):
            read_chat(msgspec.json.encode({"messages": HELLO, "top_logprobs": 2}), options)
    assert options.plans.n_bytes == 0


@pytest.mark.parametrize("type", [b"mcp", rb"\u006dcp", rb"m\u0063p", rb"mc\u0070"])
def test_responses_reader_keeps_no_mcp_credentials(type: bytes):
    options = build_options()
    tool = b'{"type":"%s","server_label":"s","server_url":"https://a.b","authorization":"c"}' % type
    read_responses(b'{"input":"a","tools":[%s]}' % tool, options)
    assert options.plans.n_bytes == 0
