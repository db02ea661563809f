"""Random sequences of operations: every prompt equals that of a simple model of the
store.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st
from tests.serving.harness import ServerHarness

from dragoman.core.message import Text
from dragoman.core.request import Conversation
from dragoman.engines.scripted import Say, ScriptEntry

from .harness import build_storing_server

CREATE = "create"
CREATE_UNSTORED = "create, not stored"
DELETE = "delete"
READ = "read"
steps = st.lists(
    st.tuples(
        st.sampled_from((CREATE, CREATE, CREATE_UNSTORED, DELETE, READ)),
        st.none() | st.integers(0, 20),
    ),
    max_size=15,
)


@dataclass
class Turn:
    """The input of a response, and the response that it continued."""

    id: str
    text: str
    parent: Turn | None
    stored: bool = True

    def history(self) -> list[str] | None:
        """Return the history; None if a part of it was deleted."""
        if not self.stored:
            return None
        before = [] if self.parent is None else self.parent.history()
        return None if before is None else [*before, self.text, "Yes."]


@dataclass
class Walk:
    server: ServerHarness = field(
        default_factory=lambda: build_storing_server(ScriptEntry((Say("Yes."),), repeat=True))
    )
    turns: list[Turn] = field(default_factory=list[Turn])

    async def take(self, step: str, place: int | None) -> None:
        turn = self.turns[place % len(self.turns)] if place is not None and self.turns else None
        if step in (CREATE, CREATE_UNSTORED):
            await self.create(turn, step == CREATE)
        elif turn is not None:
            await (self.delete(turn) if step == DELETE else self.read(turn))

    async def create(self, parent: Turn | None, store: bool) -> None:
        text = f"question {len(self.turns)}"
        calls = self.server.engine.num_requests
        previous = None if parent is None else parent.id
        body: dict[str, object] = {
            "model": "m",
            "input": text,
            "store": store,
            "previous_response_id": previous,
        }
        answer = await self.server.post("/v1/responses", body)
        history = [] if parent is None else parent.history()
        if history is None:
            assert answer.json()["error"]["code"] == "previous_response_not_found"
            assert self.server.engine.num_requests == calls
            return
        assert prompt(self.server) == [*history, text]
        self.turns.append(Turn(answer.json()["id"], text, parent, store))

    async def delete(self, turn: Turn) -> None:
        async with self.server.http() as http:
            answer = await http.delete(f"/v1/responses/{turn.id}")
        assert answer.status_code == (200 if turn.stored else 404)
        turn.stored = False

    async def read(self, turn: Turn) -> None:
        answer = await self.server.get(f"/v1/responses/{turn.id}")
        assert answer.status_code == (200 if turn.stored else 404)


def prompt(server: ServerHarness) -> list[str]:
    conversation = server.engine.requests[-1].prompt
    assert isinstance(conversation, Conversation)
    return [
        part.text
        for message in conversation.messages
        for part in message.parts
        if isinstance(part, Text)
    ]


@given(steps)
def test_random_operations_prompt_matches_reference_model(taken: list[tuple[str, int | None]]):
    async def walk() -> None:
        server = Walk()
        for step, place in taken:
            await server.take(step, place)

    asyncio.run(walk())
