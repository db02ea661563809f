"""Details of a model directory, read from the headers of its files without the weights."""

from __future__ import annotations

from collections import Counter
from math import prod
from pathlib import Path

import msgspec

from ..pipeline.served_model import ModelDetails

MAX_HEADER_BYTES = 100_000_000
"""The limit of the safetensors format: https://huggingface.co/docs/safetensors."""


_KV_BYTES = 2
"""Bytes of a number in the KV cache, in float16 or bfloat16."""


class _Quantization(msgspec.Struct):
    quant_method: str | None = None
    bits: int | None = None


class _Text(msgspec.Struct):
    max_position_embeddings: int | None = None
    num_hidden_layers: int | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_size: int | None = None


class _Config(_Text):
    model_type: str | None = None
    quantization_config: _Quantization | None = None
    quantization: _Quantization | None = None
    text_config: _Text | None = None


class _Length(msgspec.Struct):
    max_position_embeddings: int | None = None


class _Tensor(msgspec.Struct):
    dtype: str
    shape: tuple[int, ...]


def read_details(path: Path) -> ModelDetails:
    """Read the details of a model directory. Details that cannot be read are None: they
    are optional.
    """
    parameters = 0
    dtypes = Counter[str]()
    files = sorted(path.glob("*.safetensors"))
    for file in files:
        try:
            with file.open("rb") as stream:
                length = int.from_bytes(stream.read(8), "little")
                # The length comes from the file: a damaged file must not cause a huge
                # allocation.
                header_bytes = stream.read(length) if length <= MAX_HEADER_BYTES else b"{}"
            header = msgspec.json.decode(header_bytes, type=dict[str, msgspec.Raw])
            tensors = [
                msgspec.json.decode(raw, type=_Tensor)
                for name, raw in header.items()
                if name != "__metadata__"
            ]
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        for tensor in tensors:
            parameters += prod(tensor.shape)
            dtypes[tensor.dtype] += prod(tensor.shape)
    try:
        config = msgspec.json.decode((path / "config.json").read_bytes(), type=_Config)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        config = _Config()
    # Multimodal models describe their language model in a separate object.
    text = config.text_config or config
    heads = text.num_attention_heads
    hidden = text.hidden_size
    head_dim = text.head_dim or (hidden // heads if hidden and heads else None)
    kv_bytes = None
    # There is no estimate for architectures whose fields have other names.
    if (
        text.num_hidden_layers is not None
        and head_dim is not None
        and (kv_heads := text.num_key_value_heads or heads)
    ):
        kv_bytes = 2 * text.num_hidden_layers * kv_heads * head_dim * _KV_BYTES
    return ModelDetails(
        source=str(path),
        format="safetensors" if files else None,
        family=config.model_type,
        quantization=_describe_quantization(config),
        dtype=dtypes.most_common(1)[0][0].lower() if dtypes else None,
        size=sum(file.stat().st_size for file in files) or None,
        # Packed (quantized) tensors have fewer elements than the model has parameters.
        parameters=parameters if parameters and _describe_quantization(config) is None else None,
        trained_length=text.max_position_embeddings,
        kv_bytes_per_token=kv_bytes,
    )


def _describe_quantization(config: _Config) -> str | None:
    quantization = config.quantization_config or config.quantization
    if quantization is None:
        return None
    bits = "" if quantization.bits is None else f"{quantization.bits}-bit"
    return " ".join(word for word in (quantization.quant_method, bits) if word) or None


def read_context(path: Path) -> int | None:
    """Read the longest context of a model directory, in tokens; None if unknown. Raises
    OSError.
    """
    try:
        config = msgspec.json.decode((path / "config.json").read_bytes(), type=_Length)
    except msgspec.DecodeError:
        return None
    return config.max_position_embeddings
