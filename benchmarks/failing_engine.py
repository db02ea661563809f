"""The embedded model, whose steps raise as after a CUDA error, for `engine_failure.py`:
`dragoman serve python:failing_engine:create`.

Once the file that FAILURE names exists, each step of this process raises for good, and
appends a line to the file.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from dragoman import Settings
from dragoman.engines.batching import BatchingEngine, Chunk, EngineConfig, build_rng
from dragoman.engines.tiny import find_bundled_model
from dragoman.engines.tiny.llama import read_model
from dragoman.engines.tiny.paged_llama import LlamaRunner, LlamaStates, PagedLlama


class FailingRunner(LlamaRunner):
    """A runner whose steps fail once its model has failed."""

    def __init__(self, model: FailingLlama, num_blocks: int) -> None:
        super().__init__(model.get_model, num_blocks)
        self._model = model

    def forward(self, chunks: Sequence[Chunk]) -> LlamaStates:
        self._model.check()
        return super().forward(chunks)


class FailingLlama(PagedLlama):
    """The embedded model, which fails for good when a file exists."""

    def __init__(self, file: Path) -> None:
        super().__init__(read_model(find_bundled_model()))
        self._file = file
        self._has_failed = False

    def check(self) -> None:
        """Raise if the model has failed."""
        if self._file.exists():
            self._has_failed = True
            with self._file.open("a") as file:
                file.write(f"{os.getpid()}\n")
        if self._has_failed:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def build_runner(self, num_blocks: int, num_state_slots: int = 0) -> FailingRunner:
        del num_state_slots
        return FailingRunner(self, num_blocks)


class FailingEngine(BatchingEngine):
    """A batching engine of that model."""

    tokenizer = find_bundled_model()


def create(argument: str, settings: Settings) -> FailingEngine:
    """Create the engine, as Dragoman calls it."""
    del argument, settings
    model = FailingLlama(Path(os.environ["FAILURE"]))
    return FailingEngine(model, EngineConfig(4096, 131072), build_rng)
