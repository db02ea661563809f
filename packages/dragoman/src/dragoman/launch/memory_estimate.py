"""The main memory that a model will need, estimated from its files."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from ..core.errors import EngineError
from ..engines.hardware import MAX_TORCH_KV_BYTES, compute_kv_budget
from ..settings import (
    Settings,
)
from .model_builder import build_engine_limits
from .model_name import parse_model


class _TorchShape(msgspec.Struct):
    """The fields of config.json that determine the size of the KV cache."""

    num_hidden_layers: int = 0
    num_attention_heads: int = 1
    num_key_value_heads: int | None = None
    hidden_size: int = 0
    head_dim: int | None = None
    dtype: str | None = None
    torch_dtype: str | None = None

    def compute_bytes_per_token(self) -> int:
        heads = self.num_key_value_heads or self.num_attention_heads
        width = self.head_dim or self.hidden_size // self.num_attention_heads
        item_size = 4 if (self.dtype or self.torch_dtype or "float32") == "float32" else 2
        return 2 * self.num_hidden_layers * heads * width * item_size


def measure_memory(settings: Settings) -> int:
    """Return the bytes of a model's weights and of the KV cache that its engine may
    allocate in main memory.
    """
    kind, path = parse_model(settings.model)
    kv_bytes = 0
    if kind == "llamacpp" and Path(path).is_file():
        from ..engines.llamacpp import measure_kv_cache, read_metadata  # noqa: PLC0415 - as below

        # A damaged file is reported when it is loaded.
        with suppress(EngineError):
            kv_bytes = measure_kv_cache(read_metadata(Path(path)), build_engine_limits(settings))
    elif kind == "transformers" and settings.device in ("auto", "cpu"):
        kv_bytes = compute_kv_budget(MAX_TORCH_KV_BYTES)
        if settings.kv_cache_tokens is not None:
            shape = msgspec.json.decode((Path(path) / "config.json").read_bytes(), type=_TorchShape)
            kv_bytes = settings.kv_cache_tokens * shape.compute_bytes_per_token()
    return measure_weights(settings.model) + kv_bytes


def measure_weights(model: str) -> int:
    """Return the bytes of the weights in a model's directory or file; 0 if there are
    none.

    model: a path, with or without an engine's prefix.
    """
    path = next(
        (Path(text) for text in (model, model.partition(":")[2]) if text and Path(text).exists()),
        None,
    )
    if path is None:
        return 0
    if path.is_file():
        from ..engines.llamacpp import find_parts  # noqa: PLC0415 - as below

        files = [part for part in find_parts(path) if part.exists()]
    else:
        files = [*path.glob("*.safetensors"), *path.glob("*.gguf")]
    return sum(file.stat().st_size for file in files)
