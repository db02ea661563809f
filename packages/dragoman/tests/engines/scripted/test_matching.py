"""Requests are matched to the entries of a script."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.errors import RequestError
from dragoman.core.message import Message, Role, Text
from dragoman.core.request import GenerateRequest
from dragoman.engines.script.match_rule import Subject
from dragoman.engines.scripted import MatchRule, Say, Script, ScriptEntry

from .harness import ask, assistant, chat, engine, result, user


async def get_answers(script: Script, *requests: GenerateRequest) -> list[str]:
    playing = engine(script)
    return [(await ask(playing, request)).choices[0].join_text() for request in requests]


def entry(
    text: str, match: MatchRule | None = None, *, times: int | None = None, repeat: bool = False
) -> ScriptEntry:
    return ScriptEntry((Say(text),), match, times=times, repeat=repeat)


async def test_entries_without_match_are_used_in_order():
    script = Script((entry("one", times=2), entry("two"), entry("three", repeat=True)))
    assert await get_answers(script, *[chat()] * 5) == ["one", "one", "two", "three", "three"]


async def test_entries_with_match_take_precedence_and_repeat():
    script = Script((entry("first"), entry("matched", MatchRule(("weather",))), entry("second")))
    weather = chat(user("The weather?"))
    other = chat(user("hi"))
    assert await get_answers(script, other, weather, other, weather) == [
        "first",
        "matched",
        "second",
        "matched",
    ]


async def test_entry_with_match_and_times_is_exhausted():
    script = Script((entry("once", MatchRule(("a",)), times=1), entry("then", MatchRule(("a",)))))
    assert await get_answers(script, *[chat(user("a"))] * 3) == ["once", "then", "then"]


@pytest.mark.parametrize(
    ("match", "fits"),
    [
        (MatchRule(("we", "Paris")), True),
        (MatchRule(("we", "Rome")), False),
        (MatchRule(equals="The weather in Paris?"), True),
        (MatchRule(equals="weather"), False),
        (MatchRule(glob="The*Paris?"), True),
        (MatchRule(glob="the*"), False),
        (MatchRule(glob="*"), True),
        (MatchRule(role="user"), True),
        (MatchRule(role="tool"), False),
        (MatchRule(model="m"), True),
        (MatchRule(model="gpt-*"), False),
        (MatchRule(tool="get_weather"), True),
        (MatchRule(tool="bash"), False),
        (MatchRule(("weather",), role="user", tool="bash"), False),
    ],
)
async def test_match_rule_requires_all_conditions(match: MatchRule, fits: bool):
    request = chat(user("The weather in Paris?"), tools=["get_weather"])
    script = Script((entry("yes", match), entry("no")))
    assert await get_answers(script, request) == ["yes" if fits else "no"]


async def test_match_uses_last_user_or_tool_message():
    script = Script(
        (entry("user", MatchRule(("U",))), entry("tool", MatchRule(("T",))), entry("else"))
    )
    system = Message(Role.SYSTEM, (Text("U T"),))
    assert await get_answers(
        script,
        chat(system, user("U"), assistant("T")),
        chat(user("U"), assistant(), result("T")),
        chat(system),
    ) == ["user", "tool", "else"]


async def test_match_applies_to_plain_prompt():
    assert await get_answers(
        Script((entry("yes", MatchRule(("once",))),)), GenerateRequest("m", "once upon")
    ) == ["yes"]


@given(st.text("ab*", max_size=8), st.text("ab", max_size=10))
def test_glob_match_agrees_with_reference(pattern: str, text: str):
    def fits(pattern: str, text: str) -> bool:
        if not pattern or pattern[0] != "*":
            return pattern == text or bool(
                pattern and text and pattern[0] == text[0] and fits(pattern[1:], text[1:])
            )
        return any(fits(pattern[1:], text[at:]) for at in range(len(text) + 1))

    assert MatchRule(glob=pattern).accepts(subject(text)) == fits(pattern, text)


def subject(text: str) -> Subject:
    return Subject("m", text, Role.USER, frozenset())


def test_glob_match_takes_linear_time():
    def cost(size: int) -> float:
        match = MatchRule(glob="*a" * 20 + "b")
        text = subject("a" * size)
        start = time.process_time()
        for _ in range(50):
            match.accepts(text)
        return time.process_time() - start

    cost(1000)
    assert cost(400_000) < 40 * 10 * max(cost(10_000), 1e-5)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (Script(), "is empty"),
        (Script((entry("x"),)), "no reply left for call 2.*repeat: true.*'hello"),
        (Script((entry("x", MatchRule(("bye",))),)), "No entry of the script matches"),
    ],
)
async def test_exhausted_script_raises_request_error(script: Script, why: str):
    playing = engine(script)
    request = chat(user("hello" + "!" * 1000))
    with pytest.raises(RequestError, match=why) as caught:
        await asyncio.gather(ask(playing, request), ask(playing, request))
    assert caught.value.code == "script_used_up"
    assert len(caught.value.message) < 400
