"""Checks that every part of a conversation reaches the prompt: instructions, turns,
tool results, content parts.

They apply to each chat API, since each has its own format for these parts.
"""

from __future__ import annotations

from ..check_exceptions import Skipped
from ..dialects import Dialect
from ..parsed_response import ParsedResponse
from ..rules.json_values import JsonObject, require
from ..session import Session
from . import messages, ollama, responses, sample_tools
from .generation import on_every_dialect

ID = "call_1"
SYSTEM = "Answer in one short sentence, as a friend of the family would."
PARTS = {"chat": "text", "messages": "text", "responses": "input_text"}
"""API -> the type of its text parts."""
TOOLS = {
    "chat": sample_tools.TOOLS,
    "messages": messages.TOOLS,
    "ollama-chat": ollama.TOOLS,
    "responses": responses.TOOLS,
}


def build_turns(name: str, result: str) -> list[JsonObject]:
    """Build a question, a tool call and its result in the form of this API."""
    question: JsonObject = {"role": "user", "content": "What is the weather in Rome?"}
    arguments = {"city": "Rome", "unit": "celsius"}
    arguments_json = '{"city": "Rome", "unit": "celsius"}'
    match name:
        case "responses":
            call = {
                "type": "function_call",
                "call_id": ID,
                "name": "get_weather",
                "arguments": arguments_json,
            }
            return [
                question,
                call,
                {"type": "function_call_output", "call_id": ID, "output": result},
            ]
        case "messages":
            use = {"type": "tool_use", "id": ID, "name": "get_weather", "input": arguments}
            answer = {"type": "tool_result", "tool_use_id": ID, "content": result}
            return [
                question,
                {"role": "assistant", "content": [use]},
                {"role": "user", "content": [answer]},
            ]
        case "ollama-chat":
            call = {"function": {"name": "get_weather", "arguments": arguments}}
            turn = {"role": "assistant", "content": "", "tool_calls": [call]}
            return [question, turn, {"role": "tool", "tool_name": "get_weather", "content": result}]
        case _:
            call = {
                "id": ID,
                "type": "function",
                "function": {"name": "get_weather", "arguments": arguments_json},
            }
            turn = {"role": "assistant", "content": None, "tool_calls": [call]}
            return [question, turn, {"role": "tool", "tool_call_id": ID, "content": result}]


def require_prompt_tokens(answer: ParsedResponse) -> int:
    """Return the number of prompt tokens. Raises Skipped if there is none: other checks
    require the usage.
    """
    if answer.prompt_tokens is None:
        raise Skipped("the response has no prompt token count")
    return answer.prompt_tokens


@on_every_dialect("Tool results are part of the prompt.", only=lambda d: d.name in TOOLS)
async def tool_result_counts(s: Session, d: Dialect) -> None:
    counts: list[int] = []
    for words in (1, 31):
        body = d.build_request(s.model, "", 16)
        body[d.prompt] = build_turns(d.name, "apple " * words)
        reply = (await s.request(d.path, {**body, "tools": TOOLS[d.name]}, feature="tools")).json()
        counts.append(require_prompt_tokens(d.read(reply)))
    # A chat template without a tool role omits the results.
    require(
        counts[1] > counts[0] + 20, f"prompt tokens with 1 and 31 words in the result: {counts}"
    )


def add_system(name: str, body: JsonObject) -> None:
    match name:
        case "responses":
            body["instructions"] = SYSTEM
        case "messages":
            body["system"] = SYSTEM
        case _:
            body["messages"].insert(0, {"role": "system", "content": SYSTEM})


@on_every_dialect(
    "A conversation with instructions, tools and tool results has the same prompt token "
    "count with and without `stream`.",
    only=lambda d: d.name in TOOLS,
)
async def stream_of_history(s: Session, d: Dialect) -> None:
    body = d.build_request(s.model, "", 16)
    body[d.prompt] = build_turns(d.name, "It is sunny.")
    add_system(d.name, body)
    body["tools"] = TOOLS[d.name]
    expected = require_prompt_tokens(
        d.read((await s.request(d.path, body, feature="tools")).json())
    )
    # No `feature`: a request that succeeds without streaming must not be rejected with
    # it.
    streamed = await s.request(d.path, {**body, "stream": True, **d.stream_options})
    tokens = d.fold(streamed.body).prompt_tokens
    require(
        tokens == expected,
        f"{tokens} prompt tokens with stream, {expected} without",
    )


@on_every_dialect(
    "All text parts of a message are part of the prompt.", only=lambda d: d.name in PARTS
)
async def parts_count(s: Session, d: Dialect) -> None:
    counts: list[int] = []
    for words in (1, 31):
        parts = [
            {"type": PARTS[d.name], "text": text} for text in ("Name a colour.", "apple " * words)
        ]
        body = d.build_request(s.model, "", 16, **{d.prompt: [{"role": "user", "content": parts}]})
        counts.append(require_prompt_tokens(d.read((await s.request(d.path, body)).json())))
    require(
        counts[1] > counts[0] + 20,
        f"prompt tokens with 1 and 31 words in the second part: {counts}",
    )
