"""Run requests on a batching engine and collect their outputs, with a thread or without
one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from dragoman.core.request import Sampling
from dragoman.core.token_engine import (
    Ended,
    Failed,
    PromptLogprobs,
    Sampled,
    Scheduled,
    TokenEngine,
    TokenLogprob,
    TokenOutput,
    TokenRequest,
)
from dragoman.engines.batching import BatchingEngine, BlockFiles, Model, SchedulerConfig, build_rng
from dragoman.engines.batching.adapter_registry import LoadedAdapter
from dragoman.engines.batching.sequence import Sequence
from dragoman.engines.batching.stepper import Stepper
from dragoman.engines.tiny.llama import Llama
from dragoman.engines.tiny.paged_llama import PagedLlama

GREEDY = Sampling(temperature=0)
PLAIN = SchedulerConfig()
ROOM = 1 << 30
PATIENCE = 120.0
"""Seconds without output after which an engine counts as hung, even on a busy machine.
"""


class Outputs(list[TokenOutput]):
    """The outputs of one sequence, in order."""

    @property
    def tokens(self) -> list[int]:
        return [output.token for output in self if isinstance(output, Sampled)]

    @property
    def scores(self) -> list[TokenLogprob | None]:
        return [output.logprobs for output in self if isinstance(output, Sampled)]

    @property
    def cached(self) -> list[int]:
        return [output.cached_tokens for output in self if isinstance(output, Scheduled)]

    @property
    def prompt(self) -> list[PromptLogprobs]:
        return [output for output in self if isinstance(output, PromptLogprobs)]

    @property
    def end(self) -> Ended | Failed | None:
        last = self[-1] if self else None
        return last if isinstance(last, (Ended, Failed)) else None

    @property
    def answer(self) -> list[TokenOutput]:
        """The outputs without those that depend on the cache. They must not depend on
        other sequences.
        """
        return [output for output in self if not isinstance(output, Scheduled)]


class StepperHarness:
    """A stepper with its sequences; tests run each step explicitly."""

    def __init__(
        self,
        model: Llama | Model,
        limits: SchedulerConfig = PLAIN,
        *,
        num_kv_tokens: int = 4096,
        max_model_len: int = 0,
        files: BlockFiles | None = None,
    ) -> None:
        self._model = PagedLlama(model) if isinstance(model, Llama) else model
        self._max_model_len = max_model_len or self._model.max_positions
        self.stepper = Stepper(self._model, limits, num_kv_tokens, files)
        self.sequences: list[Sequence] = []
        self.outputs: list[Outputs] = []

    def add(self, request: TokenRequest, adapter: LoadedAdapter | None = None) -> Outputs:
        key = len(self.sequences)
        vocab = self._model.vocab
        most = self._max_model_len
        sequence = Sequence(
            key, request, vocab=vocab, max_model_len=most, rng_factory=build_rng, adapter=adapter
        )
        self.sequences.append(sequence)
        self.outputs.append(Outputs())
        self.stepper.scheduler.add(sequence)
        return self.outputs[key]

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            for output in self.stepper.step():
                self.outputs[output.key].append(output.output)

    def finish_despite_faults(self) -> None:
        """Compute steps as the worker does, until there is no work."""
        while self.stepper.scheduler.has_work:
            try:
                outputs = self.stepper.step()
            except BaseException as error:
                outputs = self.stepper.recover(error)
                assert self.stepper.failure is None
            for output in outputs:
                self.outputs[output.key].append(output.output)

    def finish(self) -> None:
        while self.stepper.scheduler.has_work:
            self.step()


def run_alone(
    model: Llama | Model, request: TokenRequest, limits: SchedulerConfig = PLAIN
) -> Outputs:
    """Run the request alone and return its outputs."""
    bench = StepperHarness(model, limits)
    outputs = bench.add(request)
    bench.finish()
    return outputs


@contextmanager
def files(directory: Path, most: int = ROOM) -> Generator[BlockFiles]:
    opened = BlockFiles(directory, most)
    opened.open()
    try:
        yield opened
    finally:
        opened.close()


def generate_with_files(
    model: Llama | Model, directory: Path, ask: TokenRequest, most: int = ROOM
) -> Outputs:
    """Generate with a new engine that offloads its blocks to files, and stop it."""
    with files(directory, most) as store:
        bench = StepperHarness(model, files=store)
        outputs = bench.add(ask)
        bench.finish()
        bench.stepper.offload(1000)
    return outputs


class EngineClient:
    """Sends requests to a started engine and waits for its outputs."""

    def __init__(self, engine: TokenEngine) -> None:
        self._engine = engine
        self._has_output = asyncio.Event()

    def send(self, request: TokenRequest) -> Outputs:
        outputs = Outputs()

        def deliver(output: TokenOutput) -> None:
            outputs.append(output)
            self._has_output.set()

        self._engine.add(request, deliver)
        return outputs

    async def ends(self, *streams: Outputs) -> None:
        """Wait until all requests have ended."""
        await self.until(*streams, tokens=None)

    async def until(self, *streams: Outputs, tokens: int | None) -> None:
        """Wait until each request has so many tokens or has ended; None waits for the
        end.
        """
        while not all(_has_reached(stream, tokens) for stream in streams):
            self._has_output.clear()
            await asyncio.wait_for(self._has_output.wait(), PATIENCE)

    async def ask(self, request: TokenRequest) -> Outputs:
        outputs = self.send(request)
        await self.ends(outputs)
        return outputs


class Client(EngineClient):
    """A `Speaker` for a batching engine."""

    def __init__(self, engine: BatchingEngine) -> None:
        super().__init__(engine)
        self.engine = engine


@asynccontextmanager
async def run_client(engine: BatchingEngine) -> AsyncGenerator[Client]:
    await engine.start()
    try:
        yield Client(engine)
    finally:
        await engine.stop()


class AllowedTokensMatcher:
    """A matcher that allows these tokens at each step, then only the end. It can fail
    on demand.
    """

    def __init__(self, steps: Iterable[Iterable[int]], *, fail_at: int | None = None) -> None:
        self._steps = [frozenset(step) for step in steps]
        self._place = 0
        self._fail_at = fail_at

    def mask(self) -> bytes:
        if self._place == self._fail_at:
            raise ArithmeticError("a grammar that cannot go on")
        bits = sum(1 << token for token in self._steps[self._place])
        return bits.to_bytes(32, "little")

    def allows(self, token: int) -> bool:
        return token in self._steps[self._place]

    def replace(self, token: int) -> int:
        return token

    def advance(self, token: int) -> bool:
        if token not in self._steps[self._place]:
            return False
        self._place += 1
        return True

    @property
    def finished(self) -> bool:
        return self._place == len(self._steps)

    @property
    def was_closed(self) -> bool:
        return False


def _has_reached(stream: Outputs, tokens: int | None) -> bool:
    return stream.end is not None or (tokens is not None and len(stream.tokens) >= tokens)
