"""Run `dragoman` with a model that a long prompt breaks until the process ends, as an
illegal memory access breaks a CUDA context.

Usage: python -m tests.launch.faulty_server serve tiny ...
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.engines.faults import FaultyModel

from dragoman.engines.batching import BatchingEngine, Chunk, EngineConfig, Model
from dragoman_cli.main import main

FATAL_LENGTH = 400
"""Tokens of a prompt that breaks the model."""


def break_model(model: Model) -> FaultyModel:
    """Return the model, which raises in every step after that of a long prompt."""
    is_broken = False

    def find_fault(chunks: Sequence[Chunk]) -> RuntimeError | None:
        nonlocal is_broken
        is_broken |= any(chunk.sequence.num_prompt_tokens >= FATAL_LENGTH for chunk in chunks)
        return RuntimeError("CUDA error: an illegal memory access") if is_broken else None

    return FaultyModel(model, find_fault)


def break_engines() -> None:
    """Break the model of each batching engine that is built."""
    build = BatchingEngine.__init__

    def build_broken(
        self: BatchingEngine, model: Model, config: EngineConfig, *arguments: Any, **options: Any
    ) -> None:
        build(self, break_model(model), config, *arguments, **options)

    BatchingEngine.__init__ = build_broken


if __name__ == "__main__":
    break_engines()
    main()
