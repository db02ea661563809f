"""The engine under test, asked through the pipeline and judged by the canonical events."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import Any

import pytest

from ..core.engine import Feature
from ..core.event_grammar import check_events
from ..core.events import Event, Started, get_answer_tokens
from ..core.message import Message, Role, Text
from ..core.reply import Choice, Reply, ReplyBuilder
from ..core.request import Conversation, GenerateRequest
from ..launch.embedding import resolve_models
from ..launch.plugin import SupportedEngine
from ..pipeline.admission import CallTerms
from ..pipeline.models import ServedModel
from ..pipeline.run import admit
from ..serving.clock import SystemClock

_numbers = count()


@dataclass(frozen=True)
class EngineUnderTest:
    """A model that is served, with its engine started.

    is_exact: what runs beside a request shows in none of its numbers; otherwise in the last digits of its logprobs.
    is_scripted: it answers the same to all requests, whatever constrains them.
    """

    model: ServedModel
    is_exact: bool = True
    is_scripted: bool = False

    def require(self, *features: Feature) -> None:
        """Skip what this engine says that it cannot do."""
        missing = [feature.value for feature in features if feature not in self.model.capabilities.features]
        if missing:
            pytest.skip(f"this engine declares that it has no {', '.join(missing)}")

    def require_parameters(self, *names: str) -> None:
        """Skip where the engine says that it does not honour one of these."""
        missing = sorted(set(names) - self.model.capabilities.parameters)
        if missing:
            pytest.skip(f"this engine declares that it does not honour {', '.join(missing)}")

    def build_request(self, text: str = "Tell me a story.", **fields: object) -> GenerateRequest:
        """A conversation of one message. fields: of GenerateRequest."""
        return GenerateRequest(self.model.name, prompt=build_conversation(text), **fields)  # pyright: ignore[reportArgumentType]

    async def collect_events(self, request: GenerateRequest) -> list[Event]:
        """The events of the answer, which follow the event grammar. Raises DragomanError."""
        run = await admit(self.model, [request], build_terms())
        return list(check_events([event async for batch in run.batches for event in batch]))

    async def complete(self, request: GenerateRequest) -> Reply:
        """The whole answer. Raises DragomanError."""
        return build_reply(await self.collect_events(request))


def build_conversation(text: str) -> Conversation:
    return Conversation((Message(Role.USER, (Text(text),)),))


def build_terms() -> CallTerms:
    """Sequences need names of their own among those that run at once."""
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


def are_same(one: Reply, other: Reply, *, exact: bool) -> bool:
    """Whether both say the same, and think the same of it."""
    if exact:
        return one.choices == other.choices
    return all(map(_are_alike, one.choices, other.choices)) and len(one.choices) == len(other.choices)


def _are_alike(one: Choice, other: Choice) -> bool:
    if (one.join_text(), one.reason, one.stop) != (other.join_text(), other.reason, other.stop):
        return False
    scores = [[token.logprob for token in choice.tokens] for choice in (one, other)]
    assert [token.id for token in one.tokens] == [token.id for token in other.tokens]
    return scores[0] == pytest.approx(scores[1], abs=1e-3)


def list_token_ids(reply: Reply, choice: int = 0) -> list[int]:
    return [token.id for token in reply.choices[choice].tokens]


def count_tokens(events: list[Event]) -> int:
    return sum(len(get_answer_tokens(event)) for event in events)


def get_prompt_tokens(events: list[Event]) -> int:
    started = events[0]
    assert isinstance(started, Started)
    return started.prompt_tokens


@asynccontextmanager
async def serve_engine(engine: SupportedEngine, **settings: Any) -> AsyncGenerator[EngineUnderTest]:  # noqa: ANN401 - as of create_app
    """The engine, started and served as by `dragoman.create_app(engines=...)`, without HTTP. Raises SettingsError."""
    read_settings, build = resolve_models(None, {"engine": engine}, settings)
    models = build(read_settings, SystemClock())
    await models.start()
    try:
        yield EngineUnderTest(next(iter(models)))
    finally:
        await models.stop()
