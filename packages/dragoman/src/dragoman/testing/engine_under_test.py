"""The engine under test. Requests pass through the pipeline; assertions are about the
canonical events.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import Any

import pytest

from ..core.capabilities import Feature
from ..core.event_grammar import check_events
from ..core.events import Event
from ..core.message import Message, Role, Text
from ..core.reply import Reply, ReplyBuilder
from ..core.request import (
    Conversation,
    GenerateRequest,
)
from ..launch.in_process import resolve_models
from ..launch.plugin import SupportedEngine
from ..pipeline.admit import admit
from ..pipeline.call_terms import CallTerms
from ..pipeline.served_model import ServedModel
from ..serving.clock import SystemClock

_numbers = count()


@dataclass(frozen=True)
class EngineUnderTest:
    """A served model whose engine has started.

    is_exact: concurrent requests change no number of a reply; if False, they may change
        the last digits of logprobs.
    is_scripted: it gives the same reply to all requests, regardless of constraints.
    """

    model: ServedModel
    is_exact: bool = True
    is_scripted: bool = False

    def require(self, *features: Feature) -> None:
        """Skip the test if the engine does not declare these features."""
        missing = [
            feature.value for feature in features if feature not in self.model.capabilities.features
        ]
        if missing:
            pytest.skip(f"this engine does not declare {', '.join(missing)}")

    def require_parameters(self, *names: str) -> None:
        """Skip the test if the engine does not declare support for one of these
        parameters.
        """
        missing = sorted(set(names) - self.model.capabilities.parameters)
        if missing:
            pytest.skip(f"this engine does not declare support for {', '.join(missing)}")

    def build_request(self, text: str = "Tell me a story.", **fields: object) -> GenerateRequest:
        """Build a request with a conversation of one message.

        fields: further fields of `GenerateRequest`.
        """
        return GenerateRequest(self.model.name, prompt=build_conversation(text), **fields)  # pyright: ignore[reportArgumentType]

    async def collect_events(self, request: GenerateRequest) -> list[Event]:
        """Return the events of the reply, validated against the event grammar. Raises
        DragomanError.
        """
        run = await admit(self.model, [request], build_terms())
        return list(check_events([event async for batch in run.batches for event in batch]))

    async def complete(self, request: GenerateRequest) -> Reply:
        """Return the complete reply. Raises DragomanError."""
        return build_reply(await self.collect_events(request))


def build_conversation(text: str) -> Conversation:
    return Conversation((Message(Role.USER, (Text(text),)),))


def build_terms() -> CallTerms:
    """Build the terms of a call. Concurrent calls need different ids."""
    number = next(_numbers)
    calls = count()
    return CallTerms(
        answer_id=f"test-{number}",
        new_id=lambda: f"call_{number}_{next(calls)}",
        now=datetime(2026, 1, 1, tzinfo=UTC),
    )


def build_reply(events: list[Event]) -> Reply:
    builder = ReplyBuilder()
    for event in events:
        builder.feed(event)
    return builder.build()


@asynccontextmanager
async def serve_engine(engine: SupportedEngine, **settings: Any) -> AsyncGenerator[EngineUnderTest]:  # noqa: ANN401 - as of create_app
    """Start and serve the engine as `dragoman.create_app(engines=...)` does, but
    without HTTP. Raises SettingsError.
    """
    read_settings, build = resolve_models(None, {"engine": engine}, settings)
    models = build(read_settings, SystemClock())
    await models.start()
    try:
        yield EngineUnderTest(next(iter(models)))
    finally:
        await models.stop()
