"""Every supported parameter is requested once and has an effect: on the engine's
request or on the wire.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from dragoman.core.errors import RequestError
from dragoman.core.events import (
    Alternative,
    ChoiceFinished,
    Event,
    Finished,
    FinishReason,
    PromptTokens,
    ReasoningDelta,
    Started,
    TextDelta,
    Token,
    ToolCallDelta,
    ToolCallStart,
    Usage,
)
from dragoman.core.reply import ReplyBuilder
from dragoman.dialects.interfaces import GenerationCall, Header, Profile, ReaderOptions
from dragoman.dialects.parameter_table import ParameterSupport, SupportStatus
from dragoman.dialects.registry import list_parameters
from tests.cases import check_each

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
examples: Any = import_module("examples")

READING = ReaderOptions(default_model="tiny", profile=Profile.VLLM)
TOKEN = Token(5, "a", -0.5, (Alternative(5, "a", -0.5), Alternative(6, "b", -1.5)), rank=1)
CONTROL = Token(2, "<end>", -1.0, special=True)
EVENTS: tuple[Event, ...] = (
    Started(2, 0),
    PromptTokens(0, "hi", (Token(7, "hi"), TOKEN)),
    ReasoningDelta(0, "hm", (TOKEN,)),
    TextDelta(0, "a", (TOKEN,)),
    ToolCallStart(0, "call_1", "weather"),
    ToolCallDelta(0, "{}"),
    ChoiceFinished(0, FinishReason.STOP, tokens=(CONTROL,)),
    Finished(Usage(2, 3, 0, 1)),
)
GENERATING = {
    f"{row.dialect}-{row.name}": row
    for row in list_parameters()
    if row.dialect in examples.DIALECTS
    and row.status is SupportStatus.HONOURED
    and row.name not in examples.REFUSES.get(row.dialect, ())
}


def ask(dialect: str, fields: dict[str, Any]) -> GenerationCall:
    return examples.DIALECTS[dialect].read(json.dumps(fields).encode(), READING)


def render_outcome(call: GenerationCall) -> tuple[object, ...]:
    """Return the outcome of a call: the engine's request, the servers whose tools are
    listed first, the warnings, and the output.
    """
    header = Header("id-1", 7, "m")
    streamed = b"".join(map(call.writer(header).feed, EVENTS))
    fold = ReplyBuilder()
    for event in EVENTS:
        fold.feed(event)
    return (
        call.requests,
        call.stream,
        call.unlisted,
        call.warnings,
        streamed,
        call.writer(header).render_full(fold.build()),
    )


def check_unknown_fields(row: ParameterSupport) -> None:
    call = ask(row.dialect, examples.body(row.dialect, row.name))
    assert call.unknown == ()


def test_example_of_honoured_parameter_has_no_unknown_fields():
    check_each(GENERATING, check_unknown_fields)


def check_outcome(row: ParameterSupport) -> None:
    body = examples.body(row.dialect, row.name)
    if row.name in examples.READ_ONLY[row.dialect]:
        with pytest.raises(RequestError):
            ask(row.dialect, {**body, row.name: 17.5})
        return
    without = {name: value for name, value in body.items() if name != row.name}
    base = examples.DIALECTS[row.dialect].base
    plain = ask(
        row.dialect, {**without, **({row.name: base[row.name]} if row.name in base else {})}
    )
    assert render_outcome(ask(row.dialect, body)) != render_outcome(plain)


def test_honoured_parameter_changes_outcome():
    check_each(GENERATING, check_outcome)


def test_examples_match_honoured_parameters():
    for name, dialect in examples.DIALECTS.items():
        honoured = {
            row.name
            for row in list_parameters()
            if row.dialect == name and row.status is SupportStatus.HONOURED
        }
        assert dialect.examples.keys() | examples.REFUSES.get(name, frozenset()) == honoured
        assert examples.READ_ONLY[name] <= honoured
