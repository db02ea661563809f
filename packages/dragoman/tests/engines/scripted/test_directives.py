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
from dragoman.engines.script.script import NO_DIRECTIVE, TOOL_RESULT_REPLY
from dragoman.engines.scripted import Say, Script

from .harness import Naps, ask, assistant, chat, engine, result, user


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
async def test_directives_are_followed(text: str, expected: list[tuple[str, ...]]):
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
async def test_a_directive_with_a_fault_is_the_clients_fault(text: str, why: str):
    with pytest.raises(RequestError, match=why) as caught:
        await parts(user(text))
    assert (caught.value.status, caught.value.code) == (400, "invalid_directive")


@given(st.text("[]say tol{}\"'then\\", max_size=60).map(lambda text: text.replace("t{", "[[tool ")))
async def test_no_text_makes_the_engine_fail(text: str):
    try:
        await parts(user(text), result(text))
    except RequestError:
        return


async def test_an_agents_loop_goes_turn_by_turn():
    task = user('[[tool f {"n": 1}]] [[then]] [[think Next]] [[tool g]] [[then]] [[say Finished]]')
    call = assistant("call")
    answer = result("42")
    assert await parts(task) == [("tool", "f", '{"n": 1}')]
    assert await parts(task, call, answer) == [("think", "Next"), ("tool", "g", "{}")]
    assert await parts(task, call, answer, assistant("thought"), call, answer) == [
        ("say", "Finished")
    ]
    assert await parts(task, *[call, answer] * 3) == [("say", TOOL_RESULT_REPLY)]


async def test_a_reminder_after_the_result_does_not_end_the_loop():
    task = user("[[tool f]] [[then]] [[say Finished]]")
    assert await parts(task, assistant(), result("1"), user("Mind the gap")) == [
        ("say", "Finished")
    ]


async def test_a_tool_result_can_direct():
    assert await parts(
        user("[[tool f]][[then]][[say no]]"), assistant(), result("[[say yes]]")
    ) == [("say", "yes")]


async def test_the_system_prompt_and_the_assistant_direct_nothing():
    system = Message(Role.SYSTEM, (Text("[[say system]]"),))
    assert await parts(system, assistant("[[say assistant]]"), user("hi")) == [
        ("say", NO_DIRECTIVE)
    ]


async def test_a_new_question_is_not_answered_by_an_old_directive():
    assert await parts(user("[[say old]]"), assistant("old"), user("new")) == [
        ("say", NO_DIRECTIVE)
    ]


async def test_parts_of_one_message_direct_together():
    assert await parts(Message(Role.USER, (Text("[[say a]]"), Text("[[say b]]")))) == [
        ("say", "ab")
    ]
    media = ToolResult("1", (Text("[[say t]]"),))
    assert await parts(Message(Role.TOOL, (media,))) == [("say", "t")]


async def test_a_call_of_an_undeclared_tool_is_left_out():
    assert await parts(user("[[tool f]]"), tools=()) == [("say", NO_DIRECTIVE)]
    assert await parts(user("[[tool f]][[say title]]"), tools=()) == [("say", "title")]


async def test_a_mistyped_tool_is_an_error():
    with pytest.raises(RequestError, match="'h'; declared are: f, g"):
        await parts(user("[[tool h]]"))


async def test_errors_delays_and_ends():
    naps = Naps()
    with pytest.raises(EngineError, match="too late") as failed:
        await ask(
            engine(directives=True, sleep=naps),
            chat(user("[[delay 0.5]][[say a]][[delay 2]][[error 503 too late]]")),
        )
    assert (failed.value.status, naps.slept) == (503, [0.5, 2.0])
    reply = await ask(engine(directives=True), chat(user("[[say a]][[finish length]]")))
    assert reply.choices[0].reason is FinishReason.LENGTH


async def test_directives_are_words_where_they_are_switched_off():
    reply = await ask(engine(Script.of(Say("scripted"))), chat(user("[[say directed]]")))
    assert reply.choices[0].join_text() == "scripted"


async def test_a_script_answers_where_there_are_no_directives():
    playing = engine(Script.of(Say("scripted")), directives=True)
    assert (await ask(playing, chat(user("[[say directed]]")))).choices[0].join_text() == "directed"
    assert (await ask(playing, chat(user("hi")))).choices[0].join_text() == "scripted"
    assert (await ask(playing, GenerateRequest("m", "hi"))).choices[0].join_text() == "scripted"


async def test_a_plain_prompt_directs_as_a_user_would():
    prompt = "user:\n[[say directed]] [[then]] [[say later]]\n\nassistant:\n"
    reply = await ask(engine(directives=True), GenerateRequest("m", prompt))
    assert reply.choices[0].join_text() == "directed"
    reply = await ask(engine(directives=True), GenerateRequest("m", "hi"))
    assert reply.choices[0].join_text() == NO_DIRECTIVE
