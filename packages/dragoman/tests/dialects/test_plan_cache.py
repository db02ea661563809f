"""Plans of fields are reused without any effect on what is read."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.dialects.sealing_key import ReadableSealingKey

from dragoman.core.errors import RequestError
from dragoman.core.events import FinishReason, Token, Usage
from dragoman.core.message import Text
from dragoman.core.reply import Choice, Reply
from dragoman.core.server_tools import HostedTarget
from dragoman.dialects.chat import read_chat
from dragoman.dialects.interfaces import Header, Profile, ReaderOptions
from dragoman.dialects.plan_cache import ENTRY_BYTES, PlanCache

HELLO = [{"role": "user", "content": "Hello"}]
BYE = [{"role": "user", "content": "Bye"}, {"role": "assistant", "content": "So", "prefix": True}]
FIELDS: tuple[dict[str, Any], ...] = (
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


def build_options() -> ReaderOptions:
    return ReaderOptions(default_model="m")


def encode(messages: list[dict[str, Any]], fields: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"messages": messages, **fields})


@pytest.mark.parametrize("fields", FIELDS)
def test_chat_reader_reused_plan_reads_the_same_call(fields: dict[str, Any]):
    options = build_options()
    for messages in (HELLO, BYE, HELLO):
        body = encode(messages, fields)
        read = read_chat(body, options)
        expected = read_chat(body, build_options())
        assert read.requests == expected.requests
        assert read.warnings == expected.warnings
        assert read.unknown == expected.unknown
        assert read.stream == expected.stream
    assert options.plans.n_bytes > 0


def test_chat_reader_finds_no_plan_of_another_owner():
    options = build_options()
    body = encode(HELLO, {})
    read_chat(body, options)
    size = options.plans.n_bytes
    read_chat(body, msgspec.structs.replace(options, sealing_key=ReadableSealingKey()))
    assert options.plans.n_bytes == 2 * size


def read_everything(body: bytes, options: ReaderOptions) -> tuple[Any, ...]:
    try:
        call = read_chat(body, options)
    except RequestError as error:
        return error.message, error.param, error.code
    answer = call.writer(Header("id", 1, "m")).render_full(REPLY)
    return call.requests, call.stream, call.warnings, call.unknown, answer


@pytest.mark.parametrize("name", [*CHANGES])
def test_chat_reader_changed_option_has_its_effect(name: str):
    options = build_options()
    for fields in ({}, {"stop": ["x"]}, {"n": 2}, {"logprobs": True}):
        body = encode(HELLO, fields)
        read_everything(body, options)
        changed = msgspec.structs.replace(options, **{name: CHANGES[name]})
        fresh = msgspec.structs.replace(build_options(), **{name: CHANGES[name]})
        assert read_everything(body, changed) == read_everything(body, fresh)


def test_changed_options_are_all_options():
    assert {*CHANGES, "plans"} == {*ReaderOptions.__struct_fields__}


def test_chat_reader_rejected_fields_are_rejected_again():
    options = build_options()
    for _ in range(2):
        with pytest.raises(RequestError, match="top_logprobs"):
            read_chat(encode(HELLO, {"top_logprobs": 2}), options)
    assert options.plans.n_bytes == 0


def test_plan_cache_full_evicts_oldest_plan():
    plans = PlanCache(10 * (ENTRY_BYTES + 1))
    for number in range(11):
        plans.add(number, f"plan {number}", 1)
        plans.add(number, "another", 1)
    assert plans.find(0) is None
    assert [plans.find(number) for number in (1, 10)] == ["plan 1", "plan 10"]
    assert plans.n_bytes == 10 * (ENTRY_BYTES + 1)


def test_plan_cache_keeps_no_large_plan():
    plans = PlanCache(10_000)
    plans.add("large", "plan", 2_000)
    assert plans.find("large") is None
    assert plans.n_bytes == 0
