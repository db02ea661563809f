"""Requests of Gemini's API with several of each kind of part."""

from __future__ import annotations

from collections.abc import Sequence

from ..rules.json_values import JsonObject
from .several_parts import QUESTION, ROLES, SeveralParts, build_schema, list_call_parts


def _build_gemini_turns(arguments: Sequence[str], results: Sequence[object]) -> JsonObject:
    calls = [{"functionCall": {"name": "tool_0", "args": {"value_0": t}}} for t in arguments]
    answers = [
        {"functionResponse": {"name": "tool_0", "response": {"output": result}}}
        for result in results
    ]
    return {
        **_build_declarations([("tool_0", "A tool.", build_schema(("A text.",)))]),
        "contents": [
            {"role": "user", "parts": [{"text": QUESTION}]},
            {"role": "model", "parts": calls},
            {"role": "user", "parts": answers},
        ],
    }


def _build_declarations(tools: Sequence[tuple[str, str, JsonObject]]) -> JsonObject:
    declarations = [
        {"name": name, "description": description, "parametersJsonSchema": schema}
        for name, description, schema in tools
    ]
    # The last one in a tool of its own: both lists may have several entries.
    lists = [declarations[:-1], declarations[-1:]] if len(declarations) > 1 else [declarations]
    return {"tools": [{"functionDeclarations": functions} for functions in lists]}


_USER = {"contents": [{"role": "user", "parts": [{"text": QUESTION}]}]}
GEMINI_PARTS = (
    SeveralParts(
        name="turn",
        noun="turn",
        count=5,
        build=lambda texts: {
            "contents": [
                {"role": "model" if role == "assistant" else role, "parts": [{"text": text}]}
                for role, text in zip(ROLES, texts, strict=True)
            ]
        },
    ),
    SeveralParts(
        name="part",
        noun="part of a turn",
        count=3,
        build=lambda texts: {
            "contents": [{"role": "user", "parts": [{"text": text} for text in texts]}]
        },
    ),
    SeveralParts(
        name="system-part",
        noun="part of `systemInstruction`",
        count=2,
        build=lambda texts: {
            **_USER,
            "systemInstruction": {"parts": [{"text": text} for text in texts]},
        },
    ),
    SeveralParts(
        name="tool",
        noun="function declaration",
        count=3,
        build=lambda texts: {
            **_USER,
            **_build_declarations(
                [(f"tool_{i}", t, build_schema(("A text.",))) for i, t in enumerate(texts)]
            ),
        },
        feature="tools",
    ),
    SeveralParts(
        name="tool-parameter",
        noun="parameter of a function",
        count=3,
        build=lambda texts: {
            **_USER,
            **_build_declarations([("tool_0", "A tool.", build_schema(texts))]),
        },
        feature="tools",
    ),
    *list_call_parts(_build_gemini_turns),
)
