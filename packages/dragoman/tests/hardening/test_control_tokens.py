"""User text never becomes a control token: vLLM CVE-2026-44222, transformers #29279.
Tested with every special token of every tokenizer of the tests, in every field with
user text.
"""

from __future__ import annotations

import json

import pytest
from tests.prompts.templates import template
from tests.prompts.test_render import NOW
from tests.prompts.vocabularies import all_kinds

from dragoman.core.message import FunctionTool, Message, Role, Text, ToolCall, ToolResult
from dragoman.core.request import Conversation
from dragoman.prompts.hf_tokenizer import HfTokenizer
from dragoman.prompts.render import Renderer

KINDS = all_kinds()


def names(tokenizer: HfTokenizer) -> list[str]:
    return sorted({*tokenizer.special_tokens, *tokenizer.control_tokens.names})


def controls(tokenizer: HfTokenizer) -> set[int]:
    return {tokenizer.special_tokens[name] for name in tokenizer.control_tokens.names}


@pytest.mark.parametrize("kind", KINDS)
def test_encode_special_token_name_yields_no_control_token(kind: str):
    tokenizer = KINDS[kind]
    assert names(tokenizer)
    for name in names(tokenizer):
        for text in (
            name,
            f"a{name}b",
            name * 3,
            f" {name}",
            name.upper(),
            name[:-1] + name,
            name[0] + name,
        ):
            assert controls(tokenizer).isdisjoint(tokenizer.encode(text, special=False)), text


def build_conversation(text: str) -> Conversation:
    """Build a conversation with the text in every field that a client fills."""
    call = ToolCall("c1", text, json.dumps({"x": text}))
    tool = FunctionTool(text, text, json.dumps({"type": "object", "description": text}))
    messages = (
        Message(Role.SYSTEM, (Text(text),)),
        Message(Role.USER, (Text(text),)),
        Message(Role.ASSISTANT, (Text(text), call)),
        Message(Role.TOOL, (ToolResult("c1", (Text(text),)),)),
        Message(Role.USER, (Text(text),)),
    )
    return Conversation(messages, (tool,))


def test_render_special_token_name_adds_no_control_token():
    """The prompt has as many control tokens as a prompt of harmless words."""
    tokenizer = KINDS["embedded"]
    renderer = Renderer(template("embedded"), tokenizer)
    control = controls(tokenizer)

    def count(text: str) -> int:
        return sum(id in control for id in renderer.render(build_conversation(text), now=NOW).ids)

    harmless = count("harmless")
    for name in names(tokenizer):
        assert count(name) == harmless, name
