"""Tools that checks declare, and the check of a call of one."""

from __future__ import annotations

from typing import Any

from ..dialects import CHAT
from ..parsed_response import ParsedResponse
from ..rules.json_values import JsonObject, require
from .sample_schemas import check_schema

WEATHER: JsonObject = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "unit": {"enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TIME: JsonObject = {
    "type": "object",
    "properties": {},
    "required": [],
    "additionalProperties": False,
}
TOOLS: list[JsonObject] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city",
            "parameters": WEATHER,
            "strict": True,
        },
    },
    {
        "type": "function",
        "function": {
            "name": "get_time",
            "description": "The time now",
            "parameters": TIME,
            "strict": True,
        },
    },
]
NAMED = {"type": "function", "function": {"name": "get_weather"}}
QUESTION = "What is the weather in Rome, in celsius? Use the tool."
CALL_MARKS = (
    "<tool_call",
    "[TOOL_CALLS]",
    "<function=",
    "<|python_tag|>",
    "<|tool_call",
    "<|channel|>",
)
"""Markup of tool calls in common model formats. A tool parser that misses part of a
call leaves it in the text.
"""


def build_tools(**fields: Any) -> JsonObject:
    return {**CHAT.build_request("", QUESTION, 300), "tools": TOOLS, **fields}


def check_call(
    answer: ParsedResponse, name: str = "get_weather", schema: JsonObject = WEATHER
) -> None:
    require(answer.calls, f"no tool call: the text is {answer.text[:80]!r}")
    called_name, arguments = answer.calls[0]
    require(called_name == name, f"the call is of {called_name!r}, not of {name!r}")
    check_schema(arguments, schema)
    leaked = [mark for mark in CALL_MARKS if mark in answer.text]
    require(not leaked, f"the text contains markup of the call {leaked}: {answer.text[:80]!r}")
