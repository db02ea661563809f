"""The engine over a model of the transformers library, and how it is loaded."""

from __future__ import annotations

import logging
from pathlib import Path

from msgspec import Struct

from ...core.errors import EngineError
from ..batching import AdapterShelf, BatchingEngine, BlockFiles, EngineLimits, seeded
from ..batching.verify import check_paging, trial
from .backend import Network, torch
from .model import Floats, LoadOptions, TransformersModel, TransformersRunner, load_network
from .paged import Pool, attention, register
from .sight import TransformersSight
from .trial import check_sight
from .vision import TransformersVision, load_processor, sees

log = logging.getLogger(__name__)

_CPU_KV_BYTES = 4 << 30
_SHARE = 0.85
"""Of an accelerator's free memory, once the weights are there, for keys and values."""


class Loaded(Struct, frozen=True):
    """engine: not started yet. adapters: where its adapters are. vision: None for a model that sees nothing."""

    engine: BatchingEngine
    adapters: AdapterShelf
    vision: TransformersVision | None


def load(directory: Path, limits: EngineLimits, options: LoadOptions, files: BlockFiles | None = None) -> Loaded:
    """The engine for a directory that `AutoModelForCausalLM` or `AutoModelForImageTextToText` can load.

    Keys and values take what is left of an accelerator's memory, or 4 GiB. files: as in BatchingEngine. Raises
    EngineError.
    """
    network = load_network(directory, options)
    model, bytes_per_token = page(network, options.attention_backend)
    vision = open_eyes(model, network, directory, options) if sees(network.config) else None
    config = limits.config(
        max_positions=model.max_positions,
        num_kv_tokens=max(_room(network) // bytes_per_token, 1),
        max_num_batched_tokens=2048,
        max_step_pairs=1 << 24,
    )
    adapters = AdapterShelf(model.lora.read)
    engine = BatchingEngine(
        model, config, seeded, name="transformers-engine", adapters=adapters, files=files, sight=model.sight
    )
    return Loaded(engine, adapters, vision)


def page(network: Network, attention_backend: str = "auto") -> tuple[TransformersModel, int]:
    """The network with its attention replaced, and the bytes that it keeps of a token. Raises EngineError."""
    model = TransformersModel(network, attention_backend)
    expected = _by_itself(network, trial(model.vocab))
    register()
    kept: list[Pool] = []

    def paged(num_blocks: int) -> TransformersRunner:
        attention(network, paged=True)
        runner = model.runner(num_blocks)
        kept.append(runner.pool)
        return runner

    check_paging(model, paged, expected, kind=type(network).__name__, tolerance=_tolerance(network))
    return model, kept[0].bytes_per_token


def open_eyes(
    model: TransformersModel, network: Network, directory: Path, options: LoadOptions
) -> TransformersVision | None:
    """Let a model see, if it sees the same in pages as by itself; what does not is served without its eyes."""
    try:
        processor = load_processor(directory, network.config, trust_remote_code=options.trust_remote_code)
        vision, sight = TransformersVision(processor), TransformersSight(network)
        model.sight = sight
        check_sight(model, network, processor, vision, tolerance=_tolerance(network))
    except EngineError as error:
        log.warning("%s is served without images: %s", directory, error.message)
        model.sight = None
        return None
    finally:
        attention(network, paged=True)
    return vision


def _tolerance(network: Network) -> float:
    return 1e-3 if network.dtype == torch.float32 else 5e-2


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
