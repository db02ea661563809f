"""Requests with several parts of one kind - turns, content parts, tools, calls,
results - in the form of each API.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..rules.json_values import JsonObject

ROLES = ("user", "assistant", "user", "assistant", "user")
QUESTION = "What is the weather?"
Build = Callable[[Sequence[str]], JsonObject]
"""Builds the fields of a request from the texts of its parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeveralParts:
    """Parts of one kind that one request has several of.

    name: of the check.
    noun: what one part is called, for the rule.
    count: number of parts.
    build: see `Build`.
    feature: what a server may reject if it does not claim it; None if it must accept
        the request.
    """

    name: str
    noun: str
    count: int
    build: Build
    feature: str | None = None


def build_messages(texts: Sequence[str]) -> JsonObject:
    return {
        "messages": [
            {"role": role, "content": text} for role, text in zip(ROLES, texts, strict=True)
        ]
    }


def build_same_role(texts: Sequence[str]) -> JsonObject:
    return {"messages": [{"role": "user", "content": text} for text in texts]}


def build_user_parts(texts: Sequence[str]) -> JsonObject:
    return {"messages": [{"role": "user", "content": _build_content("text", texts)}]}


def build_assistant_parts(texts: Sequence[str]) -> JsonObject:
    turn = {"role": "assistant", "content": _build_content("text", texts)}
    return {"messages": [*USER["messages"], turn, *USER["messages"]]}


def build_schema(texts: Sequence[str]) -> JsonObject:
    """Build the schema of a tool with one described parameter per text."""
    names = [f"value_{i}" for i in range(len(texts))]
    return {
        "type": "object",
        "properties": {
            name: {"type": "string", "description": text}
            for name, text in zip(names, texts, strict=True)
        },
        "required": names,
    }


def build_chat_tool(name: str, description: str, schema: JsonObject) -> JsonObject:
    function = {"name": name, "description": description, "parameters": schema}
    return {"type": "function", "function": function}


def build_messages_tool(name: str, description: str, schema: JsonObject) -> JsonObject:
    return {"name": name, "description": description, "input_schema": schema}


def build_responses_tool(name: str, description: str, schema: JsonObject) -> JsonObject:
    return {
        "type": "function",
        "name": name,
        "description": description,
        "parameters": schema,
        "strict": False,
    }


BuildTool = Callable[[str, str, JsonObject], JsonObject]


def list_tool_parts(build_tool: BuildTool, conversation: JsonObject) -> tuple[SeveralParts, ...]:
    """Return the kinds of parts of tool definitions."""

    def build_tools(texts: Sequence[str]) -> JsonObject:
        tools = [
            build_tool(f"tool_{i}", text, build_schema(("A text.",)))
            for i, text in enumerate(texts)
        ]
        return {**conversation, "tools": tools}

    def build_parameters(texts: Sequence[str]) -> JsonObject:
        return {**conversation, "tools": [build_tool("tool_0", "A tool.", build_schema(texts))]}

    return (
        SeveralParts(name="tool", noun="tool", count=3, build=build_tools, feature="tools"),
        SeveralParts(
            name="tool-parameter",
            noun="parameter of a tool",
            count=3,
            build=build_parameters,
            feature="tools",
        ),
    )


def list_call_parts(
    build_turns: Callable[[Sequence[str], Sequence[str]], JsonObject],
) -> tuple[SeveralParts, ...]:
    """Return the kinds of parts of tool calls in the history.

    build_turns: builds a conversation from one argument and one result per call.
    """
    return (
        SeveralParts(
            name="call",
            noun="tool call of a turn",
            count=2,
            build=lambda texts: build_turns(texts, ("Sunny.",) * len(texts)),
            feature="tools",
        ),
        SeveralParts(
            name="result",
            noun="tool result",
            count=2,
            build=lambda texts: build_turns(("Rome",) * len(texts), texts),
            feature="tools",
        ),
    )


def _build_content(kind: str, texts: Sequence[str]) -> list[JsonObject]:
    return [{"type": kind, "text": text} for text in texts]


def _build_chat_turns(arguments: Sequence[str], results: Sequence[object]) -> JsonObject:
    calls = [
        {
            "id": f"call_{i}",
            "type": "function",
            "function": {"name": "tool_0", "arguments": json.dumps({"value_0": text})},
        }
        for i, text in enumerate(arguments)
    ]
    answers = [
        {"role": "tool", "tool_call_id": f"call_{i}", "content": result}
        for i, result in enumerate(results)
    ]
    return {
        "tools": [build_chat_tool("tool_0", "A tool.", build_schema(("A text.",)))],
        "messages": [
            {"role": "user", "content": QUESTION},
            {"role": "assistant", "content": None, "tool_calls": calls},
            *answers,
        ],
    }


def _build_message_turns(arguments: Sequence[str], results: Sequence[object]) -> JsonObject:
    uses = [
        {"type": "tool_use", "id": f"call_{i}", "name": "tool_0", "input": {"value_0": text}}
        for i, text in enumerate(arguments)
    ]
    answers = [
        {"type": "tool_result", "tool_use_id": f"call_{i}", "content": result}
        for i, result in enumerate(results)
    ]
    return {
        "tools": [build_messages_tool("tool_0", "A tool.", build_schema(("A text.",)))],
        "messages": [
            {"role": "user", "content": QUESTION},
            {"role": "assistant", "content": uses},
            {"role": "user", "content": answers},
        ],
    }


def _build_response_turns(arguments: Sequence[str], results: Sequence[object]) -> JsonObject:
    calls = [
        {
            "type": "function_call",
            "call_id": f"call_{i}",
            "name": "tool_0",
            "arguments": json.dumps({"value_0": text}),
        }
        for i, text in enumerate(arguments)
    ]
    outputs = [
        {"type": "function_call_output", "call_id": f"call_{i}", "output": result}
        for i, result in enumerate(results)
    ]
    return {
        "tools": [build_responses_tool("tool_0", "A tool.", build_schema(("A text.",)))],
        "input": [{"role": "user", "content": QUESTION}, *calls, *outputs],
    }


def _build_ollama_turns(arguments: Sequence[str], results: Sequence[object]) -> JsonObject:
    calls = [{"function": {"name": "tool_0", "arguments": {"value_0": t}}} for t in arguments]
    answers = [{"role": "tool", "tool_name": "tool_0", "content": result} for result in results]
    return {
        "tools": [build_chat_tool("tool_0", "A tool.", build_schema(("A text.",)))],
        "messages": [
            {"role": "user", "content": QUESTION},
            {"role": "assistant", "content": "", "tool_calls": calls},
            *answers,
        ],
    }


USER = {"messages": [{"role": "user", "content": QUESTION}]}
CHAT = (
    SeveralParts(name="turn", noun="turn", count=5, build=build_messages),
    SeveralParts(
        name="message",
        noun="message of one role",
        count=3,
        build=build_same_role,
        feature="consecutive messages of one role",
    ),
    SeveralParts(
        name="part",
        noun="text part of a user's message",
        count=3,
        build=build_user_parts,
    ),
    SeveralParts(
        name="system-part",
        noun="text part of a system message",
        count=2,
        build=lambda texts: {
            "messages": [
                {"role": "system", "content": _build_content("text", texts)},
                *USER["messages"],
            ]
        },
        feature="parts of system messages",
    ),
    SeveralParts(
        name="assistant-part",
        noun="text part of an assistant's message",
        count=2,
        build=build_assistant_parts,
        feature="parts of assistant messages",
    ),
    *list_tool_parts(build_chat_tool, USER),
    *list_call_parts(_build_chat_turns),
    SeveralParts(
        name="result-part",
        noun="text part of a tool result",
        count=2,
        build=lambda texts: _build_chat_turns(("Rome",), (_build_content("text", texts),)),
        feature="parts of tool results",
    ),
)
MESSAGES = (
    SeveralParts(name="turn", noun="turn", count=5, build=build_messages),
    SeveralParts(
        name="message",
        noun="message of one role",
        count=3,
        build=build_same_role,
    ),
    SeveralParts(
        name="part",
        noun="text block of a user's message",
        count=3,
        build=build_user_parts,
    ),
    SeveralParts(
        name="system-part",
        noun="block of `system`",
        count=3,
        build=lambda texts: {**USER, "system": _build_content("text", texts)},
    ),
    SeveralParts(
        name="assistant-part",
        noun="text block of an assistant's message",
        count=2,
        build=build_assistant_parts,
    ),
    *list_tool_parts(build_messages_tool, USER),
    *list_call_parts(_build_message_turns),
    SeveralParts(
        name="result-part",
        noun="block of a tool result",
        count=2,
        build=lambda texts: _build_message_turns(("Rome",), (_build_content("text", texts),)),
        feature="tools",
    ),
)
RESPONSES = (
    SeveralParts(
        name="turn",
        noun="input item",
        count=5,
        build=lambda texts: {"input": build_messages(texts)["messages"]},
    ),
    SeveralParts(
        name="message",
        noun="message of one role",
        count=3,
        build=lambda texts: {"input": [{"role": "user", "content": text} for text in texts]},
        feature="consecutive messages of one role",
    ),
    SeveralParts(
        name="part",
        noun="text part of a user's message",
        count=3,
        build=lambda texts: {
            "input": [{"role": "user", "content": _build_content("input_text", texts)}]
        },
    ),
    SeveralParts(
        name="instruction",
        noun="`instructions`, a developer message",
        count=2,
        build=lambda texts: {
            "instructions": texts[0],
            "input": [{"role": "developer", "content": texts[1]}, *USER["messages"]],
        },
        feature="a developer message after instructions",
    ),
    SeveralParts(
        name="assistant-part",
        noun="`output_text` part of an assistant's message",
        count=2,
        build=lambda texts: {
            "input": [
                *USER["messages"],
                {
                    "type": "message",
                    "id": "msg_1",
                    "status": "completed",
                    "role": "assistant",
                    "content": [
                        {**part, "annotations": []} for part in _build_content("output_text", texts)
                    ],
                },
                *USER["messages"],
            ]
        },
    ),
    *list_tool_parts(build_responses_tool, {"input": QUESTION}),
    *list_call_parts(_build_response_turns),
    SeveralParts(
        name="result-part",
        noun="part of a function call's output",
        count=2,
        build=lambda texts: _build_response_turns(
            ("Rome",), (_build_content("input_text", texts),)
        ),
        feature="tools",
    ),
)
OLLAMA_CHAT = (
    SeveralParts(name="turn", noun="turn", count=5, build=build_messages),
    SeveralParts(
        name="system",
        noun="a system message, a user message",
        count=2,
        build=lambda texts: {
            "messages": [
                {"role": "system", "content": texts[0]},
                {"role": "user", "content": texts[1]},
            ]
        },
    ),
    *list_tool_parts(build_chat_tool, USER),
    *list_call_parts(_build_ollama_turns),
)
OLLAMA_GENERATE = (
    SeveralParts(
        name="field",
        noun="`system`, `prompt`",
        count=2,
        build=lambda texts: {"system": texts[0], "prompt": texts[1]},
    ),
)
COMPLETIONS = (
    SeveralParts(
        name="prompt",
        noun="prompt of a list",
        count=3,
        build=lambda texts: {"prompt": list(texts)},
        feature="a list of prompts",
    ),
)
OF_DIALECT = {
    "chat": CHAT,
    "completions": COMPLETIONS,
    "responses": RESPONSES,
    "messages": MESSAGES,
    "ollama-chat": OLLAMA_CHAT,
    "ollama-generate": OLLAMA_GENERATE,
}
"""API -> the kinds of parts of which its requests have several."""
