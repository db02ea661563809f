"""The engine over a model of the transformers library, and how it is loaded."""

from __future__ import annotations

from pathlib import Path

from ...core.errors import EngineError
from ..batching import BLOCK_SIZE, BatchingEngine, EngineConfig, SchedulerConfig, seeded
from .backend import Network, torch
from .model import LoadOptions, load_network
from .verify import page

_CPU_KV_BYTES = 4 << 30
_SHARE = 0.85
"""Of an accelerator's free memory, once the weights are there, for keys and values."""


def load(
    directory: Path,
    *,
    options: LoadOptions | None = None,
    max_model_len: int | None = None,
    max_num_seqs: int = 64,
    max_num_batched_tokens: int | None = None,
    num_kv_tokens: int | None = None,
    enable_prefix_caching: bool = True,
    max_num_waiting: int = 1024,
) -> BatchingEngine:
    """The engine for a directory that `AutoModelForCausalLM` can load, not started yet.

    max_model_len: at most what the model was trained for. num_kv_tokens: tokens whose keys and values are kept, by
    default what fits into an accelerator's memory, or into 4 GiB. Raises EngineError if the model cannot be served.
    """
    network = load_network(directory, options or LoadOptions())
    model, bytes_per_token = page(network)
    if max_model_len is not None and not 1 < max_model_len <= model.max_positions:
        raise EngineError(f"max_model_len must lie between 2 and the model's {model.max_positions}")
    if num_kv_tokens is None:
        num_kv_tokens = max(_room(network) // bytes_per_token, BLOCK_SIZE)
    if max_model_len is None:
        max_model_len = min(model.max_positions, num_kv_tokens)
    batched = max_num_batched_tokens or max(2048, max_num_seqs)
    if not 1 <= max_num_seqs <= batched:
        raise EngineError("max_num_seqs must be at least 1 and at most max_num_batched_tokens")
    scheduler = SchedulerConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=batched,
        max_step_pairs=1 << 24,
        enable_prefix_caching=enable_prefix_caching,
    )
    config = EngineConfig(
        max_model_len=max_model_len,
        num_kv_tokens=num_kv_tokens,
        max_num_waiting=max_num_waiting,
        scheduler=scheduler,
    )
    return BatchingEngine(model, config, seeded, name="transformers-engine")


def _room(network: Network) -> int:
    """Bytes for keys and values. On a CPU they are memory only once they are written."""
    if network.device.type != "cuda":
        return _CPU_KV_BYTES
    free, _ = torch.cuda.mem_get_info(network.device)
    return int(free * _SHARE)
