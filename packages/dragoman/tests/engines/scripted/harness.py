"""Helpers that send requests to a scripted engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from dragoman.core.event_grammar import check_events
from dragoman.core.events import Event
from dragoman.core.message import FunctionTool, Message, Role, Text, ToolResult
from dragoman.core.reply import Reply, ReplyBuilder
from dragoman.core.request import Conversation, GenerateRequest
from dragoman.engines.scripted import Script, ScriptedEngine

from .triples import Triples


class RecordedSleeps:
    """A sleep function that only records the durations."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.slept.append(seconds)


def engine(script: Script | None = None, **options: Any) -> ScriptedEngine:
    usual: dict[str, Any] = {"tokenizer": Triples(), "sleep": RecordedSleeps()}
    return ScriptedEngine(script, **usual | options)


def user(text: str) -> Message:
    return Message(Role.USER, (Text(text),))


def assistant(text: str = "") -> Message:
    return Message(Role.ASSISTANT, (Text(text),))


def result(text: str) -> Message:
    return Message(Role.TOOL, (ToolResult("call_1", (Text(text),)),))


def chat(*messages: Message, tools: Sequence[str] = (), **options: Any) -> GenerateRequest:
    """Build a request.

    options: fields of the conversation if it has them, otherwise of the request.
    """
    declared = tuple(FunctionTool(name) for name in tools)
    own = {
        name: options.pop(name) for name in list(options) if name in Conversation.__struct_fields__
    }
    conversation = replace(Conversation(messages or (user("hi"),), declared), **own)
    return replace(GenerateRequest("m", conversation), **options)


async def events(engine: ScriptedEngine, request: GenerateRequest | None = None) -> list[Event]:
    """Return all events, which must be a legal stream."""
    return list(check_events([event async for event in engine.generate(request or chat())]))


async def ask(engine: ScriptedEngine, request: GenerateRequest | None = None) -> Reply:
    fold = ReplyBuilder()
    for event in await events(engine, request):
        fold.feed(event)
    return fold.build()
