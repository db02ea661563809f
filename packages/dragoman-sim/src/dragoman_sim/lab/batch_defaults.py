"""vLLM's default limits of a step, which depend on the device."""

from __future__ import annotations

from .gpus import Gpu

_GIB = 2**30


def find_batch_defaults(gpu: Gpu) -> dict[str, int]:
    """Return max_num_seqs and max_num_batched_tokens of `vllm serve` on this device.

    Source: `EngineArgs.get_batch_defaults` of vLLM (vllm/engine/arg_utils.py) for its
    API server.
    """
    if gpu.memory >= 160 * _GIB:
        return {"max_num_seqs": 1024, "max_num_batched_tokens": 16384}
    # vLLM excludes the A100, whose throughput a larger budget lowers
    # (vllm-project/vllm#17885), and the DGX Spark, which has memory but not the speed.
    is_excluded = any(name in gpu.name.lower() for name in ("a100", "gb10"))
    if gpu.memory >= 70 * _GIB and not is_excluded:
        return {"max_num_seqs": 1024, "max_num_batched_tokens": 8192}
    return {"max_num_seqs": 256, "max_num_batched_tokens": 2048}
