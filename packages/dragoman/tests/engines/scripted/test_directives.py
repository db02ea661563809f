"""Replies that directives in the prompt define."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.errors import EngineError, RequestError
from dragoman.core.events import FinishReason
from dragoman.core.message import (
    Message,
    Part,
    Reasoning,
    Refusal,
    Role,
    Text,
    ToolCall,
    ToolResult,
)
from dragoman.core.request import GenerateRequest
from dragoman.engines.script.directives import NO_DIRECTIVE, TOOL_RESULT_REPLY
from dragoman.engines.scripted import Say, Script

from .harness import RecordedSleeps, ask, assistant, chat, engine, result, user


async def parts(*messages: Message, tools: tuple[str, ...] = ("f", "g")) -> list[tuple[str, ...]]:
    reply = await ask(engine(directives=True), chat(*messages, tools=tools))
    return [_brief(part) for part in reply.choices[0].parts]


def _brief(part: Part) -> tuple[str, ...]:
    match part:
        case Text(text):
            return ("say", text)
        case Reasoning(text):
            return ("think", text)
        case Refusal(text):
            return ("refuse", text)
        case ToolCall(_, name, arguments):
            return ("tool", name, arguments)
        case _:
            raise AssertionError(part)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[[say Hello]]", [("say", "Hello")]),
        ("Please [[say Hello]] now", [("say", "Hello")]),
        (
            "[[think Hm]][[say Hi]]\n[[refuse No]]",
            [("think", "Hm"), ("say", "Hi"), ("refuse", "No")],
        ),
        ("[[say x[0][1]]]", [("say", "x[0][1]")]),
        ("[[say [[nested]] too]]", [("say", "[[nested]] too")]),
        ('[[say "a ]] \\n b"]]', [("say", "a ]] \n b")]),
        ('[[say "a" and b]]', [("say", '"a" and b')]),
        ("[[say a] b]]", [("say", "a] b")]),
        ('[[say "a]] b', [("say", '"a')]),
        ("[[tool f]]", [("tool", "f", "{}")]),
        ('[[tool f {"a": [[1]], "b": "]]"}]]', [("tool", "f", '{"a": [[1]], "b": "]]"}')]),
        ('[[tool f {"a":  1} ]][[tool g {}]]', [("tool", "f", '{"a":  1}'), ("tool", "g", "{}")]),
        ('[[tool f "{broken"]]', [("tool", "f", "{broken")]),
        ("[[tool f\n{}]]", [("tool", "f", "{}")]),
        ("[[unknown x]] [[ -f x ]] [[saying]] a[0]", [("say", NO_DIRECTIVE)]),
        ("hello", [("say", NO_DIRECTIVE)]),
        ("[[say]]", []),
    ],
)
async def test_directives_in_prompt_define_reply(text: str, expected: list[tuple[str, ...]]):
    assert await parts(user(text)) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[[say open", "not closed"),
        ('[[say "\\ud800"]]', "surrogate"),
        ('[[tool f "\\ud800"]]', "surrogate"),
        ("[[say [ ]]", "not closed"),
        ('[[tool f {"a": }]]', "not JSON"),
        ("[[tool f {} g]]", "closed right after"),
        ("[[tool f {}", "closed right after"),
        ("[[tool]]", "needs the name"),
        ("[[tool f " + "[" * 100_000, "not JSON"),
        ("[[delay soon]]", "delay SECONDS"),
        ("[[delay nan]]", "from 0 to 3600"),
        ("[[delay -1]]", "from 0 to 3600"),
        ("[[error]]", "needs a status"),
        ("[[error 200 fine]]", "from 400 to 599"),
        ("[[say x]][[error 400 late]]", "after the first part"),
        ("[[error 500 x]][[say y]]", "nothing can follow"),
        ("[[finish abort]]", "takes one of stop, length"),
    ],
)
async def test_invalid_directive_returns_400(text: str, why: str):
    with pytest.raises(RequestError, match=why) as caught:
        await parts(user(text))
    assert (caught.value.status, caught.value.code) == (400, "invalid_directive")


@given(st.text("[]say tol{}\"'then\\", max_size=60).map(lambda text: text.replace("t{", "[[tool ")))
async def test_arbitrary_text_raises_only_request_error(text: str):
    try:
        await parts(user(text), result(text))
    except RequestError:
        return


async def test_then_directives_advance_per_tool_result():
    task = user('[[tool f {"n": 1}]] [[then]] [[think Next]] [[tool g]] [[then]] [[say Finished]]')
    call = assistant("call")
    answer = result("42")
    assert await parts(task) == [("tool", "f", '{"n": 1}')]
    assert await parts(task, call, answer) == [("think", "Next"), ("tool", "g", "{}")]
    assert await parts(task, call, answer, assistant("thought"), call, answer) == [
        ("say", "Finished")
    ]
    assert await parts(task, *[call, answer] * 3) == [("say", TOOL_RESULT_REPLY)]


async def test_user_message_after_tool_result_continues_loop():
    task = user("[[tool f]] [[then]] [[say Finished]]")
    assert await parts(task, assistant(), result("1"), user("Mind the gap")) == [
        ("say", "Finished")
    ]


async def test_directive_in_tool_result_is_followed():
    assert await parts(
        user("[[tool f]][[then]][[say no]]"), assistant(), result("[[say yes]]")
    ) == [("say", "yes")]


async def test_directives_in_system_and_assistant_are_ignored():
    system = Message(Role.SYSTEM, (Text("[[say system]]"),))
    assert await parts(system, assistant("[[say assistant]]"), user("hi")) == [
        ("say", NO_DIRECTIVE)
    ]


async def test_directive_of_earlier_turn_is_ignored():
    assert await parts(user("[[say old]]"), assistant("old"), user("new")) == [
        ("say", NO_DIRECTIVE)
    ]


async def test_directives_of_all_message_parts_are_combined():
    assert await parts(Message(Role.USER, (Text("[[say a]]"), Text("[[say b]]")))) == [
        ("say", "ab")
    ]
    media = ToolResult("1", (Text("[[say t]]"),))
    assert await parts(Message(Role.TOOL, (media,))) == [("say", "t")]


async def test_tool_directive_without_declared_tools_is_skipped():
    assert await parts(user("[[tool f]]"), tools=()) == [("say", NO_DIRECTIVE)]
    assert await parts(user("[[tool f]][[say title]]"), tools=()) == [("say", "title")]


async def test_tool_directive_with_unknown_name_is_rejected():
    with pytest.raises(RequestError, match="'h'; declared are: f, g"):
        await parts(user("[[tool h]]"))


async def test_error_delay_and_finish_directives_are_applied():
    naps = RecordedSleeps()
    with pytest.raises(EngineError, match="too late") as failed:
        await ask(
            engine(directives=True, sleep=naps),
            chat(user("[[delay 0.5]][[say a]][[delay 2]][[error 503 too late]]")),
        )
    assert (failed.value.status, naps.slept) == (503, [0.5, 2.0])
    reply = await ask(engine(directives=True), chat(user("[[say a]][[finish length]]")))
    assert reply.choices[0].reason is FinishReason.LENGTH


async def test_directives_disabled_are_plain_text():
    reply = await ask(engine(Script.of(Say("scripted"))), chat(user("[[say directed]]")))
    assert reply.choices[0].join_text() == "scripted"


async def test_script_replies_to_prompts_without_directives():
    playing = engine(Script.of(Say("scripted")), directives=True)
    assert (await ask(playing, chat(user("[[say directed]]")))).choices[0].join_text() == "directed"
    assert (await ask(playing, chat(user("hi")))).choices[0].join_text() == "scripted"
    assert (await ask(playing, GenerateRequest("m", "hi"))).choices[0].join_text() == "scripted"


async def test_directives_in_plain_prompt_are_followed():
    prompt = "user:\n[[say directed]] [[then]] [[say later]]\n\nassistant:\n"
    reply = await ask(engine(directives=True), GenerateRequest("m", prompt))
    assert reply.choices[0].join_text() == "directed"
    reply = await ask(engine(directives=True), GenerateRequest("m", "hi"))
    assert reply.choices[0].join_text() == NO_DIRECTIVE
