"""Checks of tool calls in Chat Completions."""

from __future__ import annotations

from typing import Any

from ..client_answer import fold_chat, read_chat
from ..dialects import CHAT
from ..rules.json_values import require
from ..session import Json, Session, get_object, get_objects
from ..sse import parse_chunks
from .chat import AREA, PATH, ask_chat, get_choices
from .sample_schemas import check_schema
from .sample_tools import NAMED, TIME, WEATHER, build_tools, check_call


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
