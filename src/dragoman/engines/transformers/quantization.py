"""Weights in fewer bits: as they lie in a directory, or made so by another library while they are loaded.

Keys and values, and what is computed between the layers, keep the numbers of `--dtype`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ...core.errors import EngineError
from .backend import library, torch


def build_quantization_args(config: Any, quantization: str | None, dtype: str, device: str) -> dict[str, Any]:  # noqa: ANN401 - untyped
    """What `from_pretrained` is told beside; nothing for a model that is not quantised.

    asked: `bitsandbytes` is NF4, four bits, as in vLLM; `torchao` is eight bits, weights only. Raises EngineError for
    what cannot be, ImportError where a library is missing.
    """
    if quantization is None:
        return _build_device_map(device) if is_quantized(config) else {}
    if is_quantized(config):
        method = config.quantization_config.get("quant_method")
        raise EngineError(f"the weights are quantised already ({method}); leave out --quantization")
    match quantization:
        case "bitsandbytes":
            # The library's own default computes in 32 bits.
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
    """Quantised weights are put onto their device while they are read. Needs accelerate."""
    return {"device_map": {"": device}}
