"""The chat template of the embedded model: its output; later turns only append to
earlier prompts.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

TEMPLATE = (
    Path(__file__).parents[2]
    / "packages/dragoman/src/dragoman/engines/tiny/data/chat_template.jinja"
)
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'Get the weather <now> & "here"',
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
CLOCK: dict[str, Any] = {
    "type": "function",
    "function": {"name": "get_time", "parameters": {"type": "object"}},
}
PLAIN_CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi!"},
    {"role": "system", "content": "Now be long."},
    {"role": "user", "content": "Again"},
    {"role": "assistant", "content": "Fine.", "reasoning_content": "They repeat.\n"},
]
TOOL_CHAT: list[dict[str, Any]] = [
    {"role": "user", "content": "Weather in Zürich and Rome?"},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "Two calls.",
        "tool_calls": [
            {
                "id": "1",
                "type": "function",
                "function": {"name": "get_weather", "arguments": {"city": "Zürich"}},
            },
            {
                "id": "2",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city":"Rome"}'},
            },
        ],
    },
    {"role": "tool", "tool_call_id": "1", "content": '{"temperature": 3}'},
    {"role": "tool", "tool_call_id": "2", "content": '{"temperature": 21}'},
    {"role": "assistant", "content": "Cold and warm."},
    {"role": "user", "content": "Thanks"},
]


def render(messages: list[dict[str, Any]], **variables: Any) -> str:
    """Render the template as transformers does."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(TEMPLATE.read_text()).render(messages=messages, **variables)


def test_template_plain_chat_renders_all_turns():
    assert render(PLAIN_CHAT[:4], add_generation_prompt=True) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHello<|im_end|>\n"
        "<|im_start|>assistant\nHi!<|im_end|>\n"
        "<|im_start|>system\nNow be long.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_template_enable_thinking_opens_think_block():
    prompt = render(PLAIN_CHAT[:2], add_generation_prompt=True, enable_thinking=True)
    assert prompt.endswith("<|im_start|>assistant\n<think>\n")


@pytest.mark.parametrize("variables", [{"enable_thinking": False}, {"enable_thinking": None}, {}])
def test_template_without_thinking_opens_no_think_block(variables: dict[str, Any]):
    assert render(PLAIN_CHAT[:2], add_generation_prompt=True, **variables).endswith(
        "<|im_start|>assistant\n"
    )


def test_template_thinking_without_generation_prompt_is_ignored():
    assert render(PLAIN_CHAT, enable_thinking=True) == render(PLAIN_CHAT)


def test_template_reasoning_precedes_content():
    assert (
        render(PLAIN_CHAT[-1:])
        == "<|im_start|>assistant\n<think>\nThey repeat.\n</think>\n\nFine.<|im_end|>\n"
    )


def test_template_system_text_and_tools_share_block():
    assert render(PLAIN_CHAT[:2], tools=[WEATHER, CLOCK]) == (
        "<|im_start|>system\nBe brief.\n\n# Tools\n"
        f"{json.dumps(WEATHER)}\n{json.dumps(CLOCK)}\n<|im_end|>\n"
        "<|im_start|>user\nHello<|im_end|>\n"
    )


@pytest.mark.parametrize("empty", [[], None])
def test_template_empty_tools_render_like_none(empty: list[Any] | None):
    assert render(PLAIN_CHAT, tools=empty) == render(PLAIN_CHAT)


def test_template_tool_calls_separated_by_newline():
    assert render(TOOL_CHAT[:2], tools=[CLOCK]).endswith(
        "<|im_start|>assistant\n<think>\nTwo calls.\n</think>\n\n"
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "get_weather", "arguments": '
        '{"city":"Rome"}}\n</tool_call><|im_end|>\n'
    )


def test_template_content_before_tool_call_ends_with_newline():
    call: dict[str, Any] = {"function": {"name": "get_time", "arguments": {}}}
    turn: dict[str, Any] = {"role": "assistant", "content": "One moment.", "tool_calls": [call]}
    assert render([turn]) == (
        "<|im_start|>assistant\nOne moment.\n"
        '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call><|im_end|>\n'
    )


def test_template_content_parts_are_joined():
    parts = [{"type": "text", "text": "Hello, "}, {"type": "text", "text": "you."}]
    assert render([{"role": "user", "content": parts}]) == render(
        [{"role": "user", "content": "Hello, you."}]
    )


@pytest.mark.parametrize("tools", [None, [WEATHER, CLOCK]])
@pytest.mark.parametrize("messages", [PLAIN_CHAT, TOOL_CHAT])
def test_template_conversation_prefix_renders_as_text_prefix(
    messages: list[dict[str, Any]], tools: Any
):
    whole = render(messages, tools=tools)
    for length in range(1, len(messages)):
        assert whole.startswith(render(messages[:length], tools=tools))


def test_template_reply_extends_generation_prompt():
    prompt = render(
        TOOL_CHAT[:1], tools=[WEATHER], add_generation_prompt=True, enable_thinking=True
    )
    assert render(TOOL_CHAT[:2], tools=[WEATHER]).startswith(prompt)
