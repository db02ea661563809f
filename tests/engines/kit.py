"""What every engine must hold to, whatever it is: asked through the pipeline, judged by the canonical events.

An engine joins by one more `Subject` in `test_kit.py`; what it says in its capabilities that it cannot do is skipped
with that reason, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count

import pytest

from dragoman.core.engine import Feature
from dragoman.core.event_grammar import check_events
from dragoman.core.events import Event, Started, get_answer_tokens
from dragoman.core.message import Message, Role, Text
from dragoman.core.reply import Choice, Reply, ReplyBuilder
from dragoman.core.request import Conversation, GenerateRequest
from dragoman.pipeline.admission import CallTerms
from dragoman.pipeline.models import ServedModel
from dragoman.pipeline.run import admit

_numbers = count()


@dataclass(frozen=True)
class Subject:
    """A started model. exact: what runs beside a request shows in none of its numbers; otherwise in the last digits
    of its logprobs."""

    model: ServedModel
    exact: bool = True

    def needs(self, *features: Feature) -> None:
        """Skip what this engine says that it cannot do."""
        missing = [feature.value for feature in features if feature not in self.model.capabilities.features]
        if missing:
            pytest.skip(f"this engine declares that it has no {', '.join(missing)}")

    def needs_parameters(self, *names: str) -> None:
        missing = sorted(set(names) - self.model.capabilities.parameters)
        if missing:
            pytest.skip(f"this engine declares that it does not honour {', '.join(missing)}")

    def request(self, text: str = "Tell me a story.", **fields: object) -> GenerateRequest:
        return GenerateRequest(self.model.name, prompt=talk(text), **fields)  # pyright: ignore[reportArgumentType]

    async def events(self, request: GenerateRequest) -> list[Event]:
        run = await admit(self.model, [request], terms())
        return list(check_events([event async for batch in run.batches for event in batch]))

    async def reply(self, request: GenerateRequest) -> Reply:
        return fold(await self.events(request))


def talk(text: str) -> Conversation:
    return Conversation((Message(Role.USER, (Text(text),)),))


def terms() -> CallTerms:
    """Sequences need names of their own among those that run at once."""
    number = next(_numbers)
    calls = count()
    return CallTerms(
        answer_id=f"kit-{number}",
        new_id=lambda: f"call_{number}_{next(calls)}",
        now=datetime(2026, 1, 1, tzinfo=UTC),
    )


def fold(events: list[Event]) -> Reply:
    folded = ReplyBuilder()
    for event in events:
        folded.feed(event)
    return folded.build()


def same(one: Reply, other: Reply, *, exact: bool) -> bool:
    """Whether both say the same, and think the same of it."""
    if exact:
        return one.choices == other.choices
    return all(map(_alike, one.choices, other.choices)) and len(one.choices) == len(other.choices)


def _alike(one: Choice, other: Choice) -> bool:
    if (one.join_text(), one.reason, one.stop) != (other.join_text(), other.reason, other.stop):
        return False
    scores = [[token.logprob for token in choice.tokens] for choice in (one, other)]
    assert [token.id for token in one.tokens] == [token.id for token in other.tokens]
    return scores[0] == pytest.approx(scores[1], abs=1e-3)


def ids(reply: Reply, choice: int = 0) -> list[int]:
    return [token.id for token in reply.choices[choice].tokens]


def count_tokens(events: list[Event]) -> int:
    return sum(len(get_answer_tokens(event)) for event in events)


def prompt_tokens(events: list[Event]) -> int:
    started = events[0]
    assert isinstance(started, Started)
    return started.prompt_tokens
