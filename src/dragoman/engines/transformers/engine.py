"""Loads a model of the transformers library into a batching engine."""

from __future__ import annotations

import logging
from pathlib import Path

from msgspec import Struct

from ...core.errors import EngineError
from ..batching import AdapterRegistry, BatchingEngine, BlockFiles, EngineLimits, build_rng
from ..batching.verify import build_test_tokens, check_paging
from .backend import Network, torch
from .model import Floats, TransformersModel, TransformersOptions, TransformersRunner, load_network
from .paged_attention import KvPool, register, set_attention
from .self_check import check_vision
from .vision import TransformersVision, is_vision_model, load_processor
from .vision_runner import TransformersVisionRunner

log = logging.getLogger(__name__)

_CPU_KV_BYTES = 4 << 30
_KV_MEMORY_SHARE = 0.85
"""Share of an accelerator's free memory, after the weights are loaded, for the KV cache."""


class LoadedTransformers(Struct, frozen=True):
    """A loaded model.

    engine: not started yet.
    adapters: the registry of its LoRA adapters.
    vision: None for a text-only model.
    """

    engine: BatchingEngine
    adapters: AdapterRegistry
    vision: TransformersVision | None


def load(
    directory: Path, limits: EngineLimits, options: TransformersOptions, files: BlockFiles | None = None
) -> LoadedTransformers:
    """Load the engine for a directory that `AutoModelForCausalLM` or `AutoModelForImageTextToText` can load.

    The KV cache takes a share of an accelerator's free memory, or 4 GiB. files: as in BatchingEngine.

    Raises: EngineError.
    """
    network = load_network(directory, options)
    model, bytes_per_token = build_paged_model(network, options.attention_backend)
    vision = load_vision(model, network, directory, options) if is_vision_model(network.config) else None
    config = limits.build_config(
        max_positions=model.max_positions,
        num_kv_tokens=max(_find_kv_bytes(network) // bytes_per_token, 1),
        max_num_batched_tokens=2048,
        max_step_pairs=1 << 24,
    )
    adapters = AdapterRegistry(model.lora.read)
    engine = BatchingEngine(
        model,
        config,
        build_rng,
        name="transformers-engine",
        adapters=adapters,
        files=files,
        vision_runner=model.vision_runner,
    )
    return LoadedTransformers(engine, adapters, vision)


def build_paged_model(network: Network, attention_backend: str = "auto") -> tuple[TransformersModel, int]:
    """Replace the network's attention by paged attention. Returns the model and its KV bytes per token. Raises
    EngineError."""
    model = TransformersModel(network, attention_backend)
    expected = _compute_reference(network, build_test_tokens(model.vocab))
    register()
    pools: list[KvPool] = []

    def build_paged_runner(num_blocks: int) -> TransformersRunner:
        set_attention(network, paged=True)
        runner = model.build_runner(num_blocks)
        pools.append(runner.pool)
        return runner

    check_paging(model, build_paged_runner, expected, kind=type(network).__name__, tolerance=_choose_tolerance(network))
    return model, pools[0].bytes_per_token


def load_vision(
    model: TransformersModel, network: Network, directory: Path, options: TransformersOptions
) -> TransformersVision | None:
    """Enable vision if the paged model reproduces the network's own logits; otherwise the model is served text-only."""
    try:
        processor = load_processor(directory, network.config, trust_remote_code=options.trust_remote_code)
        vision, vision_runner = TransformersVision(processor), TransformersVisionRunner(network)
        model.vision_runner = vision_runner
        check_vision(model, network, processor, vision, tolerance=_choose_tolerance(network))
    except EngineError as error:
        log.warning("%s is served without images: %s", directory, error.message)
        model.vision_runner = None
        return None
    finally:
        set_attention(network, paged=True)
    return vision


def _choose_tolerance(network: Network) -> float:
    return 1e-3 if network.dtype == torch.float32 else 5e-2


def _compute_reference(network: Network, ids: list[int]) -> Floats:
    with torch.inference_mode():
        tensor = torch.tensor([ids], device=network.device)
        return network(input_ids=tensor, use_cache=False).logits[0].float().cpu().numpy()


def _find_kv_bytes(network: Network) -> int:
    """Find the size of the KV cache, bytes. On a CPU its memory is allocated on first write."""
    if network.device.type != "cuda":
        return _CPU_KV_BYTES
    free, _ = torch.cuda.mem_get_info(network.device)
    return int(free * _KV_MEMORY_SHARE)
