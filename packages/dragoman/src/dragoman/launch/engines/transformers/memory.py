"""The main memory that the KV cache of a model may take."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ....engines.hardware import MAX_TORCH_KV_BYTES, compute_kv_budget
from ....settings import Settings
from .settings import TransformersSettings


class _Shape(msgspec.Struct):
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


def measure_kv_cache(settings: Settings, directory: Path) -> int:
    """Return the bytes that the KV cache may take; none on a device with its own memory."""
    if settings.of(TransformersSettings).device not in ("auto", "cpu"):
        return 0
    if settings.kv_cache_tokens is None:
        return compute_kv_budget(MAX_TORCH_KV_BYTES)
    shape = msgspec.json.decode((directory / "config.json").read_bytes(), type=_Shape)
    return settings.kv_cache_tokens * shape.compute_bytes_per_token()
