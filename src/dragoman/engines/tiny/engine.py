"""The engine over the numpy Llama, and its loading."""

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
    """A batching engine whose tokens and logprobs are bitwise independent of concurrent sequences."""

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
        """Started separately from the engine, on demand."""


def load(
    directory: Path,
    limits: EngineLimits | None = None,
    rng_factory: RngFactory = build_rng,
    files: BlockFiles | None = None,
) -> TinyEngine:
    """Load the engine for a directory of config.json and *.safetensors, not started yet.

    rng_factory: builds the random generator of a sequence; by default seeded with the request's seed.
    files: as in BatchingEngine.

    Raises: EngineError for an unsupported model.
    """
    model = read_model(directory)
    config = (limits or EngineLimits()).build_config(
        max_positions=model.config.max_positions, num_kv_tokens=131072, max_num_batched_tokens=512
    )
    return TinyEngine(model, config, rng_factory, files=files)


def find_bundled_model() -> Path:
    """Find the model bundled with this package."""
    return Path(str(resources.files(__package__ or "") / "data"))
