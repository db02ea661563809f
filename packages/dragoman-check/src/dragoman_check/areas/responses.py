"""Checks of Responses: object, items, tools."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from ..client_answer import read_response
from ..dialects import RESPONSES
from ..error_bodies import check_error_basics
from ..rules.json_values import require
from ..rules.responses import RESPONSE_FIELDS
from ..session import Json, Level, Session, Skipped, get_objects
from ..sse import parse_chunks, parse_sse
from .chat import is_seconds
from .generation import AREAS, STORY, ask_stream, ask_whole
from .sample_schemas import PERSON, check_schema
from .sample_tools import TIME, WEATHER, check_call

AREA = AREAS["responses"]
PATH = RESPONSES.path
OPEN_RESPONSES = "https://www.openresponses.org/specification"
TOOLS: list[Json] = [
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


async def ask(s: Session, feature: str | None = None, /, **fields: Any) -> Json:
    body = {**RESPONSES.ask(s.model, STORY, 24), **fields}
    return (await s.ask(PATH, body, feature=feature)).json()


Judge = Callable[[Json], object]
FIELDS: tuple[tuple[str, str, Judge, Level], ...] = (
    ("object", "`object` is `response`.", lambda r: r["object"] == "response", "must"),
    (
        "created-at",
        "`created_at` is a time in seconds.",
        lambda r: is_seconds(int(r["created_at"])),
        "must",
    ),
    (
        "status",
        "`status` says how it ended.",
        lambda r: r["status"] in ("completed", "incomplete"),
        "must",
    ),
    (
        "error",
        "`error` is null in a response that did not fail.",
        lambda r: r["error"] is None,
        "must",
    ),
    (
        "item-id",
        "Every output item has an id.",
        lambda r: all(item["id"] for item in r["output"]),
        "must",
    ),
    (
        "item-status",
        "Every output message has a status.",
        lambda r: all(i.get("status") for i in r["output"] if i["type"] == "message"),
        "must",
    ),
    (
        "role",
        "The output message's role is `assistant`.",
        lambda r: all(i["role"] == "assistant" for i in r["output"] if i["type"] == "message"),
        "must",
    ),
    (
        "annotations",
        "An output text has `annotations`, a list.",
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
        "`total_tokens` is the sum of input and output tokens.",
        lambda r: (
            r["usage"]["total_tokens"] == r["usage"]["input_tokens"] + r["usage"]["output_tokens"]
        ),
        "must",
    ),
    (
        "cached-tokens",
        "Usage has the cached tokens of the input, at most all of them.",
        lambda r: (
            0 <= r["usage"]["input_tokens_details"]["cached_tokens"] <= r["usage"]["input_tokens"]
        ),
        "must",
    ),
    (
        "reasoning-tokens",
        "Usage has the reasoning tokens of the output, at most all of them.",
        lambda r: (
            0
            <= r["usage"]["output_tokens_details"]["reasoning_tokens"]
            <= r["usage"]["output_tokens"]
        ),
        "must",
    ),
    (
        "tools",
        "`tools` is a list and `tool_choice` is given, also without tools.",
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
        "All fields that Open Responses requires are there, null or not.",
        lambda r: tuple(r) >= RESPONSE_FIELDS or set(RESPONSE_FIELDS) <= set(r),
        "should",
    ),
)


def add_fields() -> None:
    def build(judge: Judge, rule: str) -> Callable[[Session], Awaitable[None]]:
        async def run(s: Session) -> None:
            reply = (await ask_whole(s, RESPONSES)).json()
            require(judge(reply), f"rule violated: {rule} {str(reply)[:600]}")

        return run

    for name, rule, judge, level in FIELDS:
        AREA.add(f"field-{name}", rule, build(judge, rule), level=level)


add_fields()


async def get_events(s: Session) -> list[Json]:
    return parse_chunks((await ask_stream(s, RESPONSES)).body)


@AREA.check("`sequence_number` counts all events from 0.")
async def stream_sequence(s: Session) -> None:
    numbers = [event.get("sequence_number") for event in await get_events(s)]
    require(numbers == list(range(len(numbers))), f"the numbers are {numbers}")


@AREA.check(
    "The first event is `response.created`, the last `response.completed` or `response.incomplete`."
)
async def stream_ends(s: Session) -> None:
    kinds = [event["type"] for event in await get_events(s)]
    require(kinds[0] == "response.created", f"the first is {kinds[0]}")
    require(kinds[-1] in ("response.completed", "response.incomplete"), f"the last is {kinds[-1]}")


@AREA.check("The name of every event is its `type`.")
async def stream_names(s: Session) -> None:
    events = [
        event
        for event in parse_sse((await ask_stream(s, RESPONSES)).body)
        if event.data != "[DONE]"
    ]
    wrong = [event for event in events if event.name != json.loads(event.data)["type"]]
    require(not wrong, f"events with another name: {wrong[:2]}")


@AREA.check("The response's id is the same in all its events.")
async def stream_id(s: Session) -> None:
    ids = {event["response"]["id"] for event in await get_events(s) if "response" in event}
    require(len(ids) == 1, f"the ids are {sorted(ids)}")


@AREA.check("Items keep their id from `added` over the deltas to the final object.")
async def stream_item_ids(s: Session) -> None:
    events = await get_events(s)
    added = [
        event["item"]["id"] for event in events if event["type"] == "response.output_item.added"
    ]
    done = [event["item"]["id"] for event in events if event["type"] == "response.output_item.done"]
    final = [item["id"] for item in events[-1]["response"]["output"]]
    require(added == done == final, f"added {added}, done {done}, final {final}")
    deltas = {event["item_id"] for event in events if event["type"].endswith(".delta")}
    require(deltas <= set(added), f"deltas of {deltas}, added {added}")


@AREA.check("The final object's output is the items that were done.")
async def stream_final_output(s: Session) -> None:
    events = await get_events(s)
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    require(
        events[-1]["response"]["output"] == done, "the output differs from the items that were done"
    )


@AREA.check("`output_text.done` has the text of its deltas.")
async def stream_text_done(s: Session) -> None:
    events = await get_events(s)
    deltas = "".join(
        event["delta"] for event in events if event["type"] == "response.output_text.delta"
    )
    done = "".join(
        event["text"] for event in events if event["type"] == "response.output_text.done"
    )
    require(done == deltas, f"done {done!r}, deltas {deltas!r}")


@AREA.check(
    "Deltas of text have `logprobs`, empty or not: strict clients require them.", level="should"
)
async def stream_logprobs(s: Session) -> None:
    deltas = [
        event for event in await get_events(s) if event["type"] == "response.output_text.delta"
    ]
    require(
        deltas and all(isinstance(event.get("logprobs"), list) for event in deltas),
        f"a delta is {deltas[:1]}",
    )


@AREA.check("No event is of a vendor's own type: strict clients raise on it.")
async def stream_types(s: Session) -> None:
    kinds = {event["type"] for event in await get_events(s)}
    unknown_kinds = [kind for kind in kinds if kind != "error" and not kind.startswith("response.")]
    require(not unknown_kinds, f"events of types {unknown_kinds}")


@AREA.check(
    "The limit of tokens makes a response `incomplete` with the reason `max_output_tokens`."
)
async def incomplete(s: Session) -> None:
    # 16 is the API's minimum of `max_output_tokens`.
    reply = await ask(s, max_output_tokens=16)
    if reply["status"] == "completed":
        raise Skipped("the answer is complete within 16 tokens")
    require(reply["status"] == "incomplete", f"status is {reply['status']!r}")
    require(
        reply["incomplete_details"] == {"reason": "max_output_tokens"},
        f"details {reply['incomplete_details']}",
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
            reply = await ask(s, name, **{name: value})
            require(reply[name] == value, f"{name} is {reply[name]!r}, sent as {value!r}")

        return run

    for name, value in values:
        AREA.add(
            f"echoes-{name.replace('_', '-')}",
            f"The response repeats `{name}` as it was sent.",
            build(name, value),
        )


add_echoes()


CALL: Json = {"type": "function_call", "call_id": "call_1", "name": "get_time", "arguments": "{}"}
INPUTS: tuple[tuple[str, str, list[Json]], ...] = (
    ("easy", "A message without a type is accepted.", [{"role": "user", "content": "Hi"}]),
    (
        "parts",
        "Content may be `input_text` parts.",
        [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
    ),
    (
        "developer",
        "A developer message is accepted.",
        [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
    ),
    (
        "assistant",
        "An earlier output message is accepted as input.",
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
        "A call and its output are accepted, without ids and statuses of their own.",
        [
            {"role": "user", "content": "Hi"},
            CALL,
            {"type": "function_call_output", "call_id": "call_1", "output": "12:00"},
        ],
    ),
    (
        "call-output-parts",
        "The output of a call may be a list of parts.",
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
        "A reasoning item is accepted, with `content: null` as Codex replays it.",
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
    def build(items: list[Json]) -> Callable[[Session], Awaitable[None]]:
        async def run(s: Session) -> None:
            fields: Json = (
                {"tools": TOOLS}
                if any(item.get("type") == "function_call" for item in items)
                else {}
            )
            reply = await ask(s, input=items, **fields)
            require(
                reply["status"] in ("completed", "incomplete"),
                f"status {reply['status']}: {reply.get('error')}",
            )

        return run

    for name, rule, items in INPUTS:
        AREA.add(f"accepts-{name}-input", rule, build(items))


add_inputs()


@AREA.check("`instructions` are part of the prompt.")
async def instructions_count(s: Session) -> None:
    # Judged by the token count: whether the model follows the instructions proves
    # nothing.
    counts = [
        (await ask(s, instructions="apple " * words))["usage"]["input_tokens"] for words in (1, 31)
    ]
    require(counts[1] > counts[0] + 20, f"30 words more are {counts} input tokens")


async def ask_call(s: Session) -> Json:
    async def call() -> Json:
        return await ask(
            s, "forced tools", input=QUESTION, tools=TOOLS, tool_choice=NAMED, max_output_tokens=300
        )

    return await s.share("responses.call", call)


@AREA.check("A named `tool_choice` is answered with a call whose arguments match the schema.")
async def tool_named(s: Session) -> None:
    check_call(read_response(await ask_call(s)))


@AREA.check("`tool_choice: required` is answered with a call of a declared tool.")
async def tool_required(s: Session) -> None:
    reply = await ask(
        s,
        "forced tools",
        input=QUESTION,
        tools=TOOLS,
        tool_choice="required",
        max_output_tokens=300,
    )
    answer = read_response(reply)
    require(answer.calls, f"no call: {str(reply['output'])[:300]}")
    require(
        all(name in ("get_weather", "get_time") for name, _ in answer.calls),
        f"calls {answer.calls}",
    )


@AREA.check("A call has id, call_id, name, arguments and a status; the two ids differ.")
async def tool_call_form(s: Session) -> None:
    reply = await ask_call(s)
    for item in reply["output"]:
        if item["type"] == "function_call":
            # Agents refer to the call by call_id and to the item by id; equal ids would
            # hide a mix-up.
            require(item["id"] != item["call_id"] and item["call_id"], f"the call is {item}")


@AREA.check("The `call_id`s differ from answer to answer.")
async def tool_call_ids(s: Session) -> None:
    fields: Json = {
        "input": QUESTION,
        "tools": TOOLS,
        "tool_choice": NAMED,
        "max_output_tokens": 300,
    }
    replies = [await ask_call(s), await ask(s, "forced tools", **fields)]
    ids = [
        item["call_id"]
        for reply in replies
        for item in reply["output"]
        if item["type"] == "function_call"
    ]
    require(len(set(ids)) == len(ids), f"the ids are {ids}")


@AREA.check("`top_logprobs` with `include: message.output_text.logprobs` is honoured, or rejected.")
async def logprobs(s: Session) -> None:
    reply = await ask(s, "logprobs", include=["message.output_text.logprobs"], top_logprobs=2)
    parts = [
        part for item in reply["output"] if item["type"] == "message" for part in item["content"]
    ]
    if not parts:
        raise Skipped("the answer has no text")
    entries = [entry for part in parts for entry in get_objects(part, "logprobs")]
    require(entries, f"logprobs were requested; the part is {str(parts[0])[:200]}")
    require(
        all(len(entry["top_logprobs"]) >= 1 for entry in entries),
        f"2 were requested: {entries[:2]}",
    )


@AREA.check("`tools` are repeated in full.")
async def tool_echo(s: Session) -> None:
    tools = (await ask_call(s))["tools"]
    names = [tool.get("name") for tool in tools]
    require(names == ["get_weather", "get_time"], f"tools {names}")
    require(
        tools[0].get("parameters") == WEATHER, f"the parameters are {tools[0].get('parameters')}"
    )


@AREA.check("A streamed call follows the grammar: added, deltas, done, with the same ids.")
async def tool_stream_form(s: Session) -> None:
    fields = {"input": QUESTION, "tools": TOOLS, "tool_choice": NAMED, "max_output_tokens": 300}
    exchange = await s.ask(
        PATH, {**RESPONSES.ask_stream(s.model, ""), **fields}, feature="forced tools"
    )
    RESPONSES.judge(exchange.body)
    check_call(RESPONSES.fold(exchange.body))


@AREA.check("`tool_choice: none` is answered without a call.")
async def tool_none(s: Session) -> None:
    answer = read_response(
        await ask(s, "tools", input=QUESTION, tools=TOOLS, tool_choice="none", max_output_tokens=64)
    )
    require(not answer.calls, f"calls {answer.calls}")


@AREA.check("A strict JSON Schema in `text.format` is enforced, or rejected.")
async def schema(s: Session) -> None:
    text = {"format": {"type": "json_schema", "name": "person", "schema": PERSON, "strict": True}}
    answer = read_response(await ask(s, "json_schema", text=text, max_output_tokens=200))
    if answer.reason != "length":
        check_schema(answer.text, PERSON)


@AREA.check("`text.format` is repeated in full.")
async def schema_echo(s: Session) -> None:
    text = {"format": {"type": "json_schema", "name": "person", "schema": PERSON, "strict": True}}
    reply = await ask(s, "json_schema", text=text, max_output_tokens=200)
    require(reply["text"]["format"].get("schema") == PERSON, f"text is {reply['text']}")


def add_rejected() -> None:
    values: tuple[tuple[str, str, Json], ...] = (
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
            "A `tool_choice` that names no declared tool is rejected.",
            {"tools": TOOLS, "tool_choice": {"type": "function", "name": "nothing"}},
        ),
        ("metadata", "Metadata that are not an object are rejected.", {"metadata": "x"}),
        (
            "both-states",
            "`conversation` beside `previous_response_id` is rejected.",
            {"conversation": "conv_1", "previous_response_id": "resp_1"},
        ),
    )

    def build(fields: Json) -> Callable[[Session], Awaitable[None]]:
        async def run(s: Session) -> None:
            exchange = await s.post(PATH, {**RESPONSES.ask(s.model, "Hello", 16), **fields})
            require(
                exchange.status in (400, 404, 422),
                f"status {exchange.status}: {exchange.body[:200]!r}",
            )
            check_error_basics(exchange.json())

        return run

    for name, rule, fields in values:
        AREA.add(f"rejects-{name}", rule, build(fields), level="should")


add_rejected()
