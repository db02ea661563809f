"""Checks of Chat Completions: fields, streams, choices, history."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from ..check_catalog import Level
from ..check_exceptions import Skipped
from ..dialects import CHAT
from ..json_objects import get_object
from ..parsed_response import fold_chat, read_chat
from ..rules.json_values import JsonObject, require
from ..session import Session
from ..sse import parse_chunks, parse_sse
from .generation import AREAS, STORY, request_reproducible, request_stream, request_unstreamed
from .sample_tools import TOOLS

AREA = AREAS["chat"]
PATH = CHAT.path
STREAMING_DOCS = "https://platform.openai.com/docs/api-reference/chat-streaming"


async def request_chat(s: Session, body: JsonObject, feature: str | None = None) -> JsonObject:
    return (await s.request(PATH, {**body, "model": s.model}, feature=feature)).json()


def is_seconds(value: object) -> bool:
    """Whether the value is a recent Unix time in seconds (2017 to 2128), not in
    milliseconds.
    """
    return (
        isinstance(value, int)
        and not isinstance(value, bool)
        and 1_500_000_000 < value < 5_000_000_000
    )


Predicate = Callable[[JsonObject], object]
FIELDS: tuple[tuple[str, str, Predicate, Level], ...] = (
    (
        "object",
        "`object` is `chat.completion`.",
        lambda r: r["object"] == "chat.completion",
        "must",
    ),
    (
        "id",
        "`id` is a non-empty string.",
        lambda r: isinstance(r["id"], str) and r["id"],
        "must",
    ),
    ("created", "`created` is a Unix time in seconds.", lambda r: is_seconds(r["created"]), "must"),
    (
        "model",
        "`model` is a non-empty string.",
        lambda r: isinstance(r["model"], str) and r["model"],
        "must",
    ),
    (
        "index",
        "The `index` of the choices counts from 0.",
        lambda r: [c["index"] for c in r["choices"]] == [0],
        "must",
    ),
    (
        "role",
        "`message.role` is `assistant`.",
        lambda r: r["choices"][0]["message"]["role"] == "assistant",
        "must",
    ),
    (
        "content",
        "`message.content` is present, possibly `null`.",
        lambda r: "content" in r["choices"][0]["message"],
        "must",
    ),
    (
        "refusal",
        "`message.refusal` is present, possibly `null`.",
        lambda r: "refusal" in r["choices"][0]["message"],
        "should",
    ),
    (
        "logprobs-null",
        "`logprobs` is present in every choice, possibly `null`.",
        lambda r: "logprobs" in r["choices"][0],
        "should",
    ),
    (
        "finish-reason",
        "`finish_reason` is `stop`, `length` or `content_filter`.",
        lambda r: r["choices"][0]["finish_reason"] in ("stop", "length", "content_filter"),
        "must",
    ),
    (
        "no-null-calls",
        "`tool_calls` is absent, not `null` or empty, if there is no tool call.",
        lambda r: r["choices"][0]["message"].get("tool_calls", 1),
        "should",
    ),
    (
        "total-tokens",
        "`total_tokens` is the sum of `prompt_tokens` and `completion_tokens`.",
        lambda r: (
            r["usage"]["total_tokens"]
            == r["usage"]["prompt_tokens"] + r["usage"]["completion_tokens"]
        ),
        "must",
    ),
    (
        "cached-tokens",
        "`cached_tokens` does not exceed `prompt_tokens`.",
        lambda r: (
            (get_object(r["usage"], "prompt_tokens_details").get("cached_tokens") or 0)
            <= r["usage"]["prompt_tokens"]
        ),
        "must",
    ),
    (
        "reasoning-tokens",
        "`reasoning_tokens` does not exceed `completion_tokens`.",
        lambda r: (
            (get_object(r["usage"], "completion_tokens_details").get("reasoning_tokens") or 0)
            <= r["usage"]["completion_tokens"]
        ),
        "must",
    ),
)


def add_fields() -> None:
    def build(predicate: Predicate, rule: str) -> Callable[[Session], Awaitable[None]]:
        async def run(s: Session) -> None:
            reply = (await request_unstreamed(s, CHAT)).json()
            require(predicate(reply), f"rule violated: {rule} The response is {str(reply)[:400]}")

        return run

    for name, rule, predicate, level in FIELDS:
        AREA.add(f"field-{name}", rule, build(predicate, rule), level=level)


add_fields()


async def get_chunks(s: Session) -> list[JsonObject]:
    return parse_chunks((await request_stream(s, CHAT)).body)


def get_choices(chunks: list[JsonObject]) -> list[JsonObject]:
    return [choice for chunk in chunks for choice in chunk["choices"]]


ON_STREAMS: Any = {"source": STREAMING_DOCS}


@AREA.check("The first chunk of a stream has `delta.role`.", **ON_STREAMS)
async def stream_role(s: Session) -> None:
    first = get_choices(await get_chunks(s))[0]
    require(first["delta"].get("role") == "assistant", f"the first delta is {first['delta']}")


@AREA.check("`delta.role` is sent once: clients concatenate repeated values.", **ON_STREAMS)
async def stream_role_once(s: Session) -> None:
    roles = [
        choice["delta"]["role"]
        for choice in get_choices(await get_chunks(s))
        if "role" in choice["delta"]
    ]
    require(len(roles) == 1, f"the roles in the stream are {roles}")


@AREA.check("A stream ends with a single `data: [DONE]`.", **ON_STREAMS)
async def stream_done(s: Session) -> None:
    events = [event.data for event in parse_sse((await request_stream(s, CHAT)).body)]
    require(
        events[-1:] == ["[DONE]"] and events.count("[DONE]") == 1,
        f"the last events are {events[-2:]}",
    )


@AREA.check("`finish_reason` is `null` in all chunks of a choice except the last.", **ON_STREAMS)
async def stream_finish(s: Session) -> None:
    reasons = [choice.get("finish_reason", "absent") for choice in get_choices(await get_chunks(s))]
    require(reasons[-1] in ("stop", "length"), f"the last finish_reason is {reasons[-1]!r}")
    require(
        all(reason is None for reason in reasons[:-1]), f"the values of finish_reason are {reasons}"
    )


def add_constants() -> None:
    def build(name: str) -> Callable[[Session], Awaitable[None]]:
        async def run(s: Session) -> None:
            values = {str(chunk.get(name)) for chunk in await get_chunks(s)}
            require(
                len(values) == 1 and values != {"None"},
                f"the values of {name} are {sorted(values)}",
            )

        return run

    for name in ("id", "model", "created"):
        AREA.add(
            f"stream-{name}",
            f"All chunks of a stream have the same `{name}`.",
            build(name),
            **ON_STREAMS,
        )


add_constants()


@AREA.check("`object` is `chat.completion.chunk` in every chunk.", **ON_STREAMS)
async def stream_object(s: Session) -> None:
    kinds = {chunk["object"] for chunk in await get_chunks(s)}
    require(
        kinds == {"chat.completion.chunk"}, f"the values of object are {sorted(map(str, kinds))}"
    )


@AREA.check("With `include_usage`, the last chunk has `usage` and `choices: []`.", **ON_STREAMS)
async def stream_usage_chunk(s: Session) -> None:
    last = (await get_chunks(s))[-1]
    require(last.get("choices") == [] and last.get("usage"), f"the last chunk is {last}")


@AREA.check(
    "With `include_usage`, `usage` is absent or `null` in all chunks except the last.", **ON_STREAMS
)
async def stream_usage_once(s: Session) -> None:
    early = [chunk["usage"] for chunk in (await get_chunks(s))[:-1] if chunk.get("usage")]
    require(not early, f"usage before the last chunk: {early[:2]}")


@AREA.check(
    "Without `include_usage`, no chunk has `usage` or empty `choices`: clients that sum "
    "usage would count it twice.",
    **ON_STREAMS,
)
async def stream_without_usage(s: Session) -> None:
    exchange = await s.request(PATH, {**CHAT.build_request(s.model, STORY), "stream": True})
    empty = [
        chunk
        for chunk in parse_chunks(exchange.body)
        if not chunk.get("choices") or chunk.get("usage")
    ]
    require(not empty, f"chunks with usage or without choices: {empty[:2]}")


@AREA.check(
    "`delta.role` is never `null`: strict clients reject it.",
    level="should",
)
async def stream_no_null_role(s: Session) -> None:
    nulls = [
        choice["delta"]
        for choice in get_choices(await get_chunks(s))
        if None in (choice["delta"].get("role", 1),)
    ]
    require(not nulls, f"deltas with role null: {nulls[:2]}")


@AREA.check("`delta` is an object in every chunk, including the last.")
async def stream_delta(s: Session) -> None:
    require(
        all(isinstance(c.get("delta"), dict) for c in get_choices(await get_chunks(s))),
        "a chunk has no delta object",
    )


@AREA.check("`max_completion_tokens` limits the output in the same way as `max_tokens`.")
async def max_completion_tokens(s: Session) -> None:
    body = CHAT.build_request(s.model, STORY, 16)
    del body["max_tokens"]
    reply = await request_chat(s, {**body, "max_completion_tokens": 7})
    require(
        reply["usage"]["completion_tokens"] <= 7,
        f"{reply['usage']['completion_tokens']} tokens, the limit is 7",
    )


@AREA.check("`stop` may be a string instead of a list.")
async def stop_text(s: Session) -> None:
    text = (await request_reproducible(s, CHAT)).text
    if text.count(" ") < 3:
        raise Skipped("the text is too short for a stop string")
    reply = await request_chat(s, CHAT.build_request(s.model, STORY, stop=" "))
    require(
        " " not in read_chat(reply).text,
        f"with the stop string ' ' the text is {read_chat(reply).text!r}",
    )


@AREA.check("`n` choices have the indices 0 to n-1, and usage counts the tokens of all of them.")
async def n(s: Session) -> None:
    reply = await request_chat(
        s, {**CHAT.build_request(s.model, STORY, 8), "temperature": 1, "n": 3}, "n"
    )
    require(
        [c["index"] for c in reply["choices"]] == [0, 1, 2],
        f"the indices are {[c['index'] for c in reply['choices']]}",
    )
    # One choice has at most 8 tokens: a usage of 8 or less counts only the first
    # choice.
    tokens = reply["usage"]["completion_tokens"]
    require(tokens > 8, f"usage of 3 choices: {reply['usage']}")
    truncated = [choice["finish_reason"] == "length" for choice in reply["choices"]]
    require(
        tokens >= 8 * sum(truncated),
        f"{sum(truncated)} choices were truncated at 8 tokens, usage counts {tokens}",
    )


@AREA.check("In a stream with `n` choices, each choice has its own index, text and finish reason.")
async def n_of_stream(s: Session) -> None:
    body = {**CHAT.build_stream_request(s.model, STORY, 8), "temperature": 1, "n": 2}
    exchange = await s.request(PATH, body, feature="n")
    answers = [fold_chat(exchange.body, index) for index in (0, 1)]
    require(
        all((answer.text or answer.reasoning) and answer.reason for answer in answers),
        f"the choices are {answers}",
    )
    CHAT.check_stream(exchange.body)


def add_accepted() -> None:
    """Add checks of parameters that clients commonly send."""
    values: tuple[tuple[str, JsonObject], ...] = (
        ("user", {"user": "someone"}),
        ("presence-penalty", {"presence_penalty": 0.5}),
        ("frequency-penalty", {"frequency_penalty": 0.5}),
        ("top-p", {"top_p": 0.9}),
        ("logit-bias", {"logit_bias": {"5": 1}}),
        ("tool-choice-none", {"tools": TOOLS, "tool_choice": "none"}),
        ("response-format-text", {"response_format": {"type": "text"}}),
        ("stream-options", {"stream": True, "stream_options": {"include_usage": False}}),
        ("metadata", {"metadata": {"a": "b"}}),
    )

    def build(fields: JsonObject) -> Callable[[Session], Awaitable[None]]:
        async def run(s: Session) -> None:
            exchange = await s.post(PATH, {**CHAT.build_request(s.model, STORY, 8), **fields})
            # An error is acceptable if it names the field: the client can then omit it.
            is_rejected = exchange.status in (400, 422) and any(
                name.encode() in exchange.body for name in fields
            )
            require(
                exchange.status == 200 or is_rejected,
                f"status {exchange.status}: {exchange.message()}",
            )

        return run

    for name, fields in values:
        AREA.add(
            f"accepts-{name}",
            f"`{next(reversed(fields))}` is honoured, or rejected with an error that names it.",
            build(fields),
        )


add_accepted()


def add_roles() -> None:
    user = {"role": "user", "content": "Name a colour."}
    call = {"id": "call_1", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
    conversations: tuple[tuple[str, str, list[JsonObject]], ...] = (
        (
            "system",
            "A `system` message is accepted.",
            [{"role": "system", "content": "Be brief."}, user],
        ),
        (
            "developer",
            "A `developer` message is accepted.",
            [{"role": "developer", "content": "Be brief."}, user],
        ),
        (
            "parts",
            "`content` may be a list of text parts.",
            [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
        ),
        (
            "history",
            "A conversation with several turns is accepted.",
            [
                user,
                {"role": "assistant", "content": "Red."},
                {"role": "user", "content": "Another?"},
            ],
        ),
        (
            "named",
            "A message may have a `name`.",
            [{"role": "user", "name": "ann", "content": "Hi"}],
        ),
        (
            "tool-history",
            "An assistant message with `tool_calls` and `content: null`, and its tool result, are "
            "accepted.",
            [
                user,
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call_1", "content": "12:00"},
            ],
        ),
        (
            "reasoning-history",
            "An assistant message with `reasoning_content` is accepted.",
            [user, {"role": "assistant", "content": "Red.", "reasoning_content": "Hm."}, user],
        ),
    )

    def build(messages: list[JsonObject]) -> Callable[[Session], Awaitable[None]]:
        async def run(s: Session) -> None:
            body = {**CHAT.build_request(s.model, "", 16), "messages": messages}
            if any("tool_calls" in message for message in messages):
                body["tools"] = TOOLS
            reply = await request_chat(s, body)
            require(reply["choices"], "the response has no choices")

        return run

    for name, rule, messages in conversations:
        AREA.add(f"accepts-{name}-messages", rule, build(messages))


add_roles()


@AREA.check("The system message is part of the prompt.")
async def system_counts(s: Session) -> None:
    user = {"role": "user", "content": "Hi"}
    counts: list[int] = []
    for words in (1, 31):
        system = {"role": "system", "content": "apple " * words}
        reply = await request_chat(
            s, {**CHAT.build_request(s.model, "", 8), "messages": [system, user]}
        )
        counts.append(reply["usage"]["prompt_tokens"])
    require(counts[1] > counts[0] + 20, f"prompt tokens with 1 and 31 words: {counts}")
