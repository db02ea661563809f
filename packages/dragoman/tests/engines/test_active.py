"""The active sequences of an engine: each id is unique, and finished sequences get no
output.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from dragoman.core.errors import QueueFull, RequestError
from dragoman.core.events import FinishReason
from dragoman.core.token_engine import (
    Ended,
    Failed,
    PromptLogprobs,
    Rejected,
    Sampled,
    Scheduled,
    TokenEngine,
    TokenOutput,
    TokenRequest,
)
from dragoman.engines import tiny
from dragoman.engines.active_sequences import ActiveSequence, ActiveSequences
from dragoman.engines.base_engine import BaseTokenEngine
from dragoman.engines.rollout_engine import RolloutEngine
from dragoman.engines.rollout_executor import RolloutSampling

from .rollout.executors import Dice


class Endless(BaseTokenEngine):
    def __init__(self) -> None:
        super().__init__(tiny.find_bundled_model(), max_model_len=100, max_sequences=2)

    async def generate(self, request: TokenRequest) -> AsyncGenerator[int]:
        while True:
            await asyncio.sleep(0)
            yield request.prompt[0]


class Refusing(BaseTokenEngine):
    """An engine that rejects small token limits, and whose tokens have a fixed id."""

    def __init__(self) -> None:
        super().__init__(tiny.find_bundled_model(), max_model_len=100)

    async def generate(self, request: TokenRequest) -> AsyncGenerator[Sampled]:
        if request.max_tokens < 2:
            raise RequestError("This engine generates at least 2 tokens.", param="max_tokens")
        yield Sampled("another", 7)


class Hanging(Dice):
    async def generate(self, prompts: Any, n: int, sampling: RolloutSampling) -> object:  # pyright: ignore[reportIncompatibleMethodOverride]
        await asyncio.Event().wait()


ENGINES: dict[str, Callable[[], TokenEngine]] = {
    "plug-in": Endless,
    "executor": lambda: RolloutEngine(Hanging(), vocab=100, max_model_len=100, max_waiting=2),
}


@pytest.mark.parametrize("engine", ENGINES)
async def test_add_rejects_duplicate_id_and_full_engine(engine: str) -> None:
    subject = ENGINES[engine]()
    outputs = list[TokenOutput]()
    await subject.start()
    subject.add(TokenRequest("a", (1, 2), 50), outputs.append)
    with pytest.raises(ValueError, match="'a' is already running"):
        subject.add(TokenRequest("a", (1, 2), 50), outputs.append)
    subject.add(TokenRequest("b", (1, 2), 50), outputs.append)
    with pytest.raises(
        QueueFull, match=r"^The engine has reached its limit of 2 sequences; retry later\.$"
    ):
        subject.add(TokenRequest("c", (1, 2), 50), outputs.append)
    await subject.stop()
    assert outputs[-2:] == [
        Failed("a", "The engine is shutting down."),
        Failed("b", "The engine is shutting down."),
    ]


async def run_refusing(max_tokens: int) -> list[TokenOutput]:
    engine = Refusing()
    outputs = list[TokenOutput]()
    ended = asyncio.Event()

    def deliver(output: TokenOutput) -> None:
        outputs.append(output)
        if isinstance(output, Ended | Failed | Rejected):
            ended.set()

    await engine.start()
    engine.add(TokenRequest("a", (1, 2), max_tokens), deliver)
    await ended.wait()
    await engine.stop()
    return outputs


async def test_plugin_reject_before_first_token_emits_only_rejected() -> None:
    """Otherwise a stream begins with 200, and the error comes as an event."""
    assert [type(output) for output in await run_refusing(1)] == [Rejected]


async def test_plugin_outputs_have_sequence_id() -> None:
    outputs = await run_refusing(9)
    assert [type(output) for output in outputs] == [Scheduled, Sampled, Ended]
    assert {output.id for output in outputs} == {"a"}


def test_deliver_to_ended_sequence_is_ignored_after_id_reuse() -> None:
    active = ActiveSequences[ActiveSequence]()
    old = list[TokenOutput]()
    new = list[TokenOutput]()
    first, second = (
        ActiveSequence(TokenRequest("a", (1,), 5), outputs.append) for outputs in (old, new)
    )
    active.add(first)
    active.deliver(first, Sampled("a", 1))
    active.deliver(first, Ended("a", FinishReason.STOP))
    assert (len(active), first in active) == (0, False)
    active.add(second)
    active.deliver(first, Sampled("a", 2))
    active.deliver(second, Sampled("a", 3))
    assert (old, new) == ([Sampled("a", 1), Ended("a", FinishReason.STOP)], [Sampled("a", 3)])


async def test_raising_receiver_does_not_affect_other_sequences() -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    active = ActiveSequences[ActiveSequence]()
    outputs = list[TokenOutput]()

    def fail(_: TokenOutput) -> None:
        raise ZeroDivisionError

    active.add(ActiveSequence(TokenRequest("a", (1,), 5), fail))
    active.add(ActiveSequence(TokenRequest("b", (1,), 5), outputs.append))
    active.fail_all("over")
    assert outputs == [Failed("b", "over")]
    assert [context["message"] for context in reported] == ["the receiver of a raised"]


def test_abort_all_emits_missing_outputs_and_ended() -> None:
    active = ActiveSequences[ActiveSequence]()
    outputs = list[TokenOutput]()
    waiting = ActiveSequence(TokenRequest("waiting", (1, 2), 5, prompt_logprobs=1), outputs.append)
    running = ActiveSequence(TokenRequest("running", (1, 2), 5), outputs.append)
    active.add(waiting)
    active.add(running)
    active.deliver(running, Scheduled("running", 0, 2))
    assert (active.num_started, active.abort_all(active.pop), len(active)) == (1, 2, 0)
    assert outputs == [
        Scheduled("running", 0, 2),
        Scheduled("waiting", 0, 0),
        PromptLogprobs("waiting", (None, None)),
        Ended("waiting", FinishReason.ABORT),
        Ended("running", FinishReason.ABORT),
    ]
