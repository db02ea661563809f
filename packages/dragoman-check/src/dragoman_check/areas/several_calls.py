"""Checks of answers whose content the request decides: calls of each of several tools,
several calls, text beyond ASCII.

A forced tool or a schema with a single value leaves the model no choice, so the whole
answer is known.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ..check_exceptions import Skipped
from ..dialects import CHAT, MESSAGES, OLLAMA_CHAT, RESPONSES, Dialect
from ..json_objects import get_objects
from ..parsed_response import ParsedResponse, read_chat
from ..rules.json_values import JsonObject, require
from ..session import Session
from .chat_structured_output import build_schema
from .generation import AREAS, request_stream
from .generation import bind as bind_dialect
from .sample_tools import WEATHER
from .several_parts import build_chat_tool, build_messages_tool, build_responses_tool

TEXT = "über 日本語 \U0001f468‍\U0001f469‍\U0001f467 e\u0301 \u200fعربي"
CITIES = "What is the weather in Rome, in Oslo and in Cairo? Call the tool once for each city."
KEYS = ("red", "green", "blue")


def build_value_schema(value: str) -> JsonObject:
    return {
        "type": "object",
        "properties": {"value": {"type": "string", "enum": [value]}},
        "required": ["value"],
        "additionalProperties": False,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Tooling:
    """How one API takes tools.

    build_tool: builds a tool from name, description and schema.
    build_choice: the fields that force a call of the tool of this name.
    any_tool: the fields that force a call of any tool; empty if the API has none.
    one_call: the fields that allow one call at most; None if the API has none.
    """

    dialect: Dialect
    build_tool: Callable[[str, str, JsonObject], JsonObject]
    build_choice: Callable[[str], JsonObject] | None = None
    any_tool: JsonObject
    one_call: JsonObject | None = None

    def build_request(self, s: Session, prompt: str, limit: int = 100) -> JsonObject:
        return self.dialect.build_request(s.model, prompt, limit)


def build_strict_tool(name: str, description: str, schema: JsonObject) -> JsonObject:
    tool = build_chat_tool(name, description, schema)
    return {**tool, "function": {**tool["function"], "strict": True}}


TOOLINGS = (
    Tooling(
        dialect=CHAT,
        build_tool=build_strict_tool,
        build_choice=lambda name: {"tool_choice": {"type": "function", "function": {"name": name}}},
        any_tool={"tool_choice": "required"},
        one_call={"parallel_tool_calls": False},
    ),
    Tooling(
        dialect=RESPONSES,
        build_tool=lambda name, text, schema: {
            **build_responses_tool(name, text, schema),
            "strict": True,
        },
        build_choice=lambda name: {"tool_choice": {"type": "function", "name": name}},
        any_tool={"tool_choice": "required"},
        one_call={"parallel_tool_calls": False},
    ),
    Tooling(
        dialect=MESSAGES,
        build_tool=lambda name, text, schema: {
            **build_messages_tool(name, text, schema),
            "strict": True,
        },
        build_choice=lambda name: {"tool_choice": {"type": "tool", "name": name}},
        any_tool={"tool_choice": {"type": "any"}},
        one_call={"tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
    ),
    Tooling(dialect=OLLAMA_CHAT, build_tool=build_chat_tool, any_tool={}),
)


async def check_each_choice(s: Session, tooling: Tooling) -> None:
    """Force each tool in turn: its schema allows one value, so the call is known."""
    assert tooling.build_choice is not None
    d = tooling.dialect
    tools = [tooling.build_tool(f"pick_{k}", f"Pick {k}.", build_value_schema(k)) for k in KEYS]
    body = {**tooling.build_request(s, "Pick a colour."), "tools": tools}
    for key in KEYS:
        forced = {**body, **tooling.build_choice(f"pick_{key}")}
        exchange = await s.request(d.path, forced, feature="forced tools")
        streamed = await s.request(d.path, {**forced, "stream": True, **d.stream_options})
        for answer in (d.read(exchange.json()), d.fold(streamed.body)):
            if answer.reason == "length" and not answer.text:
                raise Skipped("cannot tell: the limit truncated the reasoning or the call")
            calls = [(name, json.loads(text)) for name, text in answer.calls]
            require(
                calls == [(f"pick_{key}", {"value": key})],
                f"the forced tool is pick_{key}, the calls are {answer.calls}",
            )


def build_calls_request(s: Session, tooling: Tooling) -> JsonObject:
    tool = tooling.build_tool("get_weather", "Weather of a city", WEATHER)
    return {**tooling.build_request(s, CITIES, 300), "tools": [tool], **tooling.any_tool}


async def share_calls(s: Session, tooling: Tooling) -> tuple[JsonObject, ParsedResponse]:
    """Return an answer with several calls. Raises Skipped if there is one call only."""
    d = tooling.dialect

    async def request() -> tuple[JsonObject, ParsedResponse]:
        feature = "forced tools" if tooling.any_tool else "tools"
        exchange = await s.request(d.path, build_calls_request(s, tooling), feature=feature)
        answer = d.read(exchange.json())
        if len(answer.calls) < 2:
            raise Skipped("cannot tell: asked for three calls, the model makes fewer than two")
        if answer.reason == "length":
            raise Skipped("cannot tell: the limit truncated the last call")
        return exchange.json(), answer

    return await s.share(f"{d.name}.calls", request)


def list_call_ids(reply: JsonObject) -> list[object]:
    """Return the ids by which the results refer to the calls, of any API."""
    messages = [choice["message"] for choice in get_objects(reply, "choices")]
    calls = [call for message in messages for call in get_objects(message, "tool_calls")]
    blocks = [b for b in get_objects(reply, "content") if b.get("type") == "tool_use"]
    items = [i for i in get_objects(reply, "output") if i.get("type") == "function_call"]
    return [*(c.get("id") for c in (*calls, *blocks)), *(i.get("call_id") for i in items)]


async def has_valid_streams(s: Session, d: Dialect) -> bool:
    """Whether a stream of text is valid: if not, another check reports it."""
    try:
        d.check_stream((await request_stream(s, d)).body)
    except (AssertionError, LookupError, TypeError, ValueError):
        return False
    return True


async def check_several_calls(s: Session, tooling: Tooling) -> None:
    d = tooling.dialect
    reply, answer = await share_calls(s, tooling)
    ids = list_call_ids(reply)
    require(len(set(map(str, ids))) == len(ids), f"the ids of the calls are {ids}")
    body = {**build_calls_request(s, tooling), "stream": True, **d.stream_options}
    exchange = await s.request(d.path, body)
    if await has_valid_streams(s, d):
        d.check_stream(exchange.body)
    streamed = d.fold(exchange.body)
    again = d.read((await s.request(d.path, build_calls_request(s, tooling))).json())
    # A server that is not deterministic may make other calls each time.
    require(
        streamed.calls == answer.calls or again.calls != answer.calls,
        f"stream: {streamed.calls}, non-streamed: {answer.calls}",
    )


async def check_one_call(s: Session, tooling: Tooling) -> None:
    assert tooling.one_call is not None
    d = tooling.dialect
    await share_calls(s, tooling)
    body = {**build_calls_request(s, tooling), **tooling.one_call}
    exchange = await s.request(d.path, body, feature="a limit of one call")
    streamed = await s.request(d.path, {**body, "stream": True, **d.stream_options})
    for answer in (d.read(exchange.json()), d.fold(streamed.body)):
        require(len(answer.calls) == 1, f"{len(answer.calls)} calls: {answer.calls}")


def bind(
    run: Callable[[Session, Tooling], Awaitable[None]], tooling: Tooling
) -> Callable[[Session], Awaitable[None]]:
    return lambda session: run(session, tooling)


def add_tools() -> None:
    for tooling in TOOLINGS:
        area = AREAS[tooling.dialect.name]
        if tooling.build_choice is not None:
            area.add(
                "each-tool-choice",
                "A forced call of each of several tools has its name and matches its schema.",
                bind(check_each_choice, tooling),
            )
        area.add(
            "several-calls",
            "Several calls of one answer have ids and indices of their own, and are the "
            "same in a stream.",
            bind(check_several_calls, tooling),
        )
        if tooling.one_call is not None:
            area.add(
                "one-call",
                "`parallel_tool_calls: false` (Messages: `disable_parallel_tool_use`) allows one "
                "call.",
                bind(check_one_call, tooling),
            )


add_tools()
TEXT_SCHEMA = build_value_schema(TEXT)


def build_formats() -> dict[str, JsonObject]:
    """Return API -> the fields that demand an answer of the schema `TEXT_SCHEMA`."""
    text_format = {"type": "json_schema", "name": "a", "schema": TEXT_SCHEMA, "strict": True}
    return {
        "chat": {"response_format": build_schema(TEXT_SCHEMA)},
        "responses": {"text": {"format": text_format}},
        "messages": {"output_config": {"format": {"type": "json_schema", "schema": TEXT_SCHEMA}}},
        "ollama-chat": {"format": TEXT_SCHEMA},
        "ollama-generate": {"format": TEXT_SCHEMA},
    }


async def check_unicode(s: Session, d: Dialect) -> None:
    """Demand an answer with one possible text: some of its characters are several
    tokens, which a server may split, replace or normalize.
    """
    body = {**d.build_request(s.model, "Repeat the text.", 200), **build_formats()[d.name]}
    exchange = await s.request(d.path, body, feature="json_schema")
    streamed = await s.request(d.path, {**body, "stream": True, **d.stream_options})
    for answer in (d.read(exchange.json()), d.fold(streamed.body)):
        if answer.reason == "length":
            raise Skipped(f"cannot tell: the limit truncated {answer.text!r}")
        try:
            value = json.loads(answer.text)["value"]
        except (ValueError, LookupError, TypeError):
            raise Skipped(f"cannot tell: the schema is not enforced: {answer.text!r}") from None
        require(value == TEXT, f"the only possible text is {TEXT!r}, the answer is {value!r}")


def add_unicode() -> None:
    for d in (CHAT, RESPONSES, MESSAGES, OLLAMA_CHAT):
        AREAS[d.name].add(
            "unicode-answer",
            "Text beyond ASCII that a schema demands is unchanged, also in a stream.",
            bind_dialect(check_unicode, d),
        )


add_unicode()


@AREAS["chat"].check("The bytes of the logprobs of text beyond ASCII add up to the text.")
async def unicode_logprobs(s: Session) -> None:
    body = {
        **CHAT.build_request(s.model, "Repeat the text.", 200, logprobs=True),
        **build_formats()["chat"],
    }
    reply = (await s.request(CHAT.path, body, feature="json_schema with logprobs")).json()
    entries = get_objects(reply["choices"][0].get("logprobs") or {}, "content")
    if not entries or any(entry.get("bytes") is None for entry in entries):
        raise Skipped("the logprobs have no bytes")
    joined = b"".join(bytes(entry["bytes"]) for entry in entries)
    text = read_chat(reply).text
    # Tokens of reasoning may come before those of the text.
    require(text.encode() in joined, f"the bytes are {joined!r}, the text is {text!r}")
