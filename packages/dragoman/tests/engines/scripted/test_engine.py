"""The engine's contract: errors before the first event, clean ends, and recorded
requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing

import pytest

from dragoman.core.engine import Engine
from dragoman.core.errors import (
    EngineError,
    NotFound,
    Overloaded,
    RateLimited,
    RequestError,
    Unsupported,
)
from dragoman.core.events import Finished, Started, TextDelta
from dragoman.core.message import ToolChoice
from dragoman.engines.scripted import CallTool, Fail, Say, Script, ScriptedEngine, ScriptEntry, Wait

from .harness import ask, chat, engine, user

HELLO = Script.of(Say("Hello, world"))


def test_engine_capabilities_follow_native_option():
    created: Engine = engine()
    assert created.capabilities.native_tools
    assert created.capabilities.native_reasoning
    assert not engine(native=False).capabilities.native_tools


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, RequestError), (404, NotFound), (429, RateLimited), (418, RequestError)],
)
async def test_leading_error_is_raised_before_started(status: int, kind: type[RequestError]):
    fail = Fail(status, "No", code="why", param="messages", retry_after=7.0)
    with pytest.raises(kind) as rejected:
        await anext(engine(Script.of(fail)).generate(chat()))
    error = rejected.value
    assert (error.status, error.message, error.code, error.param, error.retry_after) == (
        status, "No", "why", "messages", 7.0,
    )  # fmt: skip


async def test_error_without_code_uses_code_of_status():
    with pytest.raises(Overloaded) as rejected:
        await ask(engine(Script.of(Fail(503))))
    assert (rejected.value.code, rejected.value.retry_after) == ("overloaded", 1.0)


async def test_error_after_text_is_raised_during_stream():
    stream = engine(Script.of(Say("abc"), Fail(502, "broken"))).generate(chat())
    assert [type(await anext(stream)) for _ in range(2)] == [Started, TextDelta]
    with pytest.raises(EngineError, match="broken") as failed:
        await anext(stream)
    assert failed.value.status == 502


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: ScriptEntry((Say("x"), Fail(400))),
        lambda: ScriptEntry((Fail(500), Say("x"))),
        lambda: ScriptEntry((), more=((Fail(500), Say("x")),)),
        lambda: ScriptEntry((), times=0),
        lambda: ScriptEntry((), times=2, repeat=True),
        lambda: ScriptEntry((), delay=-1.0),
        lambda: ScriptEntry((), pace=float("nan")),
        lambda: Wait(1e9),
        lambda: Fail(200),
    ],
)
def test_invalid_script_is_rejected_at_construction(wrong: Callable[[], object]):
    with pytest.raises(ValueError, match=r"."):
        wrong()


async def test_requests_are_recorded_up_to_history_size():
    playing = engine(HELLO, history_size=2)
    for text in "abc":
        await ask(playing, chat(user(text)))
    assert playing.num_requests == 3
    assert list(playing.requests) == [chat(user("b")), chat(user("c"))]


async def test_early_stream_close_is_counted():
    playing = engine(HELLO)
    async with aclosing(playing.generate(chat())) as events:
        await anext(events)
        assert (playing.num_running, playing.health().running) == (1, 1)
    assert (playing.num_closed_early, playing.num_running) == (1, 0)
    async with aclosing(playing.generate(chat())) as events:
        async for event in events:
            if isinstance(event, Finished):
                break
    assert playing.num_closed_early == 1


async def test_rejected_request_is_not_counted_as_closed_early():
    playing = engine(HELLO)
    with pytest.raises(Unsupported):
        await ask(playing, chat(tools=["f"], tool_choice=ToolChoice("required")))
    assert (playing.num_requests, playing.num_closed_early, playing.num_running) == (1, 0, 0)


async def test_cancel_during_wait_leaves_no_tasks():
    playing = engine(Script.of(Say("a"), Wait(60.0)), sleep=_wait_forever)
    begun = asyncio.Event()

    async def listen() -> None:
        async for _ in playing.generate(chat()):
            begun.set()

    task = asyncio.create_task(listen())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (playing.num_closed_early, playing.num_running) == (1, 0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_stop_during_delay_fails_request():
    playing = engine(
        Script((ScriptEntry((Say("a"),), delay=60.0, repeat=True),)), sleep=_wait_forever
    )
    await playing.start()
    task = asyncio.create_task(ask(playing))
    await asyncio.sleep(0)
    await playing.stop()
    with pytest.raises(EngineError, match="stopped"):
        await task
    assert (playing.health().ready, playing.health().reason) == (False, "stopped")


async def test_stop_between_events_fails_request():
    playing = engine(HELLO)
    events = playing.generate(chat())
    await anext(events)
    await playing.stop()
    with pytest.raises(EngineError):
        await anext(events)


async def test_sleep_error_is_raised():
    async def broken(_: float) -> None:
        raise OSError("no time")

    with pytest.raises(OSError, match="no time"):
        await ask(engine(Script.of(Wait(1.0)), sleep=broken))


async def test_long_answer_yields_to_other_tasks():
    async def count(playing: ScriptedEngine) -> int:
        return len([event async for event in playing.generate(chat())])

    task = asyncio.create_task(count(engine(Script.of(Say("abc" * 1000)))))
    turns = 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    assert (task.result(), turns > 10) == (1003, True)


async def test_tool_call_id_from_script_is_used():
    script = Script.of(CallTool("f"), CallTool("f", id="mine"))
    calls = (
        (await ask(engine(script, new_id=lambda: "made"), chat(tools=["f"])))
        .choices[0]
        .list_calls()
    )
    assert [call.id for call in calls] == ["made", "mine"]


async def _wait_forever(_: float) -> None:
    await asyncio.Event().wait()
