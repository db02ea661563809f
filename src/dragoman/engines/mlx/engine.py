"""Loads a model of mlx-lm into a batching engine."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from ...core.errors import EngineError
from ..batching import BatchingEngine, BlockFiles, EngineLimits, build_rng
from ..batching.verify import build_trial_prompts, check_paging
from .backend import Network, caches, mx
from .model import MlxModel, MlxRunner, load_network

_GPU_KV_BYTES, _CPU_KV_BYTES = 4 << 30, 1 << 28


class _ModelShape(msgspec.Struct):
    """The fields of config.json that the engine needs."""

    vocab_size: int
    max_position_embeddings: int = 4096


def load(
    directory: Path,
    limits: EngineLimits,
    *,
    dtype: str = "auto",
    trust_remote_code: bool = False,
    files: BlockFiles | None = None,
) -> BatchingEngine:
    """Load the engine for a directory that mlx-lm can load, not started yet.

    The KV cache takes 4 GiB of a GPU, or 256 MiB of a CPU's memory.

    dtype: of the computation, as in mlx; `auto` is the checkpoint's.
    files: as in BatchingEngine.

    Raises: EngineError for an unsupported model.
    """
    network, config_json = load_network(directory, dtype=dtype, trust_remote_code=trust_remote_code)
    try:
        shape = msgspec.convert(config_json.get("text_config", config_json), _ModelShape)
    except msgspec.ValidationError as error:
        raise EngineError(f"{directory / 'config.json'}: {error}") from error
    model, bytes_per_token = build_paged_model(
        network, vocab=shape.vocab_size, max_positions=shape.max_position_embeddings
    )
    kv_bytes = _GPU_KV_BYTES if mx.default_device().type == mx.gpu else _CPU_KV_BYTES
    config = limits.build_config(
        max_positions=model.max_positions,
        num_kv_tokens=max(kv_bytes // bytes_per_token, 1),
        max_num_batched_tokens=512,
        max_step_pairs=1 << 22,
    )
    return BatchingEngine(model, config, build_rng, name="mlx-engine", files=files)


def build_paged_model(network: Network, *, vocab: int, max_positions: int) -> tuple[MlxModel, int]:
    """Build the paged model. Returns it and its KV bytes per token. Raises EngineError if its logits differ from the
    network's own.
    """
    model = MlxModel(network, vocab=vocab, max_positions=max_positions)
    expected = [
        np.array(network(mx.array([prompt]), cache=caches.make_prompt_cache(network))[0].astype(mx.float32))
        for prompt in build_trial_prompts(vocab, max_positions)
    ]
    runners: list[MlxRunner] = []

    def build_paged_runner(num_blocks: int, num_state_slots: int) -> MlxRunner:
        runners.append(model.build_runner(num_blocks, num_state_slots))
        return runners[0]

    kind = f"a model of mlx-lm's `{type(network).__module__.rpartition('.')[2]}`"
    check_paging(model, build_paged_runner, expected, kind=kind, tolerance=5e-2)
    return model, runners[0].bytes_per_token
