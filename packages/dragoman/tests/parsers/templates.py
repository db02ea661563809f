"""Response templates as models ship them, by the family whose delimiters they have."""

from __future__ import annotations

import json
from collections.abc import Mapping

Template = dict[str, object]

FUNCTION = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
OR_TEXT = {"name": "json", "args": {"allow_non_json": True}}


def template(anchor: str | list[str], **fields: Template) -> Template:
    return {"defaults": {"role": "assistant"}, "start_anchor": anchor, "fields": fields}


def calls(
    opening: str, closing: str, content: str, args: Template | None = None, **more: object
) -> Template:
    """Build a field of calls whose opening pattern captures the name."""
    field: Template = {
        "open_pattern": opening,
        "close_pattern": closing,
        "repeats": True,
        "content": content,
    }
    return {**field, "content_args": args or {}, "transform": FUNCTION, **more}


THINK: Template = {"open": "<think>", "close_pattern": r"</think>\s*"}
CHATML: Template = {"close_pattern": r"<\|im_end\|>\s*"}
ASSISTANT = "<|im_start|>assistant\n"

QWEN3 = template(
    ASSISTANT,
    reasoning_content=THINK,
    tool_calls={
        "open": "<tool_call>",
        "close_pattern": r"</tool_call>\s*",
        "repeats": True,
        "content": "json",
        "transform": {"type": "function", "function": "{content}"},
    },
    content=CHATML,
)
QWEN3_CODER = template(
    ASSISTANT,
    thinking=THINK,
    tool_calls=calls(
        r"<tool_call>\s*<function=(?P<name>[^\n>]+)>",
        r"</tool_call>\s*",
        "xml-inline",
        {
            "tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</parameter>",
            "value_parser": OR_TEXT,
        },
    ),
    content=CHATML,
)
DEEPSEEK = template(
    "<|Assistant|>",
    reasoning={"open": "<think>", "close": "</think>"},
    tool_calls=calls(
        r'(?:\n\n)?(?:<DSML:calls>\s*)?<DSML:invoke name="(?P<name>[^"]+)">\s*',
        r"\s*</DSML:invoke>\s*(?:</DSML:calls>)?",
        "xml-inline",
        {
            "tag_pattern": r'<DSML:p name="(?P<key>[^"]+)" '
            r'string="(?:true|false)">(?P<value>.*?)</DSML:p>'
        },
    ),
    content={"close": "<|end|>"},
)
GPT_OSS = template(
    "<|start|>assistant",
    thinking={"open": "<|channel|>analysis<|message|>", "close": "<|end|>"},
    content={"open": "<|channel|>final<|message|>", "close": ["<|end|>", "<|return|>"]},
    tool_calls=calls(
        r"<\|channel\|>commentary to=functions\.(?P<name>\w+).*?<\|message\|>",
        r"<\|call\|>\s*",
        "json",
    ),
)
GEMMA = template(
    ["<|turn>model\n", "<tool_response|>"],
    thinking={"open": "<|channel>thought\n", "close": "<channel|>"},
    tool_calls=calls(
        r"<\|tool_call>call:(?P<name>\w+)",
        r"<tool_call\|>\s*",
        "json",
        {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
    ),
    content={"close": ["<turn|>", "<eos>"]},
)
COHERE = template(
    "<|CHATBOT|>",
    content={"open": "<|START_RESPONSE|>", "close": "<|END_RESPONSE|>"},
    thinking={"open": "<|START_THINKING|>", "close": "<|END_THINKING|>"},
    tool_calls={
        "open": "<|START_ACTION|>",
        "close": "<|END_ACTION|>",
        "content": "json",
        "transform_each": True,
        "transform": {"function": {"name": "{tool_name}", "arguments": "{parameters}"}},
    },
)
INKLING = template(
    "<|message|>",
    thinking={
        "open_pattern": r"(?:<\|message\|>)?[^<]*<\|thinking\|>",
        "close": "<|end|>",
        "repeats": True,
        "join": "\n",
        "content_args": {"strip": False},
    },
    tool_calls={
        "open_pattern": r"(?:<\|message\|>)?[^<]*<\|invoke\|>",
        "close": "<|end|>",
        "repeats": True,
        "content": "json",
        "transform": {"function": {"name": "{content.name}", "arguments": "{content.args}"}},
    },
    content={
        "open_pattern": r"(?:<\|message\|>)?[^<]*<\|text\|>",
        "close": "<|end|>",
        "repeats": True,
        "join": "",
    },
)
ERNIE = template(
    "Assistant:",
    thinking={"open_pattern": r"(?:^|<think>\s*)", "close": "</think>"},
    content={"open": "<response>\n", "close_pattern": r"\n?</response>"},
)
LINES = template(
    "Assistant:",
    content={"close_pattern": r"\s*<end>|$"},
    tool_calls=calls(r"\[(?P<name>\w+)\]\n", r"\n\[/call\]", "kv-lines"),
)

TEMPLATES: Mapping[str, tuple[Template, list[str]]] = {
    "qwen3": (
        QWEN3,
        [
            "<think>",
            "</think>",
            '<tool_call>\n{"name": "f", "arguments": {"x": "<"}}\n</tool_call>',
            "<|im_end|>",
        ],
    ),
    "qwen3_coder": (
        QWEN3_CODER,
        [
            "<think>",
            "</think>",
            "<tool_call>\n<function=f>\n<parameter=x>\n1 "
            "<\n</parameter>\n</function>\n</tool_call>",
        ],
    ),
    "deepseek": (
        DEEPSEEK,
        [
            "<think>",
            "</think>",
            '<DSML:invoke name="f"><DSML:p name="x" string="true">1</DSML:p></DSML:invoke>',
            "\n\n<DSML",
        ],
    ),
    "gpt_oss": (
        GPT_OSS,
        [
            *(
                "<|channel|>analysis<|message|>",
                "<|end|>",
                "<|start|>assistant",
                "<|channel|>final<|message|>",
            ),
            '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"x": 1}<|call|>',
        ],
    ),
    "gemma": (
        GEMMA,
        [
            "<|channel>thought\n",
            "<channel|>",
            '<|tool_call>call:f{x:<|"|>a<|"|>}<tool_call|>',
            "<turn|>",
        ],
    ),
    "cohere": (
        COHERE,
        [
            *("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_THINKING|>", "<|END_THINKING|>"),
            '<|START_ACTION|>[{"tool_name": "f", "parameters": {}}, {"tool_name": '
            '"f"}]<|END_ACTION|>',
        ],
    ),
    "inkling": (
        INKLING,
        [
            "<|thinking|>",
            "<|end|>",
            "<|message|>",
            "<|text|>",
            'f<|invoke|>{"name":"f","args":{}}<|end|>',
        ],
    ),
    "ernie": (ERNIE, ["<think>", "</think>", "<response>\n", "\n</response>", "<resp"]),
    "lines": (LINES, ["[f]\nx: 1\n[/call]", "[f]\n", " <end>", "<en"]),
}


def source(spec: Template) -> str:
    return json.dumps(spec)
