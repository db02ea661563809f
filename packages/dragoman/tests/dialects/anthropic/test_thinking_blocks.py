"""Thinking blocks that clients send back: ownership, and blocks without an owner."""

from __future__ import annotations

import msgspec
import pytest

from dragoman.core.errors import RequestError
from dragoman.core.message import Reasoning, Text
from dragoman.core.request import Conversation
from dragoman.dialects.anthropic import read_count_tokens, read_messages
from dragoman.dialects.interfaces import GenerationCall, ReaderOptions
from dragoman.dialects.sealing import VerificationMode

from ..sealing_key import ReadableSealingKey


def call(
    block: dict[str, str], check: VerificationMode = VerificationMode.LENIENT, *, key: bool = True
) -> GenerationCall:
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [block, {"type": "text", "text": "b"}]},
        {"role": "user", "content": "c"},
    ]
    body = msgspec.json.encode({"model": "m", "max_tokens": 5, "messages": messages})
    return read_messages(
        body, ReaderOptions(sealing_key=ReadableSealingKey(check) if key else None)
    )


def thought(call: GenerationCall) -> str | None:
    prompt = call.requests[0].prompt
    assert isinstance(prompt, Conversation)
    *thoughts, text = prompt.messages[1].parts
    assert text == Text("b")
    assert all(isinstance(each, Reasoning) for each in thoughts)
    return "".join(each.text for each in thoughts if isinstance(each, Reasoning)) or None


def thinking(text: str, signature: str) -> dict[str, str]:
    return {"type": "thinking", "thinking": text, "signature": signature}


@pytest.mark.parametrize("check", VerificationMode)
def test_thinking_with_own_signature_is_trusted(check: VerificationMode):
    parsed = call(thinking("hm", "HM"), check)
    assert (thought(parsed), parsed.warnings) == ("hm", ())


@pytest.mark.parametrize("check", VerificationMode)
@pytest.mark.parametrize(
    "block",
    [thinking("", "reasoning:hm"), {"type": "redacted_thinking", "data": "reasoning:hm"}],
    ids=("omitted", "redacted"),
)
def test_omitted_or_redacted_thinking_is_restored(block: dict[str, str], check: VerificationMode):
    parsed = call(block, check)
    assert (thought(parsed), parsed.warnings) == ("hm", ())


@pytest.mark.parametrize(
    "block",
    [
        thinking("hm", "foreign"),
        thinking("changed", "HM"),
        thinking("", "foreign"),
        thinking("", "compaction:hm"),
        {"type": "redacted_thinking", "data": "foreign"},
    ],
)
def test_foreign_thinking_is_skipped_or_rejected_in_strict_mode(block: dict[str, str]):
    parsed = call(block)
    assert thought(parsed) is None
    assert len(parsed.warnings) == 1
    field = "data" if block["type"] == "redacted_thinking" else "signature"
    with pytest.raises(
        RequestError, match=f"Invalid `{field}` in `{block['type']}` block"
    ) as rejected:
        call(block, VerificationMode.STRICT)
    assert rejected.value.param == f"messages[1].content[0].{field}"


def test_signature_check_off_trusts_any_thinking():
    assert thought(call(thinking("hm", "foreign"), VerificationMode.OFF)) == "hm"
    assert thought(call(thinking("hm", "foreign"), key=False)) == "hm"


def test_unsigned_thinking_is_accepted_unless_strict():
    assert thought(call(thinking("hm", ""))) == "hm"
    with pytest.raises(RequestError):
        call(thinking("hm", ""), VerificationMode.STRICT)
    assert thought(call(thinking("", ""), VerificationMode.STRICT)) is None


def test_count_tokens_verifies_thinking_like_messages():
    message = {
        "role": "assistant",
        "content": [thinking("hm", "foreign"), {"type": "text", "text": "b"}],
    }
    body = msgspec.json.encode(
        {"model": "m", "messages": [{"role": "user", "content": "a"}, message]}
    )
    counted = read_count_tokens(body, ReaderOptions(sealing_key=ReadableSealingKey()))
    assert counted.conversation.messages[1].parts == (Text("b"),)
    assert counted.warnings
