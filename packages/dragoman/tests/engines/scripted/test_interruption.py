"""Replies that are interrupted in the middle."""

from __future__ import annotations

import pytest

from dragoman.core.errors import ConnectionDropped, EngineError
from dragoman.core.events import Event, Finished, TextDelta
from dragoman.engines.scripted import Drop, Fail, Interruption, Say, Script, ScriptEntry

from .harness import RecordedSleeps, chat, engine

TEXT = "one two three four"


def build_script(interruption: Interruption) -> Script:
    return Script((ScriptEntry((Say(TEXT),), interruption=interruption, repeat=True),))


async def collect(script: Script, error: type[Exception]) -> list[Event]:
    """Return the events before the error."""
    collected: list[Event] = []

    async def run() -> None:
        async for event in engine(script).generate(chat()):
            collected.append(event)

    with pytest.raises(error):
        await run()
    return collected


async def test_drop_follows_so_many_tokens() -> None:
    script = build_script(Interruption(2, end=Drop()))
    events = await collect(script, ConnectionDropped)
    deltas = [event for event in events if isinstance(event, TextDelta)]
    assert sum(len(delta.tokens) for delta in deltas) == 2
    assert TEXT.startswith("".join(delta.text for delta in deltas))


async def test_reply_shorter_than_interruption_fails_at_its_end() -> None:
    script = build_script(Interruption(1000, end=Fail(500, "Out of memory.")))
    events = await collect(script, EngineError)
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == TEXT


async def test_pause_without_end_continues_reply() -> None:
    sleeps = RecordedSleeps()
    script = build_script(Interruption(2, seconds=5))
    events = [event async for event in engine(script, sleep=sleeps).generate(chat())]
    assert isinstance(events[-1], Finished)
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == TEXT


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tokens": -1}, "at least 0"),
        ({"seconds": -1.0}, "from 0 to 3600"),
        ({"end": Fail(404)}, "from 500 to 599, not 404"),
    ],
)
def test_interruption_with_invalid_field_is_rejected(
    fields: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Interruption(**fields)  # type: ignore[arg-type]
