"""The engine over the Llama in numpy, and how it is loaded."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import resources
from pathlib import Path

from ...core.errors import EngineError
from ..batching import BatchingEngine, EngineConfig, SchedulerConfig, seeded
from ..batching.sampling import Draws
from .embedding import TinyEmbedder
from .model import Llama, read_model
from .runner import PagedLlama


class TinyEngine(BatchingEngine):
    """A sequence's tokens and logprobs do not depend on what else runs, to the last bit."""

    def __init__(
        self, model: Llama, config: EngineConfig, draws: Draws, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(PagedLlama(model), config, draws, clock, name="tiny-engine")
        self.embedder = TinyEmbedder(model, config.max_model_len, config.max_num_waiting)
        """Not started with the engine: some do without it."""


def load(
    directory: Path,
    *,
    max_model_len: int | None = None,
    max_num_seqs: int = 64,
    max_num_batched_tokens: int | None = None,
    num_kv_tokens: int = 131072,
    enable_prefix_caching: bool = True,
    max_num_waiting: int = 1024,
    draws: Draws | None = None,
) -> TinyEngine:
    """The engine for a directory of config.json and *.safetensors, not started yet.

    max_model_len: at most what the model was trained for, which is also the default.
    max_num_batched_tokens: by default 512, or max_num_seqs if that is more. draws: where chance
    comes from; by default each sequence has a generator of its own, seeded as its request says. EngineError if
    the model cannot be served.
    """
    model = read_model(directory)
    most = model.config.max_positions
    if max_model_len is not None and not 1 < max_model_len <= most:
        raise EngineError(f"max_model_len must lie between 2 and the model's {most}, not {max_model_len}")
    if max_num_batched_tokens is None:
        max_num_batched_tokens = max(512, max_num_seqs)
    if not 1 <= max_num_seqs <= max_num_batched_tokens:
        raise EngineError("max_num_seqs must be at least 1 and at most max_num_batched_tokens")
    scheduler = SchedulerConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        enable_prefix_caching=enable_prefix_caching,
    )
    config = EngineConfig(
        max_model_len=max_model_len or min(most, num_kv_tokens),
        num_kv_tokens=num_kv_tokens,
        max_num_waiting=max_num_waiting,
        scheduler=scheduler,
    )
    return TinyEngine(model, config, draws or seeded)


def embedded() -> Path:
    """The model that comes with this package."""
    return Path(str(resources.files(__package__ or "") / "data"))
