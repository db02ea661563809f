"""The engine over a model of the transformers library, and how it is loaded."""

from __future__ import annotations

from pathlib import Path

from ..batching import AdapterShelf, BatchingEngine, BlockFiles, EngineLimits, seeded
from ..batching.verify import check_paging, trial
from .backend import Network, torch
from .model import Floats, LoadOptions, TransformersModel, TransformersRunner, load_network
from .paged import NAME, Pool, register

_CPU_KV_BYTES = 4 << 30
_SHARE = 0.85
"""Of an accelerator's free memory, once the weights are there, for keys and values."""


def load(
    directory: Path, limits: EngineLimits, options: LoadOptions, files: BlockFiles | None = None
) -> tuple[BatchingEngine, AdapterShelf]:
    """The engine for a directory that `AutoModelForCausalLM` can load, not started yet, and where its adapters are.

    Keys and values take what is left of an accelerator's memory, or 4 GiB. files: as in BatchingEngine. Raises
    EngineError.
    """
    network = load_network(directory, options)
    model, bytes_per_token = page(network)
    config = limits.config(
        max_positions=model.max_positions,
        num_kv_tokens=max(_room(network) // bytes_per_token, 1),
        max_num_batched_tokens=2048,
        max_step_pairs=1 << 24,
    )
    adapters = AdapterShelf(model.lora.read)
    engine = BatchingEngine(model, config, seeded, name="transformers-engine", adapters=adapters, files=files)
    return engine, adapters


def page(network: Network) -> tuple[TransformersModel, int]:
    """The network with its attention replaced, and the bytes that it keeps of a token. Raises EngineError."""
    model = TransformersModel(network)
    expected = _by_itself(network, trial(model.vocab))
    register()
    kept: list[Pool] = []

    def paged(num_blocks: int) -> TransformersRunner:
        network.set_attn_implementation(NAME)
        runner = model.runner(num_blocks)
        kept.append(runner.pool)
        return runner

    tolerance = 1e-3 if network.dtype == torch.float32 else 5e-2
    check_paging(model, paged, expected, kind=type(network).__name__, tolerance=tolerance)
    return model, kept[0].bytes_per_token


def _by_itself(network: Network, ids: list[int]) -> Floats:
    with torch.inference_mode():
        tensor = torch.tensor([ids], device=network.device)
        return network(input_ids=tensor, use_cache=False).logits[0].float().cpu().numpy()


def _room(network: Network) -> int:
    """Bytes for keys and values. On a CPU they are memory only once they are written."""
    if network.device.type != "cuda":
        return _CPU_KV_BYTES
    free, _ = torch.cuda.mem_get_info(network.device)
    return int(free * _SHARE)
