"""Quantized weights: as stored in a checkpoint, or quantized by a library while loading.

The KV cache and activations use `--dtype`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ...core.errors import EngineError
from .backend import library, torch


def build_quantization_args(config: Any, quantization: str | None, dtype: str, device: str) -> dict[str, Any]:  # noqa: ANN401 - untyped
    """Build the arguments of `from_pretrained`; empty for a model without quantization.

    quantization: `bitsandbytes` is 4-bit NF4, as in vLLM; `torchao` is 8-bit, weights only.

    Raises: EngineError for an impossible combination, ImportError if a library is missing.
    """
    if quantization is None:
        return _build_device_map(device) if is_quantized(config) else {}
    if is_quantized(config):
        method = config.quantization_config.get("quant_method")
        raise EngineError(f"the weights are quantised already ({method}); leave out --quantization")
    match quantization:
        case "bitsandbytes":
            # bitsandbytes computes in float32 by default.
            compute_dtype = config.get_text_config().dtype if dtype == "auto" else getattr(torch, dtype)
            quantization_config = library.BitsAndBytesConfig(
                load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=compute_dtype or torch.float32
            )
        case "torchao":
            quantization_config = library.TorchAoConfig(import_module("torchao.quantization").Int8WeightOnlyConfig())
        case _:
            raise EngineError(f"{quantization!r} is not a quantization method of this engine")
    return {"quantization_config": quantization_config, **_build_device_map(device)}


def is_quantized(config: Any) -> bool:  # noqa: ANN401 - untyped
    return getattr(config, "quantization_config", None) is not None


def _build_device_map(device: str) -> dict[str, Any]:
    """Build a device map: quantized weights are loaded directly onto their device. Needs accelerate."""
    return {"device_map": {"": device}}
