"""Checks of Chat Completions: fields, choices, logprobs, tools, structured output."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable
from typing import Any

import jsonschema_rs

from ..rules.checks import Violation, check_chat_logprobs, require
from ..dialects import (
    CHAT,
    ClientAnswer,
    check_error_basics,
    fold_chat,
    parse_chunks,
    parse_sse,
    read_chat,
)
from ..session import Json, Level, Session, Skipped, get_object, get_objects
from .generation import AREAS, STORY, ask_deterministic, ask_stream, ask_whole

AREA = AREAS["chat"]
PATH = CHAT.path
WEATHER: Json = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "unit": {"enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
TIME: Json = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
TOOLS: list[Json] = [
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
RULES_OF_STREAMS = "https://platform.openai.com/docs/api-reference/chat-streaming"


def build_tools(**fields: Any) -> Json:
    return {**CHAT.ask("", QUESTION, 300), "tools": TOOLS, **fields}


async def ask_chat(s: Session, body: Json, feature: str | None = None) -> Json:
    return (await s.ask(PATH, {**body, "model": s.model}, feature=feature)).json()


def is_seconds(value: object) -> bool:
    """Whether the value is a recent Unix time in seconds (2017 to 2128), not in
    milliseconds.
    """
    return (
        isinstance(value, int)
        and not isinstance(value, bool)
        and 1_500_000_000 < value < 5_000_000_000
    )


Judge = Callable[[Json], object]
FIELDS: tuple[tuple[str, str, Judge, Level], ...] = (
    (
        "object",
        "`object` is `chat.completion`.",
        lambda r: r["object"] == "chat.completion",
        "must",
    ),
    (
        "id",
        "`id` is a text that is not empty.",
        lambda r: isinstance(r["id"], str) and r["id"],
        "must",
    ),
    ("created", "`created` is a time in seconds.", lambda r: is_seconds(r["created"]), "must"),
    (
        "model",
        "`model` is the name of a model.",
        lambda r: isinstance(r["model"], str) and r["model"],
        "must",
    ),
    (
        "index",
        "The choices are numbered from 0.",
        lambda r: [c["index"] for c in r["choices"]] == [0],
        "must",
    ),
    (
        "role",
        "The message's role is `assistant`.",
        lambda r: r["choices"][0]["message"]["role"] == "assistant",
        "must",
    ),
    (
        "content",
        "The message has `content`, null or not.",
        lambda r: "content" in r["choices"][0]["message"],
        "must",
    ),
    (
        "refusal",
        "The message has `refusal`, null or not.",
        lambda r: "refusal" in r["choices"][0]["message"],
        "should",
    ),
    (
        "logprobs-null",
        "A choice has `logprobs`, null or not.",
        lambda r: "logprobs" in r["choices"][0],
        "should",
    ),
    (
        "finish-reason",
        "`finish_reason` is one of OpenAI's.",
        lambda r: r["choices"][0]["finish_reason"] in ("stop", "length", "content_filter"),
        "must",
    ),
    (
        "no-null-calls",
        "`tool_calls` is absent, not null or empty, without a call.",
        lambda r: r["choices"][0]["message"].get("tool_calls", 1),
        "should",
    ),
    (
        "total-tokens",
        "`total_tokens` is the sum of prompt and completion tokens.",
        lambda r: (
            r["usage"]["total_tokens"]
            == r["usage"]["prompt_tokens"] + r["usage"]["completion_tokens"]
        ),
        "must",
    ),
    (
        "cached-tokens",
        "The cached tokens are part of the prompt's.",
        lambda r: (
            (get_object(r["usage"], "prompt_tokens_details").get("cached_tokens") or 0)
            <= r["usage"]["prompt_tokens"]
        ),
        "must",
    ),
    (
        "reasoning-tokens",
        "The reasoning tokens are part of the completion's.",
        lambda r: (
            (get_object(r["usage"], "completion_tokens_details").get("reasoning_tokens") or 0)
            <= r["usage"]["completion_tokens"]
        ),
        "must",
    ),
)


def add_fields() -> None:
    def build(judge: Judge, rule: str) -> Callable[[Session], Awaitable[None]]:
        async def run(s: Session) -> None:
            reply = (await ask_whole(s, CHAT)).json()
            require(judge(reply), f"rule violated: {rule} {str(reply)[:400]}")

        return run

    for name, rule, judge, level in FIELDS:
        AREA.add(f"field-{name}", rule, build(judge, rule), level=level)


add_fields()


async def get_chunks(s: Session) -> list[Json]:
    return parse_chunks((await ask_stream(s, CHAT)).body)


def get_choices(chunks: list[Json]) -> list[Json]:
    return [choice for chunk in chunks for choice in chunk["choices"]]


ON_STREAMS: Any = {"source": RULES_OF_STREAMS}


@AREA.check("The first chunk of a stream has the role.", **ON_STREAMS)
async def stream_role(s: Session) -> None:
    first = get_choices(await get_chunks(s))[0]
    require(first["delta"].get("role") == "assistant", f"the first delta is {first['delta']}")


@AREA.check("The role is sent once: accumulators append it to itself.", **ON_STREAMS)
async def stream_role_once(s: Session) -> None:
    roles = [
        choice["delta"]["role"]
        for choice in get_choices(await get_chunks(s))
        if "role" in choice["delta"]
    ]
    require(len(roles) == 1, f"roles in the stream: {roles}")


@AREA.check("A stream ends with `data: [DONE]`, and nothing follows.", **ON_STREAMS)
async def stream_done(s: Session) -> None:
    events = [event.data for event in parse_sse((await ask_stream(s, CHAT)).body)]
    require(
        events[-1:] == ["[DONE]"] and events.count("[DONE]") == 1,
        f"the last events are {events[-2:]}",
    )


@AREA.check(
    "`finish_reason` comes once, in the last chunk of the choice, and is null before.", **ON_STREAMS
)
async def stream_finish(s: Session) -> None:
    reasons = [choice.get("finish_reason", "absent") for choice in get_choices(await get_chunks(s))]
    require(reasons[-1] in ("stop", "length"), f"the last is {reasons[-1]!r}")
    require(all(reason is None for reason in reasons[:-1]), f"the reasons are {reasons}")


def add_constants() -> None:
    def build(name: str) -> Callable[[Session], Awaitable[None]]:
        async def run(s: Session) -> None:
            values = {str(chunk.get(name)) for chunk in await get_chunks(s)}
            require(len(values) == 1 and values != {"None"}, f"{name} is {sorted(values)}")

        return run

    for name in ("id", "model", "created"):
        AREA.add(
            f"stream-{name}",
            f"All chunks of a stream have the same `{name}`.",
            build(name),
            **ON_STREAMS,
        )


add_constants()


@AREA.check("Every chunk's `object` is `chat.completion.chunk`.", **ON_STREAMS)
async def stream_object(s: Session) -> None:
    kinds = {chunk["object"] for chunk in await get_chunks(s)}
    require(kinds == {"chat.completion.chunk"}, f"object is {sorted(map(str, kinds))}")


@AREA.check("With `include_usage` the last chunk has usage and `choices: []`.", **ON_STREAMS)
async def stream_usage_chunk(s: Session) -> None:
    last = (await get_chunks(s))[-1]
    require(last.get("choices") == [] and last.get("usage"), f"the last chunk is {last}")


@AREA.check("With `include_usage` the chunks before the last have no counts.", **ON_STREAMS)
async def stream_usage_once(s: Session) -> None:
    early = [chunk["usage"] for chunk in (await get_chunks(s))[:-1] if chunk.get("usage")]
    require(not early, f"usage before the end: {early[:2]}")


@AREA.check(
    "Without `include_usage` there is no usage chunk: clients that add them up count it twice.",
    **ON_STREAMS,
)
async def stream_without_usage(s: Session) -> None:
    exchange = await s.ask(PATH, {**CHAT.ask(s.model, STORY), "stream": True})
    empty = [
        chunk
        for chunk in parse_chunks(exchange.body)
        if not chunk.get("choices") or chunk.get("usage")
    ]
    require(not empty, f"chunks with usage or without choices: {empty[:2]}")


@AREA.check(
    "A delta has no null where a text belongs: zod-strict clients reject `role: null`.",
    level="should",
)
async def stream_no_null_role(s: Session) -> None:
    nulls = [
        choice["delta"]
        for choice in get_choices(await get_chunks(s))
        if None in (choice["delta"].get("role", 1),)
    ]
    require(not nulls, f"deltas with null: {nulls[:2]}")


@AREA.check("`delta` is an object in every chunk, also in the last.")
async def stream_delta(s: Session) -> None:
    require(
        all(isinstance(c.get("delta"), dict) for c in get_choices(await get_chunks(s))),
        "a chunk without a delta",
    )


@AREA.check("`max_completion_tokens` limits the answer as `max_tokens` does.")
async def max_completion_tokens(s: Session) -> None:
    body = CHAT.ask(s.model, STORY, 16)
    del body["max_tokens"]
    reply = await ask_chat(s, {**body, "max_completion_tokens": 7})
    require(
        reply["usage"]["completion_tokens"] <= 7,
        f"{reply['usage']['completion_tokens']} tokens, the limit is 7",
    )


@AREA.check("A stop string may be one text instead of a list.")
async def stop_text(s: Session) -> None:
    text = (await ask_deterministic(s, CHAT)).text
    if text.count(" ") < 3:
        raise Skipped("the answer is too short for a stop string")
    reply = await ask_chat(s, CHAT.ask(s.model, STORY, stop=" "))
    require(
        " " not in read_chat(reply).text, f"with stop ' ' the text is {read_chat(reply).text!r}"
    )


@AREA.check("`n` choices are numbered 0 to n-1, and usage counts all of them.")
async def n(s: Session) -> None:
    reply = await ask_chat(s, {**CHAT.ask(s.model, STORY, 8), "temperature": 1, "n": 3}, "n")
    require(
        [c["index"] for c in reply["choices"]] == [0, 1, 2],
        f"indices {[c['index'] for c in reply['choices']]}",
    )
    # One choice has at most 8 tokens: a usage of 8 or less counts only the first
    # choice.
    tokens = reply["usage"]["completion_tokens"]
    require(tokens > 8, f"usage of 3 choices: {reply['usage']}")
    cut = [choice["finish_reason"] == "length" for choice in reply["choices"]]
    require(
        tokens >= 8 * sum(cut), f"{sum(cut)} choices were cut at 8 tokens, usage counts {tokens}"
    )


@AREA.check("A stream with `n` interleaves its choices under their own indices, each with one end.")
async def n_of_stream(s: Session) -> None:
    body = {**CHAT.ask_stream(s.model, STORY, 8), "temperature": 1, "n": 2}
    exchange = await s.ask(PATH, body, feature="n")
    answers = [fold_chat(exchange.body, index) for index in (0, 1)]
    require(
        all((answer.text or answer.reasoning) and answer.reason for answer in answers),
        f"the choices are {answers}",
    )
    CHAT.judge(exchange.body)


def add_accepted() -> None:
    """Add checks of parameters that clients commonly send."""
    values: tuple[tuple[str, Json], ...] = (
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

    def build(fields: Json) -> Callable[[Session], Awaitable[None]]:
        async def run(s: Session) -> None:
            exchange = await s.post(PATH, {**CHAT.ask(s.model, STORY, 8), **fields})
            # An error is acceptable if it names the field: then the client can leave it
            # out.
            is_refused = exchange.status in (400, 422) and any(
                name.encode() in exchange.body for name in fields
            )
            require(
                exchange.status == 200 or is_refused,
                f"status {exchange.status}: {exchange.message()}",
            )

        return run

    for name, fields in values:
        AREA.add(
            f"accepts-{name}",
            f"`{next(reversed(fields))}` is honoured, or rejected by name.",
            build(fields),
        )


add_accepted()


def add_roles() -> None:
    user = {"role": "user", "content": "Name a colour."}
    call = {"id": "call_1", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
    conversations: tuple[tuple[str, str, list[Json]], ...] = (
        (
            "system",
            "A system message is accepted.",
            [{"role": "system", "content": "Be brief."}, user],
        ),
        (
            "developer",
            "A developer message is accepted.",
            [{"role": "developer", "content": "Be brief."}, user],
        ),
        (
            "parts",
            "Content may be a list of text parts.",
            [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
        ),
        (
            "history",
            "A conversation of several turns is accepted.",
            [
                user,
                {"role": "assistant", "content": "Red."},
                {"role": "user", "content": "Another?"},
            ],
        ),
        ("named", "A message may have a name.", [{"role": "user", "name": "ann", "content": "Hi"}]),
        (
            "tool-history",
            "A call and its result are accepted, with `content: null` beside the call.",
            [
                user,
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call_1", "content": "12:00"},
            ],
        ),
        (
            "reasoning-history",
            "A turn with `reasoning_content` is accepted, as clients replay it.",
            [user, {"role": "assistant", "content": "Red.", "reasoning_content": "Hm."}, user],
        ),
    )

    def build(messages: list[Json]) -> Callable[[Session], Awaitable[None]]:
        async def run(s: Session) -> None:
            body = {**CHAT.ask(s.model, "", 16), "messages": messages}
            if any("tool_calls" in message for message in messages):
                body["tools"] = TOOLS
            reply = await ask_chat(s, body)
            require(reply["choices"], "no choice")

        return run

    for name, rule, messages in conversations:
        AREA.add(f"accepts-{name}-messages", rule, build(messages))


add_roles()


@AREA.check("The messages before the last are part of the prompt.")
async def history_counts(s: Session) -> None:
    async def count(*contents: str) -> int:
        roles = ("user", "assistant", "user")
        messages = [
            {"role": role, "content": text} for role, text in zip(roles, contents, strict=False)
        ]
        reply = await ask_chat(s, {**CHAT.ask(s.model, "", 8), "messages": messages})
        return reply["usage"]["prompt_tokens"]

    short, long = (
        await count("Hi", "Hello", "Go on"),
        await count("Hi " + "apple " * 30, "Hello", "Go on"),
    )
    # 30 words are at least 20 tokens with any tokenizer. The check finds chat templates
    # that drop old turns.
    require(
        long > short + 20, f"30 words more in an earlier turn are {short} and {long} prompt tokens"
    )


@AREA.check("The system message is part of the prompt.")
async def system_counts(s: Session) -> None:
    user = {"role": "user", "content": "Hi"}
    counts: list[int] = []
    for words in (1, 31):
        system = {"role": "system", "content": "apple " * words}
        reply = await ask_chat(s, {**CHAT.ask(s.model, "", 8), "messages": [system, user]})
        counts.append(reply["usage"]["prompt_tokens"])
    require(counts[1] > counts[0] + 20, f"30 words more are {counts} prompt tokens")


@AREA.check("The tools are part of the prompt.")
async def tools_count(s: Session) -> None:
    plain = await ask_chat(s, CHAT.ask(s.model, QUESTION, 8))
    reply = await ask_chat(s, {**build_tools(tool_choice="auto"), "max_tokens": 8}, "tools")
    require(
        reply["usage"]["prompt_tokens"] > plain["usage"]["prompt_tokens"] + 10,
        f"usage with tools {reply['usage']}",
    )


# Logprobs.


async def ask_logprobs(s: Session) -> Json:
    async def ask() -> Json:
        return await ask_chat(
            s, CHAT.ask(s.model, STORY, 12, logprobs=True, top_logprobs=3), "logprobs"
        )

    return await s.share("chat.logprobs", ask)


def get_entries(reply: Json) -> list[Json]:
    logprobs = reply["choices"][0].get("logprobs")
    require(logprobs and logprobs.get("content"), f"logprobs were requested, and are {logprobs!r}")
    return logprobs["content"]


@AREA.check("Logprobs have token, logprob, bytes and top_logprobs, and no logprob is above 0.")
async def logprobs_form(s: Session) -> None:
    reply = await ask_logprobs(s)
    get_entries(reply)
    check_chat_logprobs(reply["choices"][0]["logprobs"], "logprobs")


@AREA.check("There is one logprob for each token of the text.")
async def logprobs_per_token(s: Session) -> None:
    reply = await ask_logprobs(s)
    count = len(get_entries(reply))
    tokens = reply["usage"]["completion_tokens"]
    is_plain = not read_chat(reply).reasoning
    # The EOS token may have no logprob.
    require(count in (tokens, tokens - 1) or not is_plain, f"{count} logprobs of {tokens} tokens")


@AREA.check(
    "The tokens of the logprobs, joined, are the text.", level="should", except_for=("vllm",)
)
async def logprobs_text(s: Session) -> None:
    reply = await ask_logprobs(s)
    # Compare bytes: a character may span several tokens, and the text of each is then
    # U+FFFD.
    joined = b"".join(
        bytes(entry["bytes"] or entry["token"].encode()) for entry in get_entries(reply)
    )
    text = read_chat(reply).text
    require(
        joined.decode(errors="replace").startswith(text),
        f"the tokens say {joined!r}, the text is {text!r}",
    )


@AREA.check("`top_logprobs` are as many as requested, the likeliest first.")
async def logprobs_top(s: Session) -> None:
    for entry in get_entries(await ask_logprobs(s)):
        values = [top["logprob"] for top in entry["top_logprobs"]]
        total = sum(math.exp(value) for value in values[:3])
        # Under a constraint fewer tokens may be possible; their probabilities then add
        # up to 1.
        require(len(values) in (3, 4) or total > 0.999, f"3 were requested, {len(values)} came")
        require(values[:3] == sorted(values[:3], reverse=True), f"they are not sorted: {values}")
        require(total < 1.01, f"their probabilities add up to more than 1: {values}")


@AREA.check("The sampled token of a greedy answer is the first of its `top_logprobs`.")
async def logprobs_greedy(s: Session) -> None:
    for entry in get_entries(await ask_logprobs(s)):
        # The tolerance is for ties of half-precision logits, which a sorting kernel may
        # order differently.
        best = max(top["logprob"] for top in entry["top_logprobs"])
        require(
            entry["logprob"] >= best - 0.2,
            f"{entry['token']!r} at {entry['logprob']}, the best is {best}",
        )


@AREA.check("The stream's logprobs are those of the whole answer.")
async def logprobs_of_stream(s: Session) -> None:
    await ask_deterministic(s, CHAT)
    tokens = [entry["token"] for entry in get_entries(await ask_logprobs(s))]
    body = CHAT.ask_stream(s.model, STORY, 12, logprobs=True, top_logprobs=3)
    choices = get_choices(parse_chunks((await s.ask(PATH, body, feature="logprobs")).body))
    streamed = [
        entry["token"]
        for c in choices
        if c.get("logprobs")
        for entry in get_objects(c["logprobs"], "content")
    ]
    require(streamed == tokens, f"streamed {streamed}, whole {tokens}")


# Tools.


def check_call(answer: ClientAnswer, name: str = "get_weather", schema: Json = WEATHER) -> None:
    require(answer.calls, f"no tool call: the text is {answer.text[:80]!r}")
    called_name, arguments = answer.calls[0]
    require(called_name == name, f"the call is of {called_name!r}")
    check_schema(arguments, schema)
    leaked = [mark for mark in CALL_MARKS if mark in answer.text]
    require(not leaked, f"the text has the call's markup {leaked}: {answer.text[:80]!r}")


def check_schema(text: str, schema: Json) -> None:
    try:
        jsonschema_rs.validate(schema, json.loads(text))
    except (jsonschema_rs.ValidationError, ValueError) as error:
        raise Violation(f"{text[:200]!r} does not match its schema: {str(error)[:200]}") from None


async def ask_call(s: Session, choice: Any, key: str) -> Json:
    async def ask() -> Json:
        return await ask_chat(s, build_tools(tool_choice=choice), "forced tools")

    return await s.share(f"chat.{key}", ask)


@AREA.check("`tool_choice: required` is answered with a call whose arguments match the schema.")
async def tool_required(s: Session) -> None:
    answer = read_chat(await ask_call(s, "required", "required"))
    require(answer.calls, f"no tool call: the text is {answer.text[:80]!r}")
    for name, arguments in answer.calls:
        require(name in ("get_weather", "get_time"), f"a call of {name!r}, which is not declared")
        check_schema(arguments, WEATHER if name == "get_weather" else TIME)


@AREA.check("A named `tool_choice` is answered with a call of that tool.")
async def tool_named(s: Session) -> None:
    check_call(read_chat(await ask_call(s, NAMED, "named")))


@AREA.check("A call has an id, the type `function`, a name and arguments as text.")
async def tool_call_form(s: Session) -> None:
    reply = await ask_call(s, NAMED, "named")
    for call in reply["choices"][0]["message"]["tool_calls"]:
        require(call.get("id") and call.get("type") == "function", f"the call is {call}")
        require(
            isinstance(call["function"]["arguments"], str),
            f"arguments are {call['function']['arguments']!r}",
        )


@AREA.check(
    "An answer with a required call ends with `tool_calls`; OpenAI says `stop` for a named tool."
)
async def tool_finish(s: Session) -> None:
    reply = await ask_call(s, "required", "required")
    require(
        reply["choices"][0]["finish_reason"] == "tool_calls",
        f"it is {reply['choices'][0]['finish_reason']!r}",
    )


@AREA.check("A stream with a required call ends with `tool_calls`, as the whole answer does.")
async def tool_finish_of_stream(s: Session) -> None:
    body = {
        **build_tools(tool_choice="required"),
        "model": s.model,
        "stream": True,
        **CHAT.stream_options,
    }
    choices = get_choices(parse_chunks((await s.ask(PATH, body, feature="forced tools")).body))
    reasons = [choice["finish_reason"] for choice in choices if choice.get("finish_reason")]
    require(reasons in (["tool_calls"], ["length"]), f"the reasons are {reasons}")


@AREA.check("The ids of calls differ from answer to answer.")
async def tool_call_ids(s: Session) -> None:
    replies = [await ask_chat(s, build_tools(tool_choice=NAMED), "forced tools") for _ in range(2)]
    ids = [call["id"] for reply in replies for call in reply["choices"][0]["message"]["tool_calls"]]
    require(len(set(ids)) == len(ids), f"the ids are {ids}")


async def stream_call(s: Session) -> bytes:
    async def ask() -> bytes:
        body = {
            **build_tools(tool_choice=NAMED),
            "model": s.model,
            "stream": True,
            **CHAT.stream_options,
        }
        return (await s.ask(PATH, body, feature="forced tools")).body

    return await s.share("chat.call-stream", ask)


@AREA.check("A streamed call is the call of the whole answer.")
async def tool_of_stream(s: Session) -> None:
    expected = read_chat(await ask_call(s, NAMED, "named"))
    answer = fold_chat(await stream_call(s))
    check_call(answer)
    again = read_chat(await ask_chat(s, build_tools(tool_choice=NAMED), "forced tools"))
    # Servers that are not deterministic may sample different calls, which cannot be
    # compared.
    if again.calls == expected.calls:
        require(answer.calls == expected.calls, f"streamed {answer.calls}, whole {expected.calls}")


@AREA.check("A stream with a call follows the grammar: id, type and name once, then arguments.")
async def tool_stream_form(s: Session) -> None:
    CHAT.judge(await stream_call(s))


@AREA.check("Every delta of a call has its index.")
async def tool_stream_index(s: Session) -> None:
    calls = [
        call
        for c in get_choices(parse_chunks(await stream_call(s)))
        for call in get_objects(c["delta"], "tool_calls")
    ]
    require(
        calls and all(isinstance(call.get("index"), int) for call in calls),
        f"the deltas are {calls[:3]}",
    )


@AREA.check("The name of a call is sent once: accumulators append it to itself.")
async def tool_stream_name_once(s: Session) -> None:
    calls = [
        call
        for c in get_choices(parse_chunks(await stream_call(s)))
        for call in get_objects(c["delta"], "tool_calls")
    ]
    named = [call.get("index") for call in calls if "name" in get_object(call, "function")]
    require(named and len(named) == len(set(named)), f"calls whose deltas have a name: {named}")


@AREA.check("`tool_choice: none` is answered without a call.")
async def tool_none(s: Session) -> None:
    answer = read_chat(
        await ask_chat(s, {**build_tools(tool_choice="none"), "max_tokens": 64}, "tools")
    )
    require(not answer.calls, f"calls {answer.calls}")


@AREA.check("`parallel_tool_calls: false` allows one call at most.")
async def tool_parallel(s: Session) -> None:
    body = build_tools(tool_choice="required", parallel_tool_calls=False)
    answer = read_chat(await ask_chat(s, body, "forced tools"))
    require(len(answer.calls) == 1, f"{len(answer.calls)} calls")


@AREA.check("A call that the limit of tokens cuts off ends with `length`.")
async def tool_cut(s: Session) -> None:
    # Three tokens are too few for the arguments of any call format.
    reply = await ask_chat(s, {**build_tools(tool_choice=NAMED), "max_tokens": 3}, "forced tools")
    reason = reply["choices"][0]["finish_reason"]
    require(reason == "length", f"3 tokens of a call end with {reason!r}")


NAMELESS_TOOLS: list[Json] = [{"type": "function", "function": {"parameters": {}}}]
INVALID_SCHEMA = {
    "type": "json_schema",
    "json_schema": {"name": "x", "schema": {"type": "wizard"}, "strict": True},
}
REJECTED: tuple[tuple[str, str, Json, tuple[str, ...]], ...] = (
    ("n-zero", "`n: 0` is rejected.", {"n": 0}, ()),
    ("n-of-wrong-type", "An `n` that is a word is rejected.", {"n": "two"}, ()),
    (
        "penalty",
        "A `presence_penalty` above 2 is rejected.",
        {"presence_penalty": 5},
        ("llamacpp", "ollama"),
    ),
    (
        "frequency",
        "A `frequency_penalty` below -2 is rejected.",
        {"frequency_penalty": -5},
        ("llamacpp", "ollama"),
    ),
    (
        "high-temperature",
        "A temperature above 2 is rejected.",
        {"temperature": 2.5},
        ("vllm", "llamacpp", "ollama", "sglang"),
    ),
    (
        "top-logprobs-alone",
        "`top_logprobs` without `logprobs` is rejected.",
        {"top_logprobs": 2},
        ("llamacpp", "ollama", "sglang"),
    ),
    (
        "many-top-logprobs",
        "More than 20 `top_logprobs` are rejected.",
        {"logprobs": True, "top_logprobs": 99},
        ("llamacpp",),
    ),
    ("stop-of-wrong-type", "A `stop` that is a number is rejected.", {"stop": 5}, ()),
    ("seed-of-wrong-type", "A `seed` that is a word is rejected.", {"seed": "x"}, ("ollama",)),
    (
        "logit-bias-of-wrong-type",
        "A `logit_bias` that is a list of words is rejected.",
        {"logit_bias": ["a"]},
        ("ollama",),
    ),
    ("tools-of-wrong-type", "`tools` that are not a list are rejected.", {"tools": {"a": 1}}, ()),
    (
        "tool-without-name",
        "A tool without a name is rejected.",
        {"tools": NAMELESS_TOOLS},
        ("ollama",),
    ),
    (
        "unknown-tool-choice",
        "A `tool_choice` that names no declared tool is rejected.",
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "nothing"}}},
        ("ollama",),
    ),
    (
        "response-format",
        "A `response_format` of an unknown type is rejected.",
        {"response_format": {"type": "x"}},
        ("ollama",),
    ),
    (
        "schema-without-schema",
        "A json_schema without a schema is rejected.",
        {"response_format": {"type": "json_schema"}},
        ("ollama",),
    ),
    (
        "invalid-schema",
        "A JSON Schema that is none is rejected.",
        {"response_format": INVALID_SCHEMA},
        ("ollama",),
    ),
    (
        "stream-options-alone",
        "`stream_options` without `stream` is rejected.",
        {"stream_options": {"include_usage": True}},
        ("llamacpp", "ollama", "sglang"),
    ),
)


def add_rejected() -> None:
    """Add checks of values that OpenAI's reference excludes, in fields that only this
    API has.
    """

    def build(fields: Json) -> Callable[[Session], Awaitable[None]]:
        async def run(s: Session) -> None:
            exchange = await s.post(PATH, {**CHAT.ask(s.model, "Hello", 16), **fields})
            require(
                exchange.status in (400, 422), f"status {exchange.status}: {exchange.body[:200]!r}"
            )
            check_error_basics(exchange.json())

        return run

    for name, rule, fields, except_for in REJECTED:
        AREA.add(f"rejects-{name}", rule, build(fields), except_for=except_for, level="should")


add_rejected()


# Structured output.

PERSON: Json = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 10},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "colours": {
            "type": "array",
            "items": {"enum": ["red", "blue"]},
            "minItems": 1,
            "maxItems": 2,
        },
    },
    "required": ["name", "age", "colours"],
    "additionalProperties": False,
}


def build_schema(schema: Json, name: str = "answer") -> Json:
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": True}}


def add_schemas() -> None:
    def wrap(value: Json) -> Json:
        return {
            "type": "object",
            "properties": {"a": value},
            "required": ["a"],
            "additionalProperties": False,
        }

    schemas: tuple[tuple[str, str, Json], ...] = (
        ("object", "objects with required fields", PERSON),
        ("enum", "enum", wrap({"enum": ["north", "south"]})),
        ("boolean", "booleans", wrap({"type": "boolean"})),
        ("const", "const", wrap({"const": "fixed text"})),
        ("any-of", "anyOf", wrap({"anyOf": [{"type": "boolean"}, {"enum": ["x"]}]})),
        (
            "ref",
            "$ref to $defs",
            {**wrap({"$ref": "#/$defs/c"}), "$defs": {"c": {"enum": ["red", "green"]}}},
        ),
        (
            "array",
            "arrays with minItems and maxItems",
            wrap({"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2}),
        ),
        ("range", "minimum and maximum", wrap({"type": "integer", "minimum": 10, "maximum": 20})),
        ("pattern", "pattern", wrap({"type": "string", "pattern": "^[A-C]{2}-[0-9]$"})),
    )

    def build(schema: Json) -> Callable[[Session], Awaitable[None]]:
        async def run(s: Session) -> None:
            body = CHAT.ask(
                s.model, "Give me an example.", 200, response_format=build_schema(schema)
            )
            answer = read_chat(await ask_chat(s, body, "json_schema"))
            if answer.reason != "length":
                check_schema(answer.text, schema)

        return run

    for name, keywords, schema in schemas:
        AREA.add(
            f"schema-{name}",
            f"A strict JSON Schema with {keywords} is enforced, or rejected.",
            build(schema),
        )


add_schemas()


@AREA.check("A stream under a JSON Schema is the whole answer, and matches the schema.")
async def schema_of_stream(s: Session) -> None:
    body = CHAT.ask_stream(s.model, "Describe a person.", 200, response_format=build_schema(PERSON))
    answer = fold_chat((await s.ask(PATH, body, feature="json_schema")).body)
    if answer.reason != "length":
        check_schema(answer.text, PERSON)


@AREA.check("`json_object` is answered with a JSON object.")
async def json_object(s: Session) -> None:
    body = CHAT.ask(
        s.model, "Describe a person as JSON.", 200, response_format={"type": "json_object"}
    )
    answer = read_chat(await ask_chat(s, body, "json_object"))
    if answer.reason != "length":
        check_schema(answer.text, {"type": "object"})


@AREA.check("A JSON text that the limit cuts off ends with `length`, not with `stop`.")
async def schema_cut(s: Session) -> None:
    body = CHAT.ask(s.model, "Describe a person.", 3, response_format=build_schema(PERSON))
    answer = read_chat(await ask_chat(s, body, "json_schema"))
    require(
        answer.reason == "length", f"3 tokens of JSON end with {answer.reason!r}: {answer.text!r}"
    )
