"""Checks of Responses: object, items, tools, stored state, conversations, background
mode, WebSocket.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from ..rules.checks import require
from ..rules.responses import RESPONSE_FIELDS
from ..dialects import RESPONSES, check_error_basics, parse_chunks, parse_sse, read_response
from ..session import Area, Exchange, Json, Level, Session, Skipped, get_objects
from .chat import PERSON, TIME, WEATHER, check_call, check_schema, is_seconds
from .generation import AREAS, STORY, ask_stream, ask_whole

AREA = AREAS["responses"]
PATH = RESPONSES.path
OPEN_RESPONSES = "https://www.openresponses.org/specification"
STATE_DOCS = "https://platform.openai.com/docs/guides/conversation-state"
BACKGROUND_DOCS = "https://platform.openai.com/docs/guides/background"
WEBSOCKET_DOCS = "https://platform.openai.com/docs/guides/websocket-mode"
POLL_TIMEOUT = 30.0
"""Seconds within which a background response must end."""
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


# Stored state.

STATE = Area("state", claims=("responses", "state"), source=STATE_DOCS)


async def share_stored(s: Session) -> Json:
    async def build() -> Json:
        reply = await ask(s, "store", store=True)
        exchange = await s.get(f"{PATH}/{reply['id']}")
        # A server that stores nothing also answers with 200; only reading the response
        # back shows it.
        if exchange.status != 200 and s.target.profile == "auto":
            raise Skipped(f"the server does not store responses: GET is a {exchange.status}")
        return reply

    return await s.share("state.stored", build)


@STATE.check("A stored response is returned as it was.")
async def retrieve(s: Session) -> None:
    reply = await share_stored(s)
    exchange = await s.get(f"{PATH}/{reply['id']}")
    require(exchange.status == 200, f"status {exchange.status}")
    stored = exchange.json()
    for name in ("id", "output", "status", "usage", "created_at"):
        require(stored[name] == reply[name], f"{name} is {stored[name]!r}, it was {reply[name]!r}")


@STATE.check("A streamed response is stored, too, as its last event has it.")
async def retrieve_streamed(s: Session) -> None:
    await share_stored(s)
    exchange = await s.ask(PATH, {**RESPONSES.ask_stream(s.model, STORY, 24), "store": True})
    last = parse_chunks(exchange.body)[-1]["response"]
    stored = await s.get(f"{PATH}/{last['id']}")
    require(
        stored.status == 200 and stored.json()["output"] == last["output"],
        f"status {stored.status}",
    )


@STATE.check("With `store: false` nothing is stored.")
async def store_false(s: Session) -> None:
    await share_stored(s)
    reply = await ask(s, store=False)
    exchange = await s.get(f"{PATH}/{reply['id']}")
    require(exchange.status == 404, f"status {exchange.status}")


@STATE.check("`previous_response_id` puts the earlier turns into the prompt.")
async def continue_response(s: Session) -> None:
    first = await share_stored(s)
    alone = await ask(s, input="Go on.")
    second = await ask(s, input="Go on.", previous_response_id=first["id"])
    require(
        second["previous_response_id"] == first["id"], f"it is {second['previous_response_id']!r}"
    )
    counts = second["usage"]["input_tokens"], alone["usage"]["input_tokens"]
    # The prompt also has the first turn's question and answer.
    require(counts[0] >= counts[1] + 10, f"{counts[0]} input tokens, alone {counts[1]}")


@STATE.check("Earlier `instructions` do not apply to the next response.")
async def continue_without_instructions(s: Session) -> None:
    await share_stored(s)
    counts: list[int] = []
    for instructions in ("Be brief.", "apple " * 60):
        first = await ask(s, store=True, input="Hi", instructions=instructions)
        second = await ask(
            s, input="Go on.", previous_response_id=first["id"], max_output_tokens=16
        )
        # The length of the first answer differs, so it is subtracted from the count.
        counts.append(second["usage"]["input_tokens"] - first["usage"]["output_tokens"])
    require(
        abs(counts[0] - counts[1]) < 20,
        f"60 words more of earlier instructions: {counts} input tokens",
    )


@STATE.check("The input items of a response are listed, each with id and type.")
async def input_items(s: Session) -> None:
    reply = await share_stored(s)
    exchange = await s.get(f"{PATH}/{reply['id']}/input_items")
    require(exchange.status == 200, f"status {exchange.status}")
    page = exchange.json()
    require(page["object"] == "list" and page["data"], f"the page is {page}")
    for item in page["data"]:
        require(item["id"] and item["type"], f"an item is {item}")
    for name in ("first_id", "last_id", "has_more"):
        require(name in page, f"the page has no {name}")


@STATE.check("A deleted response is gone.")
async def delete(s: Session) -> None:
    await share_stored(s)
    reply = await ask(s, store=True)
    exchange = await s.send("DELETE", f"{PATH}/{reply['id']}")
    require(exchange.status == 200, f"status {exchange.status}")
    require(exchange.json().get("deleted") is True, f"the answer is {exchange.json()}")
    for method in ("GET", "DELETE"):
        again = await s.send(method, f"{PATH}/{reply['id']}")
        require(again.status == 404, f"{method} afterwards is a {again.status}")
        RESPONSES.check_error(again.json())


@STATE.check("A deleted response cannot be continued.")
async def continue_deleted(s: Session) -> None:
    await share_stored(s)
    reply = await ask(s, store=True)
    await s.send("DELETE", f"{PATH}/{reply['id']}")
    exchange = await s.post(
        PATH, RESPONSES.ask(s.model, "Go on.", 16, previous_response_id=reply["id"])
    )
    require(exchange.status in (400, 404), f"status {exchange.status}")
    require(b"previous_response" in exchange.body, f"the error is {exchange.message()!r}")


@STATE.check("Of concurrent deletions of a response exactly one succeeds.")
async def delete_once(s: Session) -> None:
    await share_stored(s)
    reply = await ask(s, store=True)
    exchanges = await asyncio.gather(*(s.send("DELETE", f"{PATH}/{reply['id']}") for _ in range(5)))
    statuses = sorted(exchange.status for exchange in exchanges)
    require(statuses == [200, 404, 404, 404, 404], f"statuses {statuses}")


@STATE.check("An unknown response is a 404 with an error body.")
async def unknown(s: Session) -> None:
    await share_stored(s)
    exchange = await s.get(f"{PATH}/resp_unknown")
    require(exchange.status == 404, f"status {exchange.status}")
    RESPONSES.check_error(exchange.json())


@STATE.check("A response that did not run in the background cannot be cancelled.")
async def cancel_synchronous(s: Session) -> None:
    reply = await share_stored(s)
    exchange = await s.post(f"{PATH}/{reply['id']}/cancel", {})
    require(exchange.status == 400, f"status {exchange.status}")


@STATE.check(
    "`/v1/responses/input_tokens` counts what the usage of the same request will be.",
    claims=("input-tokens",),
)
async def input_tokens(s: Session) -> None:
    exchange = await s.post(f"{PATH}/input_tokens", {"model": s.model, "input": STORY})
    if exchange.status in (400, 404, 405) and s.target.profile == "auto":
        raise Skipped(f"the server does not count tokens: {exchange.message()}")
    require(exchange.status == 200, f"status {exchange.status}: {exchange.message()}")
    expected = (await ask_whole(s, RESPONSES)).json()["usage"]["input_tokens"]
    require(
        exchange.json()["input_tokens"] == expected, f"counted {exchange.json()}, usage {expected}"
    )


# Conversations.

CONVERSATIONS = Area(
    "conversations",
    claims=("conversations",),
    source="https://platform.openai.com/docs/api-reference/conversations",
)


async def create_conversation(s: Session) -> str:
    body = {
        "items": [{"type": "message", "role": "user", "content": "My name is Ann."}],
        "metadata": {"a": "b"},
    }
    reply = (await s.ask("/v1/conversations", body, feature="conversations")).json()
    require(reply["object"] == "conversation" and reply["metadata"] == {"a": "b"}, f"it is {reply}")
    return reply["id"]


@CONVERSATIONS.check("A conversation is created with items and metadata, and returned.")
async def create(s: Session) -> None:
    id = await create_conversation(s)
    exchange = await s.get(f"/v1/conversations/{id}")
    require(exchange.status == 200 and exchange.json()["id"] == id, f"status {exchange.status}")


@CONVERSATIONS.check("A response appends its input and its output to its conversation.")
async def append(s: Session) -> None:
    id = await create_conversation(s)
    await ask(s, input="And yours?", conversation=id, store=True)
    exchange = await s.get(f"/v1/conversations/{id}/items?order=asc")
    roles = [item.get("role") for item in exchange.json()["data"] if item["type"] == "message"]
    require(roles == ["user", "user", "assistant"], f"the roles are {roles}")


@CONVERSATIONS.check("Metadata can be changed.")
async def update(s: Session) -> None:
    id = await create_conversation(s)
    exchange = await s.post(f"/v1/conversations/{id}", {"metadata": {"c": "d"}})
    require(exchange.json().get("metadata") == {"c": "d"}, f"it is {exchange.body[:200]!r}")


@CONVERSATIONS.check("Pages of items follow `limit`, `order` and `after`.")
async def pages(s: Session) -> None:
    id = await create_conversation(s)
    items = [{"type": "message", "role": "user", "content": str(number)} for number in range(3)]
    await s.post(f"/v1/conversations/{id}/items", {"items": items})
    item_ids = list[str]()
    after = ""
    has_more = True
    while has_more and len(item_ids) < 10:
        page = (await s.get(f"/v1/conversations/{id}/items?order=asc&limit=2{after}")).json()
        item_ids += [item["id"] for item in page["data"]]
        after = f"&after={page['last_id']}"
        has_more = page["has_more"]
    require(
        len(item_ids) == len(set(item_ids)) == 4, f"4 items were added, the pages have {item_ids}"
    )


@CONVERSATIONS.check("A deleted conversation is gone.")
async def delete_conversation(s: Session) -> None:
    id = await create_conversation(s)
    exchange = await s.send("DELETE", f"/v1/conversations/{id}")
    require(
        exchange.status == 200 and exchange.json().get("deleted") is True,
        f"status {exchange.status}",
    )
    again = await s.get(f"/v1/conversations/{id}")
    require(again.status == 404, f"GET afterwards is a {again.status}")


# Background mode.

BACKGROUND = Area("background", claims=("responses", "background"), source=BACKGROUND_DOCS)


async def start_background(s: Session, **fields: Any) -> Json:
    return await ask(s, "background", background=True, store=True, **fields)


async def poll(s: Session, id: str) -> Json:
    """Poll a response until it has ended, and return it. Raises Violation after
    `POLL_TIMEOUT`.
    """
    for number in range(200):
        reply = (await s.get(f"{PATH}/{id}")).json()
        if reply["status"] not in ("queued", "in_progress"):
            return reply
        require(
            number * 0.15 < POLL_TIMEOUT, f"it is still {reply['status']} after {POLL_TIMEOUT:g} s"
        )
        await asyncio.sleep(min(0.02 * (number + 1), 0.2))
    raise Skipped("the response has not ended within 200 polls")


@BACKGROUND.check("A background response is returned at once, and ends while it is polled.")
async def run(s: Session) -> None:
    reply = await start_background(s)
    require(
        reply["background"] is True
        and reply["status"] in ("queued", "in_progress", "completed", "incomplete"),
        f"{reply['status']}",
    )
    done = await poll(s, reply["id"])
    require(
        done["status"] in ("completed", "incomplete") and done["output"],
        f"it ended as {done['status']}",
    )


@BACKGROUND.check("A cancelled background response is `cancelled`, also if it is cancelled twice.")
async def cancel(s: Session) -> None:
    reply = await start_background(s, input="Write a very long story.", max_output_tokens=1000)
    statuses: list[str] = []
    for _ in range(2):
        exchange = await s.post(f"{PATH}/{reply['id']}/cancel", {})
        require(exchange.status == 200, f"status {exchange.status}: {exchange.message()}")
        statuses.append(exchange.json()["status"])
    require(statuses[0] == statuses[1], f"the statuses are {statuses}")
    require(statuses[0] in ("cancelled", "completed", "incomplete"), f"the status is {statuses[0]}")


@BACKGROUND.check("`starting_after` resumes a stream with the events after that number.")
async def resume(s: Session) -> None:
    body = {**RESPONSES.ask_stream(s.model, STORY, 24), "background": True, "store": True}
    events = parse_chunks((await s.ask(PATH, body, feature="background")).body)
    id = events[0]["response"]["id"]
    exchange = await s.get(f"{PATH}/{id}?stream=true&starting_after=2")
    require(exchange.status == 200, f"status {exchange.status}: {exchange.message()}")
    resumed = parse_chunks(exchange.body)
    require(
        resumed == events[3:],
        f"events {[e['sequence_number'] for e in resumed]}, expected "
        f"{[e['sequence_number'] for e in events[3:]]}",
    )


@BACKGROUND.check("A stream of a background response follows the grammar.")
async def stream_form(s: Session) -> None:
    body = {**RESPONSES.ask_stream(s.model, STORY, 24), "background": True, "store": True}
    RESPONSES.judge((await s.ask(PATH, body, feature="background")).body)


@BACKGROUND.check("A background response without `store` is rejected.", level="should")
async def needs_store(s: Session) -> None:
    await start_background(s)
    exchange = await s.post(PATH, RESPONSES.ask(s.model, STORY, 16, background=True, store=False))
    require(exchange.status == 400, f"status {exchange.status}")


# WebSocket.

WEBSOCKET = Area("websocket", claims=("responses", "websocket"), source=WEBSOCKET_DOCS)


def build_frame(s: Session, text: str = STORY, **fields: Any) -> Json:
    body = RESPONSES.ask(s.model, text, 24)
    return {"type": "response.create", **body, **fields}


@WEBSOCKET.check("A turn over the WebSocket has the events of a stream, one for each frame.")
async def turn(s: Session) -> None:
    async with s.open_websocket(PATH) as socket:
        await socket.send(build_frame(s))
        events = await socket.receive_turn()
    for event in events:
        event.pop("dragoman_warnings", None)
    data = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
    RESPONSES.judge(f"{data}data: [DONE]\n\n".encode())


@WEBSOCKET.check("The answer over the WebSocket is the answer over HTTP.")
async def same_answer(s: Session) -> None:
    async with s.open_websocket(PATH) as socket:
        await socket.send(build_frame(s))
        last = (await socket.receive_turn())[-1]
    first, again = [read_response(await ask(s)).text for _ in range(2)]
    if first != again:
        raise Skipped("answers to the same request differ")
    require(read_response(last["response"]).text == first, f"it is {last['response']['output']}")


@WEBSOCKET.check("Several turns run on one connection, each with ids of its own.")
async def turns(s: Session) -> None:
    async with s.open_websocket(PATH) as socket:
        ids: list[str] = []
        for text in ("Hi", "Go on"):
            await socket.send(build_frame(s, text))
            ids.append((await socket.receive_turn())[-1]["response"]["id"])
    require(len(set(ids)) == 2, f"the ids are {ids}")


@WEBSOCKET.check("`previous_response_id` continues the last response, also with `store: false`.")
async def continue_unstored(s: Session) -> None:
    async with s.open_websocket(PATH) as socket:
        await socket.send(build_frame(s))
        first = (await socket.receive_turn())[-1]["response"]
        await socket.send(build_frame(s, "Go on.", previous_response_id=first["id"]))
        last = (await socket.receive_turn())[-1]
    require(last["type"] in ("response.completed", "response.incomplete"), f"it ended with {last}")
    tokens = last["response"]["usage"]["input_tokens"]
    require(
        tokens > first["usage"]["input_tokens"],
        f"{tokens} input tokens, before {first['usage']['input_tokens']}",
    )


@WEBSOCKET.check("An unknown `previous_response_id` is an error frame, and the connection goes on.")
async def unknown_previous(s: Session) -> None:
    async with s.open_websocket(PATH) as socket:
        await socket.send(build_frame(s, previous_response_id="resp_unknown"))
        error = (await socket.receive_turn())[-1]
        require(
            error["type"] == "error" and error.get("status") in (400, 404), f"the frame is {error}"
        )
        # Some servers, such as vLLM, use the HTTP status as the code.
        codes = ("previous_response_not_found", error["status"])
        require(error["error"].get("code") in codes, f"the error is {error['error']}")
        await socket.send(build_frame(s))
        require((await socket.receive_turn())[-1]["type"] != "error", "the next turn fails, too")


def add_frames() -> None:
    frames: tuple[tuple[str, str, Json | str], ...] = (
        ("bad-json", "A frame that is not JSON is an error frame.", "{"),
        (
            "unknown-type",
            "A frame of an unknown type is an error frame.",
            {"type": "response.wizard"},
        ),
        (
            "bad-field",
            "A frame with an invalid field is an error frame.",
            {"type": "response.create", "input": 5},
        ),
    )

    def build(frame: Json | str) -> Callable[[Session], Awaitable[None]]:
        async def run(s: Session) -> None:
            async with s.open_websocket(PATH) as socket:
                await socket.send(frame)
                error = await socket.receive()
            require(error["type"] == "error", f"the frame is {str(error)[:200]}")
            require(error["error"].get("message"), f"the error is {error}")

        return run

    for name, rule, frame in frames:
        WEBSOCKET.add(f"rejects-{name}", rule, build(frame))


add_frames()


@WEBSOCKET.check("`generate: false` prepares a turn without output.", level="should")
async def prewarm(s: Session) -> None:
    async with s.open_websocket(PATH) as socket:
        await socket.send(build_frame(s, generate=False))
        last = (await socket.receive_turn())[-1]
    require(last["type"] == "response.completed", f"it ended with {str(last)[:300]}")
    require(not last["response"]["output"], f"the output is {last['response']['output']}")


@WEBSOCKET.check(
    "A request without an Upgrade to the WebSocket's path is answered or refused as any other."
)
async def upgrade_only(s: Session) -> None:
    exchange: Exchange = await s.get(PATH)
    require(exchange.status in (400, 404, 405, 426), f"status {exchange.status}")
