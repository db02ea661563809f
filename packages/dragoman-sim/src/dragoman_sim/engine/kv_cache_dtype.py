"""The number format of keys and values, as vLLM's `--kv-cache-dtype` names it."""

from __future__ import annotations

from collections.abc import Mapping

KV_CACHE_BYTES: Mapping[str, float] = {
    "auto": 2.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "fp8": 1.0,
    "fp8_e4m3": 1.0,
    "fp8_e5m2": 1.0,
    "fp8_inc": 1.0,
    # 512 numbers of one byte, their scales, and 64 numbers of 16 bits for positions.
    "fp8_ds_mla": 656 / 576,
}
"""Bytes of a number, by format. `auto` is the model's 16 bits."""


def check_kv_cache_dtype(dtype: str) -> str:
    """Return the format. Raises ValueError for one that is not simulated."""
    if dtype not in KV_CACHE_BYTES:
        raise ValueError(
            f"--kv-cache-dtype {dtype} is not simulated; use one of {', '.join(KV_CACHE_BYTES)}"
        )
    return dtype
