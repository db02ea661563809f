"""The engine over the Llama in numpy, and how it is loaded."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import resources
from pathlib import Path

from ..batching import BatchingEngine, BlockFiles, EngineConfig, EngineLimits, build_rng
from ..batching.sampling import RngFactory
from .embedding import TinyEmbedder
from .model import Llama, read_model
from .runner import PagedLlama


class TinyEngine(BatchingEngine):
    """A sequence's tokens and logprobs do not depend on what else runs, to the last bit."""

    def __init__(
        self,
        model: Llama,
        config: EngineConfig,
        rng_factory: RngFactory,
        clock: Callable[[], float] = time.monotonic,
        files: BlockFiles | None = None,
    ) -> None:
        paged = PagedLlama(model)
        super().__init__(paged, config, rng_factory, clock, name="tiny-engine", files=files)
        self.embedder = TinyEmbedder(paged.get_model, config.max_model_len, config.max_num_waiting)
        """Not started with the engine: some do without it."""


def load(
    directory: Path,
    limits: EngineLimits | None = None,
    rng_factory: RngFactory = build_rng,
    files: BlockFiles | None = None,
) -> TinyEngine:
    """The engine for a directory of config.json and *.safetensors, not started yet.

    draws: where chance comes from; by default each sequence has a generator of its own, seeded as its request says.
    files: as in BatchingEngine.
    Raises EngineError if the model cannot be served.
    """
    model = read_model(directory)
    config = (limits or EngineLimits()).build_config(
        max_positions=model.config.max_positions, num_kv_tokens=131072, max_num_batched_tokens=512
    )
    return TinyEngine(model, config, rng_factory, files=files)


def find_bundled_model() -> Path:
    """The model that comes with this package."""
    return Path(str(resources.files(__package__ or "") / "data"))
