"""Checks of Responses: the response object, stream events, items, tools."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from ..check_catalog import Level
from ..check_exceptions import Skipped
from ..dialects import RESPONSES
from ..error_bodies import check_error_basics
from ..json_objects import get_objects
from ..parsed_response import read_response
from ..rules.json_values import JsonObject, require
from ..rules.responses import RESPONSE_FIELDS
from ..session import Session
from ..sse import parse_chunks, parse_sse
from .chat import is_seconds
from .generation import AREAS, STORY, request_stream, request_unstreamed
from .sample_schemas import PERSON, check_schema
from .sample_tools import TIME, WEATHER, check_call

AREA = AREAS["responses"]
PATH = RESPONSES.path
OPEN_RESPONSES = "https://www.openresponses.org/specification"
TOOLS: list[JsonObject] = [
    {
        "type": "function",
        "name": "get_weather",
        "description": "Weather",
        "parameters": WEATHER,
        "strict": True,
    },
    {
        "type": "function",
        "name": "get_time",
        "description": "Time",
        "parameters": TIME,
        "strict": True,
    },
]
NAMED = {"type": "function", "name": "get_weather"}
QUESTION = "What is the weather in Rome, in celsius? Use the tool."


async def request_response(s: Session, feature: str | None = None, /, **fields: Any) -> JsonObject:
    body = {**RESPONSES.build_request(s.model, STORY, 24), **fields}
    return (await s.request(PATH, body, feature=feature)).json()


Predicate = Callable[[JsonObject], object]
FIELDS: tuple[tuple[str, str, Predicate, Level], ...] = (
    ("object", "`object` is `response`.", lambda r: r["object"] == "response", "must"),
    (
        "created-at",
        "`created_at` is a Unix time in seconds.",
        lambda r: is_seconds(int(r["created_at"])),
        "must",
    ),
    (
        "status",
        "`status` is `completed` or `incomplete`.",
        lambda r: r["status"] in ("completed", "incomplete"),
        "must",
    ),
    (
        "error",
        "`error` is `null` in a response that did not fail.",
        lambda r: r["error"] is None,
        "must",
    ),
    (
        "item-id",
        "Every output item has an `id`.",
        lambda r: all(item["id"] for item in r["output"]),
        "must",
    ),
    (
        "item-status",
        "Every output message has a `status`.",
        lambda r: all(i.get("status") for i in r["output"] if i["type"] == "message"),
        "must",
    ),
    (
        "role",
        "The `role` of every output message is `assistant`.",
        lambda r: all(i["role"] == "assistant" for i in r["output"] if i["type"] == "message"),
        "must",
    ),
    (
        "annotations",
        "Every output text part has a list of `annotations`.",
        lambda r: all(
            isinstance(p["annotations"], list)
            for i in r["output"]
            if i["type"] == "message"
            for p in i["content"]
        ),
        "must",
    ),
    (
        "total-tokens",
        "`total_tokens` is the sum of `input_tokens` and `output_tokens`.",
        lambda r: (
            r["usage"]["total_tokens"] == r["usage"]["input_tokens"] + r["usage"]["output_tokens"]
        ),
        "must",
    ),
    (
        "cached-tokens",
        "`cached_tokens` is present, and does not exceed `input_tokens`.",
        lambda r: (
            0 <= r["usage"]["input_tokens_details"]["cached_tokens"] <= r["usage"]["input_tokens"]
        ),
        "must",
    ),
    (
        "reasoning-tokens",
        "`reasoning_tokens` is present, and does not exceed `output_tokens`.",
        lambda r: (
            0
            <= r["usage"]["output_tokens_details"]["reasoning_tokens"]
            <= r["usage"]["output_tokens"]
        ),
        "must",
    ),
    (
        "tools",
        "`tools` is a list and `tool_choice` is present, also without tools.",
        lambda r: isinstance(r["tools"], list) and r["tool_choice"],
        "must",
    ),
    (
        "parallel",
        "`parallel_tool_calls` is a boolean.",
        lambda r: isinstance(r["parallel_tool_calls"], bool),
        "must",
    ),
    (
        "all-fields",
        "All fields that Open Responses requires are present, possibly `null`.",
        lambda r: tuple(r) >= RESPONSE_FIELDS or set(RESPONSE_FIELDS) <= set(r),
        "should",
    ),
)


def add_fields() -> None:
    def build(predicate: Predicate, rule: str) -> Callable[[Session], Awaitable[None]]:
        async def run(s: Session) -> None:
            reply = (await request_unstreamed(s, RESPONSES)).json()
            require(predicate(reply), f"rule violated: {rule} The response is {str(reply)[:600]}")

        return run

    for name, rule, predicate, level in FIELDS:
        AREA.add(f"field-{name}", rule, build(predicate, rule), level=level)


add_fields()


async def get_events(s: Session) -> list[JsonObject]:
    return parse_chunks((await request_stream(s, RESPONSES)).body)


@AREA.check("`sequence_number` counts the events from 0.")
async def stream_sequence(s: Session) -> None:
    numbers = [event.get("sequence_number") for event in await get_events(s)]
    require(numbers == list(range(len(numbers))), f"the sequence numbers are {numbers}")


@AREA.check(
    "The first event is `response.created`; the last is `response.completed` or "
    "`response.incomplete`."
)
async def stream_ends(s: Session) -> None:
    kinds = [event["type"] for event in await get_events(s)]
    require(kinds[0] == "response.created", f"the first event is {kinds[0]}")
    require(
        kinds[-1] in ("response.completed", "response.incomplete"), f"the last event is {kinds[-1]}"
    )


@AREA.check("The SSE event name equals the `type` of the event.")
async def stream_names(s: Session) -> None:
    events = [
        event
        for event in parse_sse((await request_stream(s, RESPONSES)).body)
        if event.data != "[DONE]"
    ]
    wrong = [event for event in events if event.name != json.loads(event.data)["type"]]
    require(not wrong, f"events whose name differs from their type: {wrong[:2]}")


@AREA.check("All events of a response have the same response id.")
async def stream_id(s: Session) -> None:
    ids = {event["response"]["id"] for event in await get_events(s) if "response" in event}
    require(len(ids) == 1, f"the response ids are {sorted(ids)}")


@AREA.check(
    "An item has the same id in `output_item.added`, its deltas, `output_item.done` and "
    "the final response."
)
async def stream_item_ids(s: Session) -> None:
    events = await get_events(s)
    added = [
        event["item"]["id"] for event in events if event["type"] == "response.output_item.added"
    ]
    done = [event["item"]["id"] for event in events if event["type"] == "response.output_item.done"]
    final = [item["id"] for item in events[-1]["response"]["output"]]
    require(
        added == done == final,
        f"ids in added: {added}, in done: {done}, in the final response: {final}",
    )
    deltas = {event["item_id"] for event in events if event["type"].endswith(".delta")}
    require(deltas <= set(added), f"deltas of {deltas}, but added were {added}")


@AREA.check("`output` of the final response equals the items of the `output_item.done` events.")
async def stream_final_output(s: Session) -> None:
    events = await get_events(s)
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    require(
        events[-1]["response"]["output"] == done,
        "output differs from the items of output_item.done",
    )


@AREA.check("The text of `output_text.done` equals its concatenated deltas.")
async def stream_text_done(s: Session) -> None:
    events = await get_events(s)
    deltas = "".join(
        event["delta"] for event in events if event["type"] == "response.output_text.delta"
    )
    done = "".join(
        event["text"] for event in events if event["type"] == "response.output_text.done"
    )
    require(done == deltas, f"done: {done!r}, deltas: {deltas!r}")


@AREA.check(
    "Text deltas have a list of `logprobs`, possibly empty: strict clients require it.",
    level="should",
)
async def stream_logprobs(s: Session) -> None:
    deltas = [
        event for event in await get_events(s) if event["type"] == "response.output_text.delta"
    ]
    require(
        deltas and all(isinstance(event.get("logprobs"), list) for event in deltas),
        f"the first delta is {deltas[:1]}",
    )


@AREA.check("No event has a vendor-specific type: strict clients fail on it.")
async def stream_types(s: Session) -> None:
    kinds = {event["type"] for event in await get_events(s)}
    unknown_kinds = [kind for kind in kinds if kind != "error" and not kind.startswith("response.")]
    require(not unknown_kinds, f"the vendor-specific types are {unknown_kinds}")


@AREA.check(
    "A response that is truncated by the token limit is `incomplete` with the reason "
    "`max_output_tokens`."
)
async def incomplete(s: Session) -> None:
    # 16 is the API's minimum of `max_output_tokens`.
    reply = await request_response(s, max_output_tokens=16)
    if reply["status"] == "completed":
        raise Skipped("the response is complete within 16 tokens")
    require(reply["status"] == "incomplete", f"status is {reply['status']!r}")
    require(
        reply["incomplete_details"] == {"reason": "max_output_tokens"},
        f"incomplete_details is {reply['incomplete_details']}",
    )


def add_echoes() -> None:
    values: tuple[tuple[str, Any], ...] = (
        ("temperature", 0.5),
        ("top_p", 0.9),
        ("metadata", {"topic": "demo"}),
        ("instructions", "Be brief."),
        ("max_output_tokens", 33),
        ("parallel_tool_calls", False),
        ("truncation", "auto"),
    )

    def build(name: str, value: Any) -> Callable[[Session], Awaitable[None]]:
        async def run(s: Session) -> None:
            reply = await request_response(s, name, **{name: value})
            require(reply[name] == value, f"{name} is {reply[name]!r}, sent was {value!r}")

        return run

    for name, value in values:
        AREA.add(
            f"echoes-{name.replace('_', '-')}",
            f"The response echoes `{name}` unchanged.",
            build(name, value),
        )


add_echoes()
CALL: JsonObject = {
    "type": "function_call",
    "call_id": "call_1",
    "name": "get_time",
    "arguments": "{}",
}
INPUTS: tuple[tuple[str, str, list[JsonObject]], ...] = (
    ("easy", "A message without `type` is accepted.", [{"role": "user", "content": "Hi"}]),
    (
        "parts",
        "`content` may be a list of `input_text` parts.",
        [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
    ),
    (
        "developer",
        "A `developer` message is accepted.",
        [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
    ),
    (
        "assistant",
        "An output message of an earlier response is accepted as input.",
        [
            {"role": "user", "content": "Hi"},
            {
                "type": "message",
                "id": "msg_1",
                "status": "completed",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "Hello", "annotations": []}],
            },
            {"role": "user", "content": "Go on"},
        ],
    ),
    (
        "call",
        "A function call and its output are accepted without `id` and `status`.",
        [
            {"role": "user", "content": "Hi"},
            CALL,
            {"type": "function_call_output", "call_id": "call_1", "output": "12:00"},
        ],
    ),
    (
        "call-output-parts",
        "The output of a function call may be a list of parts.",
        [
            {"role": "user", "content": "Hi"},
            CALL,
            {
                "type": "function_call_output",
                "call_id": "call_1",
                "output": [{"type": "input_text", "text": "12:00"}],
            },
        ],
    ),
    (
        "reasoning",
        "A reasoning item with `content: null` is accepted: Codex sends it.",
        [
            {"role": "user", "content": "Hi"},
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [],
                "content": None,
                "encrypted_content": None,
            },
            {"role": "user", "content": "Go on"},
        ],
    ),
)


def add_inputs() -> None:
    def build(items: list[JsonObject]) -> Callable[[Session], Awaitable[None]]:
        async def run(s: Session) -> None:
            fields: JsonObject = (
                {"tools": TOOLS}
                if any(item.get("type") == "function_call" for item in items)
                else {}
            )
            reply = await request_response(s, input=items, **fields)
            require(
                reply["status"] in ("completed", "incomplete"),
                f"status is {reply['status']}: {reply.get('error')}",
            )

        return run

    for name, rule, items in INPUTS:
        AREA.add(f"accepts-{name}-input", rule, build(items))


add_inputs()


@AREA.check("`instructions` are part of the prompt.")
async def instructions_count(s: Session) -> None:
    # The token count shows it; whether the model follows the instructions does not.
    counts = [
        (await request_response(s, instructions="apple " * words))["usage"]["input_tokens"]
        for words in (1, 31)
    ]
    require(counts[1] > counts[0] + 20, f"input tokens with 1 and 31 words: {counts}")


async def request_call(s: Session) -> JsonObject:
    async def call() -> JsonObject:
        return await request_response(
            s, "forced tools", input=QUESTION, tools=TOOLS, tool_choice=NAMED, max_output_tokens=300
        )

    return await s.share("responses.call", call)


@AREA.check("A `tool_choice` that names a tool returns a call whose arguments match the schema.")
async def tool_named(s: Session) -> None:
    check_call(read_response(await request_call(s)))


@AREA.check("`tool_choice: required` returns a call of a declared tool.")
async def tool_required(s: Session) -> None:
    reply = await request_response(
        s,
        "forced tools",
        input=QUESTION,
        tools=TOOLS,
        tool_choice="required",
        max_output_tokens=300,
    )
    answer = read_response(reply)
    require(answer.calls, f"no function call in {str(reply['output'])[:300]}")
    require(
        all(name in ("get_weather", "get_time") for name, _ in answer.calls),
        f"the calls are {answer.calls}",
    )


@AREA.check("A function call has a `call_id` that differs from its `id`.")
async def tool_call_form(s: Session) -> None:
    reply = await request_call(s)
    for item in reply["output"]:
        if item["type"] == "function_call":
            # Agents refer to the call by call_id and to the item by id; equal ids would
            # hide an error of the client.
            require(item["id"] != item["call_id"] and item["call_id"], f"the call is {item}")


@AREA.check("`call_id` values are unique across responses.")
async def tool_call_ids(s: Session) -> None:
    fields: JsonObject = {
        "input": QUESTION,
        "tools": TOOLS,
        "tool_choice": NAMED,
        "max_output_tokens": 300,
    }
    replies = [await request_call(s), await request_response(s, "forced tools", **fields)]
    ids = [
        item["call_id"]
        for reply in replies
        for item in reply["output"]
        if item["type"] == "function_call"
    ]
    require(len(set(ids)) == len(ids), f"the ids are {ids}")


@AREA.check("`top_logprobs` with `include: message.output_text.logprobs` is honoured or rejected.")
async def logprobs(s: Session) -> None:
    reply = await request_response(
        s, "logprobs", include=["message.output_text.logprobs"], top_logprobs=2
    )
    parts = [
        part for item in reply["output"] if item["type"] == "message" for part in item["content"]
    ]
    if not parts:
        raise Skipped("the response has no text")
    entries = [entry for part in parts for entry in get_objects(part, "logprobs")]
    require(entries, f"logprobs were requested, but the part is {str(parts[0])[:200]}")
    require(
        all(len(entry["top_logprobs"]) >= 1 for entry in entries),
        f"2 top_logprobs were requested: {entries[:2]}",
    )


@AREA.check("The response echoes `tools` completely.")
async def tool_echo(s: Session) -> None:
    tools = (await request_call(s))["tools"]
    names = [tool.get("name") for tool in tools]
    require(names == ["get_weather", "get_time"], f"the tools are {names}")
    require(
        tools[0].get("parameters") == WEATHER, f"the parameters are {tools[0].get('parameters')}"
    )


@AREA.check(
    "A streamed function call has the events added, delta and done, in this order, with "
    "the same ids."
)
async def tool_stream_form(s: Session) -> None:
    fields = {"input": QUESTION, "tools": TOOLS, "tool_choice": NAMED, "max_output_tokens": 300}
    exchange = await s.request(
        PATH, {**RESPONSES.build_stream_request(s.model, ""), **fields}, feature="forced tools"
    )
    RESPONSES.check_stream(exchange.body)
    check_call(RESPONSES.fold(exchange.body))


@AREA.check("`tool_choice: none` returns no tool call.")
async def tool_none(s: Session) -> None:
    answer = read_response(
        await request_response(
            s, "tools", input=QUESTION, tools=TOOLS, tool_choice="none", max_output_tokens=64
        )
    )
    require(not answer.calls, f"the calls are {answer.calls}")


@AREA.check("A strict JSON Schema in `text.format` is enforced or rejected.")
async def schema(s: Session) -> None:
    text = {"format": {"type": "json_schema", "name": "person", "schema": PERSON, "strict": True}}
    answer = read_response(
        await request_response(s, "json_schema", text=text, max_output_tokens=200)
    )
    if answer.reason != "length":
        check_schema(answer.text, PERSON)


@AREA.check("The response echoes `text.format` completely.")
async def schema_echo(s: Session) -> None:
    text = {"format": {"type": "json_schema", "name": "person", "schema": PERSON, "strict": True}}
    reply = await request_response(s, "json_schema", text=text, max_output_tokens=200)
    require(reply["text"]["format"].get("schema") == PERSON, f"text is {reply['text']}")


def add_rejected() -> None:
    values: tuple[tuple[str, str, JsonObject], ...] = (
        (
            "previous-response",
            "An unknown `previous_response_id` is rejected.",
            {"previous_response_id": "resp_unknown"},
        ),
        (
            "item-type",
            "An input item of an unknown type is rejected.",
            {"input": [{"type": "wizard", "a": 1}]},
        ),
        (
            "content-type",
            "A content part of an unknown type is rejected.",
            {"input": [{"role": "user", "content": [{"type": "wizard"}]}]},
        ),
        (
            "tool-choice",
            "A `tool_choice` that names an undeclared tool is rejected.",
            {"tools": TOOLS, "tool_choice": {"type": "function", "name": "nothing"}},
        ),
        ("metadata", "A `metadata` value that is not an object is rejected.", {"metadata": "x"}),
        (
            "both-states",
            "`conversation` together with `previous_response_id` is rejected.",
            {"conversation": "conv_1", "previous_response_id": "resp_1"},
        ),
    )

    def build(fields: JsonObject) -> Callable[[Session], Awaitable[None]]:
        async def run(s: Session) -> None:
            exchange = await s.post(
                PATH, {**RESPONSES.build_request(s.model, "Hello", 16), **fields}
            )
            require(
                exchange.status in (400, 404, 422),
                f"status {exchange.status}: {exchange.body[:200]!r}",
            )
            check_error_basics(exchange.json())

        return run

    for name, rule, fields in values:
        AREA.add(f"rejects-{name}", rule, build(fields), level="should")


add_rejected()
