"""Checks of Anthropic's Messages: content blocks, tools."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from ..check_catalog import Level
from ..dialects import MESSAGES
from ..error_bodies import check_error_basics
from ..parsed_response import read_message
from ..rules.json_values import JsonObject, require
from ..session import Session
from ..sse import parse_sse
from .generation import AREAS, STORY, request_stream, request_unstreamed
from .sample_tools import TIME, WEATHER, check_call

AREA = AREAS["messages"]
PATH = MESSAGES.path
TOOLS: list[JsonObject] = [
    {
        "name": "get_weather",
        "description": "Weather of a city",
        "input_schema": WEATHER,
        "strict": True,
    },
    {"name": "get_time", "description": "The time", "input_schema": TIME, "strict": True},
]
QUESTION = "What is the weather in Rome, in celsius? Use the tool."
HI: JsonObject = {"role": "user", "content": "Hi"}


async def request_message(
    s: Session, feature: str | None = None, /, limit: int = 24, **fields: Any
) -> JsonObject:
    return (
        await s.request(
            PATH, {**MESSAGES.build_request(s.model, STORY, limit), **fields}, feature=feature
        )
    ).json()


Predicate = Callable[[JsonObject], object]
FIELDS: tuple[tuple[str, str, Predicate, Level], ...] = (
    (
        "id",
        "`id` is a non-empty string.",
        lambda r: isinstance(r["id"], str) and r["id"],
        "must",
    ),
    (
        "type",
        "`type` is `message` and `role` is `assistant`.",
        lambda r: (r["type"], r["role"]) == ("message", "assistant"),
        "must",
    ),
    (
        "model",
        "`model` is a non-empty string.",
        lambda r: isinstance(r["model"], str) and r["model"],
        "must",
    ),
    (
        "content",
        "`content` is a list of blocks with a `type`.",
        lambda r: all(block["type"] for block in r["content"]),
        "must",
    ),
    (
        "stop-reason",
        "`stop_reason` is `end_turn` or `max_tokens`.",
        lambda r: r["stop_reason"] in ("end_turn", "max_tokens"),
        "must",
    ),
    (
        "stop-sequence",
        "`stop_sequence` is `null` if no stop sequence ended the text.",
        lambda r: r["stop_sequence"] is None,
        "must",
    ),
    (
        "usage",
        "`usage` has `input_tokens` and `output_tokens`.",
        lambda r: r["usage"]["output_tokens"] > 0 <= r["usage"]["input_tokens"],
        "must",
    ),
    (
        "no-empty-text",
        "No text block is empty: the API rejects empty text blocks in requests.",
        lambda r: all(b.get("text", 1) for b in r["content"]),
        "should",
    ),
)


def add_fields() -> None:
    def build(predicate: Predicate, rule: str) -> Callable[[Session], Awaitable[None]]:
        async def run(s: Session) -> None:
            reply = (await request_unstreamed(s, MESSAGES)).json()
            require(predicate(reply), f"rule violated: {rule} The response is {str(reply)[:400]}")

        return run

    for name, rule, predicate, level in FIELDS:
        AREA.add(f"field-{name}", rule, build(predicate, rule), level=level)


add_fields()


@AREA.check(
    "The SSE event name equals the `type` of the event: the official SDKs drop unnamed events."
)
async def stream_names(s: Session) -> None:
    events = parse_sse((await request_stream(s, MESSAGES)).body)
    # The SDKs select the events that they decode by the event's name, before they read
    # `type` in the data.
    wrong = [
        event
        for event in events
        if event.name is None or event.name != json.loads(event.data).get("type")
    ]
    require(events and not wrong, f"events whose name differs from their type: {wrong[:2]}")


@AREA.check("A stream has no `data: [DONE]`.")
async def stream_no_done(s: Session) -> None:
    require(b"[DONE]" not in (await request_stream(s, MESSAGES)).body, "the stream contains [DONE]")


async def get_events(s: Session) -> list[JsonObject]:
    events = [
        json.loads(event.data) for event in parse_sse((await request_stream(s, MESSAGES)).body)
    ]
    # A ping may occur anywhere in a stream.
    return [event for event in events if event["type"] != "ping"]


@AREA.check(
    "A stream starts with `message_start`, and ends with `message_delta` and `message_stop`."
)
async def stream_order(s: Session) -> None:
    kinds = [event["type"] for event in await get_events(s)]
    require(
        kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"],
        f"the events are {kinds}",
    )


@AREA.check("Content blocks are numbered from 0, and at most one is open at a time.")
async def stream_blocks(s: Session) -> None:
    events = await get_events(s)
    open_block = None
    count = 0
    for event in events:
        match event["type"]:
            case "content_block_start":
                require(
                    open_block is None and event["index"] == count,
                    f"block {event['index']} starts, open is {open_block}, closed are {count}",
                )
                open_block = event["index"]
                count = count + 1
            case "content_block_delta":
                require(
                    event["index"] == open_block,
                    f"a delta of block {event['index']}, open is {open_block}",
                )
            case "content_block_stop":
                require(
                    event["index"] == open_block,
                    f"block {event['index']} stops, open is {open_block}",
                )
                open_block = None
            case _:
                pass
    require(open_block is None and count, f"{count} blocks, open is {open_block}")


@AREA.check("`message_start` reports the same input token count as the non-streamed response.")
async def stream_start_usage(s: Session) -> None:
    usage = (await get_events(s))[0]["message"]["usage"]
    # input_tokens excludes cached tokens, so it may be 0 for a cached prompt.
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    count = sum(usage.get(name) or 0 for name in names)
    require(count, f"usage in message_start is {usage}")
    expected = read_message((await request_unstreamed(s, MESSAGES)).json()).prompt_tokens
    require(
        count == expected,
        f"{count} input tokens in message_start, {expected} in the non-streamed response",
    )


@AREA.check("`message_delta` reports `output_tokens`.")
async def stream_delta_usage(s: Session) -> None:
    event = (await get_events(s))[-2]
    require(event.get("usage", {}).get("output_tokens"), f"message_delta is {event}")


@AREA.check("`stop_sequence` is the stop sequence that ended the text.")
async def stop_sequence(s: Session) -> None:
    text = read_message((await request_unstreamed(s, MESSAGES)).json()).text
    # Part of a greedy response, which is reproducible; no other text is certain to
    # occur.
    mark = text[4:6]
    reply = await request_message(s, limit=32, stop_sequences=[mark])
    # A server that is not deterministic may generate no stop sequence; nothing can be
    # checked then.
    if mark not in text or reply["stop_reason"] == "max_tokens":
        return
    require(
        (reply["stop_reason"], reply["stop_sequence"]) == ("stop_sequence", mark),
        f"stop_reason is {reply['stop_reason']}, stop_sequence is {reply['stop_sequence']!r}",
    )


TOOL_USE: JsonObject = {"type": "tool_use", "id": "toolu_1", "name": "get_time", "input": {}}
INPUTS: tuple[tuple[str, str, JsonObject], ...] = (
    (
        "blocks",
        "`content` may be a list of text blocks.",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
    ),
    ("system", "`system` may be a string.", {"system": "Be brief."}),
    (
        "system-blocks",
        "`system` may be a list of blocks with `cache_control`.",
        {"system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]},
    ),
    (
        "history",
        "A conversation with several turns is accepted.",
        {
            "messages": [
                HI,
                {"role": "assistant", "content": "Hello"},
                {"role": "user", "content": "Go on"},
            ]
        },
    ),
    (
        "same-roles",
        "Consecutive messages with the same role are accepted.",
        {"messages": [HI, {"role": "user", "content": "Go on"}]},
    ),
    (
        "tool-history",
        "A `tool_use` block and its `tool_result` are accepted.",
        {
            "tools": TOOLS,
            "messages": [
                HI,
                {"role": "assistant", "content": [TOOL_USE]},
                {
                    "role": "user",
                    "content": [
                        {"type": "tool_result", "tool_use_id": "toolu_1", "content": "12:00"}
                    ],
                },
            ],
        },
    ),
    (
        "tool-result-blocks",
        "A `tool_result` may have a list of blocks as its content, and `is_error`.",
        {
            "tools": TOOLS,
            "messages": [
                HI,
                {"role": "assistant", "content": [TOOL_USE]},
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "toolu_1",
                            "is_error": True,
                            "content": [{"type": "text", "text": "no clock"}],
                        }
                    ],
                },
            ],
        },
    ),
    ("metadata", "`metadata.user_id` is accepted.", {"metadata": {"user_id": "u1"}}),
    ("top-k", "`top_k` is accepted.", {"top_k": 5}),
    (
        "thinking-disabled",
        "`thinking.type: disabled` is accepted.",
        {"thinking": {"type": "disabled"}},
    ),
)


def add_inputs() -> None:
    def build(fields: JsonObject) -> Callable[[Session], Awaitable[None]]:
        async def run(s: Session) -> None:
            reply = await request_message(s, limit=16, **fields)
            require(reply["type"] == "message", f"the response is {reply}")

        return run

    for name, rule, fields in INPUTS:
        AREA.add(f"accepts-{name}", rule, build(fields))


add_inputs()


@AREA.check("`system` is part of the prompt.")
async def system_counts(s: Session) -> None:
    counts = [
        read_message(await request_message(s, limit=8, system="apple " * words)).prompt_tokens or 0
        for words in (1, 31)
    ]
    require(counts[1] > counts[0] + 20, f"input tokens with 1 and 31 words: {counts}")


@AREA.check(
    "A final assistant message is continued, and not repeated in the response.", level="should"
)
async def prefill(s: Session) -> None:
    start = "Once upon a time there was"
    reply = await request_message(
        s, "prefill", messages=[HI, {"role": "assistant", "content": start}]
    )
    text = read_message(reply).text
    require(not text.startswith(start), f"the response repeats the prefill: {text!r}")
    answers = [
        read_message(
            await request_message(
                s, "prefill", messages=[HI, {"role": "assistant", "content": f"I had{words}"}]
            )
        )
        for words in ("", " apple" * 30)
    ]
    tokens = [answer.prompt_tokens or 0 for answer in answers]
    require(tokens[1] > tokens[0] + 20, f"input tokens with 2 and 32 words of prefill: {tokens}")


async def request_call(s: Session) -> JsonObject:
    async def call() -> JsonObject:
        choice = {"type": "tool", "name": "get_weather"}
        return await request_message(
            s,
            "forced tools",
            limit=300,
            messages=[{"role": "user", "content": QUESTION}],
            tools=TOOLS,
            tool_choice=choice,
        )

    return await s.share("messages.call", call)


@AREA.check(
    "A `tool_choice` that names a tool returns a `tool_use` block whose input matches the schema."
)
async def tool_named(s: Session) -> None:
    reply = await request_call(s)
    check_call(read_message(reply))
    require(reply["stop_reason"] == "tool_use", f"stop_reason is {reply['stop_reason']!r}")


@AREA.check("A `tool_use` block has an `id`, and its `input` is an object.")
async def tool_form(s: Session) -> None:
    reply = await request_call(s)
    MESSAGES.check_object(reply)
    uses = [block for block in reply["content"] if block["type"] == "tool_use"]
    require(
        uses and all(use["id"] and isinstance(use["input"], dict) for use in uses),
        f"the blocks are {reply['content']}",
    )


@AREA.check("The ids of `tool_use` blocks are unique across responses.")
async def tool_ids(s: Session) -> None:
    choice = {"type": "tool", "name": "get_weather"}
    fields: JsonObject = {
        "messages": [{"role": "user", "content": QUESTION}],
        "tools": TOOLS,
        "tool_choice": choice,
    }
    replies = [await request_call(s), await request_message(s, "forced tools", limit=300, **fields)]
    ids = [
        block["id"]
        for reply in replies
        for block in reply["content"]
        if block["type"] == "tool_use"
    ]
    require(len(set(ids)) == len(ids), f"the ids are {ids}")


@AREA.check("`tool_choice: any` returns a `tool_use` block of a declared tool.")
async def tool_any(s: Session) -> None:
    fields: JsonObject = {
        "messages": [{"role": "user", "content": QUESTION}],
        "tools": TOOLS,
        "tool_choice": {"type": "any"},
    }
    answer = read_message(await request_message(s, "forced tools", limit=300, **fields))
    require(
        answer.calls and all(name in ("get_weather", "get_time") for name, _ in answer.calls),
        f"the calls are {answer.calls}",
    )


@AREA.check(
    "A streamed `tool_use` block has valid events, and its concatenated input is JSON "
    "that matches the schema."
)
async def tool_stream_form(s: Session) -> None:
    choice = {"type": "tool", "name": "get_weather"}
    body = {
        **MESSAGES.build_stream_request(s.model, QUESTION, 300),
        "tools": TOOLS,
        "tool_choice": choice,
    }
    exchange = await s.request(PATH, body, feature="forced tools")
    MESSAGES.check_stream(exchange.body)
    answer = MESSAGES.fold(exchange.body)
    check_call(answer)
    require(answer.reason == "calls", f"stop_reason of the stream is {answer.reason!r}")


@AREA.check("`tool_choice: none` returns no `tool_use` block.")
async def tool_none(s: Session) -> None:
    fields: JsonObject = {
        "messages": [{"role": "user", "content": QUESTION}],
        "tools": TOOLS,
        "tool_choice": {"type": "none"},
    }
    answer = read_message(await request_message(s, "tools", limit=64, **fields))
    require(not answer.calls, f"the calls are {answer.calls}")


def add_rejected() -> None:
    values: tuple[tuple[str, str, JsonObject], ...] = (
        (
            "tool-without-schema",
            "A tool without `input_schema` is rejected.",
            {"tools": [{"name": "x"}]},
        ),
        (
            "tool-choice",
            "A `tool_choice` that names an undeclared tool is rejected.",
            {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "nothing"}},
        ),
        (
            "block-type",
            "A content block of an unknown type is rejected.",
            {"messages": [{"role": "user", "content": [{"type": "wizard"}]}]},
        ),
        (
            "thinking-type",
            "A `thinking` value of an unknown type is rejected.",
            {"thinking": {"type": "wizard"}},
        ),
        (
            "stop-of-wrong-type",
            "A `stop_sequences` value that is a number is rejected.",
            {"stop_sequences": 5},
        ),
    )

    def build(fields: JsonObject) -> Callable[[Session], Awaitable[None]]:
        async def run(s: Session) -> None:
            exchange = await s.post(
                PATH, {**MESSAGES.build_request(s.model, "Hello", 16), **fields}
            )
            require(
                exchange.status in (400, 422), f"status {exchange.status}: {exchange.body[:200]!r}"
            )
            check_error_basics(exchange.json())

        return run

    for name, rule, fields in values:
        AREA.add(f"rejects-{name}", rule, build(fields), level="should")


add_rejected()


@AREA.check(
    "A request without `max_tokens` is rejected.",
    level="should",
    except_for=("vllm", "llamacpp", "ollama", "litellm"),
)
async def rejects_no_limit(s: Session) -> None:
    body = MESSAGES.build_request(s.model, "Hello", 16)
    del body["max_tokens"]
    exchange = await s.post(PATH, body)
    require(exchange.status == 400 and b"max_tokens" in exchange.body, f"status {exchange.status}")


@AREA.check(
    "An unknown path below `/v1/messages` returns 404 or 405, with Anthropic's error body.",
    level="should",
)
async def unknown_path(s: Session) -> None:
    exchange = await s.post(f"{PATH}/unknown", {})
    require(exchange.status in (404, 405), f"status {exchange.status}")
    MESSAGES.check_error(exchange.json())
