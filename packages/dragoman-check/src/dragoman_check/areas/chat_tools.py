"""Checks of tool calls in Chat Completions."""

from __future__ import annotations

from typing import Any

from ..dialects import CHAT
from ..json_objects import get_object, get_objects
from ..parsed_response import fold_chat, read_chat
from ..rules.json_values import JsonObject, require
from ..session import Session
from ..sse import parse_chunks
from .chat import AREA, PATH, get_choices, request_chat
from .sample_schemas import check_schema
from .sample_tools import NAMED, TIME, WEATHER, build_tools, check_call


async def request_call(s: Session, choice: Any, key: str) -> JsonObject:
    async def request() -> JsonObject:
        return await request_chat(s, build_tools(tool_choice=choice), "forced tools")

    return await s.share(f"chat.{key}", request)


@AREA.check("`tool_choice: required` returns a tool call whose arguments match the schema.")
async def tool_required(s: Session) -> None:
    answer = read_chat(await request_call(s, "required", "required"))
    require(answer.calls, f"no tool call: the text is {answer.text[:80]!r}")
    for name, arguments in answer.calls:
        require(name in ("get_weather", "get_time"), f"a call of the undeclared tool {name!r}")
        check_schema(arguments, WEATHER if name == "get_weather" else TIME)


@AREA.check("A `tool_choice` that names a tool returns a call of that tool.")
async def tool_named(s: Session) -> None:
    check_call(read_chat(await request_call(s, NAMED, "named")))


@AREA.check("A tool call has an `id`, `type: function`, a name, and `arguments` as a string.")
async def tool_call_form(s: Session) -> None:
    reply = await request_call(s, NAMED, "named")
    for call in reply["choices"][0]["message"]["tool_calls"]:
        require(call.get("id") and call.get("type") == "function", f"the call is {call}")
        require(
            isinstance(call["function"]["arguments"], str),
            f"arguments are {call['function']['arguments']!r}",
        )


@AREA.check(
    "With `tool_choice: required`, `finish_reason` is `tool_calls` (OpenAI returns `stop` "
    "for a named tool)."
)
async def tool_finish(s: Session) -> None:
    reply = await request_call(s, "required", "required")
    require(
        reply["choices"][0]["finish_reason"] == "tool_calls",
        f"finish_reason is {reply['choices'][0]['finish_reason']!r}",
    )


@AREA.check("With `tool_choice: required`, the `finish_reason` of a stream is `tool_calls`.")
async def tool_finish_of_stream(s: Session) -> None:
    body = {
        **build_tools(tool_choice="required"),
        "model": s.model,
        "stream": True,
        **CHAT.stream_options,
    }
    choices = get_choices(parse_chunks((await s.request(PATH, body, feature="forced tools")).body))
    reasons = [choice["finish_reason"] for choice in choices if choice.get("finish_reason")]
    require(reasons in (["tool_calls"], ["length"]), f"the values of finish_reason are {reasons}")


@AREA.check("Tool call ids are unique across responses.")
async def tool_call_ids(s: Session) -> None:
    replies = [
        await request_chat(s, build_tools(tool_choice=NAMED), "forced tools") for _ in range(2)
    ]
    ids = [call["id"] for reply in replies for call in reply["choices"][0]["message"]["tool_calls"]]
    require(len(set(ids)) == len(ids), f"the ids are {ids}")


async def request_call_stream(s: Session) -> bytes:
    async def request() -> bytes:
        body = {
            **build_tools(tool_choice=NAMED),
            "model": s.model,
            "stream": True,
            **CHAT.stream_options,
        }
        return (await s.request(PATH, body, feature="forced tools")).body

    return await s.share("chat.call-stream", request)


@AREA.check("A streamed tool call equals the tool call of the non-streamed response.")
async def tool_of_stream(s: Session) -> None:
    expected = read_chat(await request_call(s, NAMED, "named"))
    answer = fold_chat(await request_call_stream(s))
    check_call(answer)
    again = read_chat(await request_chat(s, build_tools(tool_choice=NAMED), "forced tools"))
    # Servers that are not deterministic may sample different calls, which cannot be
    # compared.
    if again.calls == expected.calls:
        require(
            answer.calls == expected.calls,
            f"stream: {answer.calls}, non-streamed: {expected.calls}",
        )


@AREA.check("A streamed tool call has its id, type and name once, followed by its arguments.")
async def tool_stream_form(s: Session) -> None:
    CHAT.check_stream(await request_call_stream(s))


@AREA.check("Every delta of a tool call has an `index`.")
async def tool_stream_index(s: Session) -> None:
    calls = [
        call
        for c in get_choices(parse_chunks(await request_call_stream(s)))
        for call in get_objects(c["delta"], "tool_calls")
    ]
    require(
        calls and all(isinstance(call.get("index"), int) for call in calls),
        f"the deltas are {calls[:3]}",
    )


@AREA.check("The name of a tool call is sent once: clients concatenate repeated values.")
async def tool_stream_name_once(s: Session) -> None:
    calls = [
        call
        for c in get_choices(parse_chunks(await request_call_stream(s)))
        for call in get_objects(c["delta"], "tool_calls")
    ]
    named = [call.get("index") for call in calls if "name" in get_object(call, "function")]
    require(
        named and len(named) == len(set(named)), f"indices of the deltas that have a name: {named}"
    )


@AREA.check("`tool_choice: none` returns no tool call.")
async def tool_none(s: Session) -> None:
    answer = read_chat(
        await request_chat(s, {**build_tools(tool_choice="none"), "max_tokens": 64}, "tools")
    )
    require(not answer.calls, f"the tool calls are {answer.calls}")


@AREA.check("A tool call that is truncated by the token limit has `finish_reason: length`.")
async def tool_cut(s: Session) -> None:
    # Three tokens are too few for the arguments of any call format.
    reply = await request_chat(
        s, {**build_tools(tool_choice=NAMED), "max_tokens": 3}, "forced tools"
    )
    reason = reply["choices"][0]["finish_reason"]
    require(reason == "length", f"finish_reason is {reason!r} after 3 tokens of a tool call")
