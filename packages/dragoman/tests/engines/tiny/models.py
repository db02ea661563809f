"""Write small Llamas with random weights in transformers' format."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from dragoman.engines.tiny.llama import Llama, read_model


class Shape(Struct, frozen=True):
    layers: int = 2
    hidden: int = 32
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    intermediate: int = 48
    vocab: int = 96
    max_positions: int = 1024
    tied: bool = True
    rope: dict[str, float | str] | None = None


PLAIN = Shape()


def write_model(
    directory: Path,
    shape: Shape = PLAIN,
    *,
    norm: float = 1.0,
    broken_token: int | None = None,
    seed: int = 0,
) -> Path:
    """Write a directory with config.json and model.safetensors.

    norm: a factor for the last norm's weight.
    broken_token: the id of a token whose embedding is NaN.
    """
    rng = np.random.default_rng(seed)
    tensors = {
        name: rng.standard_normal(dims, np.float32) * scale for name, dims, scale in _tensors(shape)
    }
    tensors["model.norm.weight"] *= norm
    if broken_token is not None:
        tensors["model.embed_tokens.weight"][broken_token] = np.nan
    write_tensors(directory / "model.safetensors", tensors)
    (directory / "config.json").write_text(json.dumps(config(shape)))
    return directory


def make_model(
    directory: Path,
    shape: Shape = PLAIN,
    *,
    norm: float = 1.0,
    broken_token: int | None = None,
    seed: int = 0,
) -> Llama:
    return read_model(
        write_model(directory, shape, norm=norm, broken_token=broken_token, seed=seed)
    )


def config(shape: Shape) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "max_position_embeddings": shape.max_positions,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": shape.tied,
        "rope_parameters": shape.rope or {"rope_theta": 10000.0, "rope_type": "default"},
    }


def write_tensors(
    path: Path, tensors: Mapping[str, NDArray[np.generic]], dtype: str = "F32"
) -> None:
    """Write a safetensors file; arrays are written unchanged, with the given dtype
    name.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, tensor in tensors.items():
        raw = tensor.tobytes()
        header[name] = {
            "dtype": dtype,
            "shape": tensor.shape,
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def _tensors(shape: Shape) -> list[tuple[str, tuple[int, ...], float]]:
    """Return names, shapes and standard deviations, which are so large that likely
    tokens differ between steps.
    """
    hidden = shape.hidden
    queries = shape.heads * shape.head_dim
    keys = shape.kv_heads * shape.head_dim
    tensors: list[tuple[str, tuple[int, ...], float]] = [
        ("model.embed_tokens.weight", (shape.vocab, hidden), 1.0),
        ("model.norm.weight", (hidden,), 1.0),
    ]
    if not shape.tied:
        tensors.append(("lm_head.weight", (shape.vocab, hidden), 1.0))
    for index in range(shape.layers):
        prefix = f"model.layers.{index}."
        tensors += [
            (prefix + "input_layernorm.weight", (hidden,), 1.0),
            (prefix + "post_attention_layernorm.weight", (hidden,), 1.0),
            (prefix + "self_attn.q_proj.weight", (queries, hidden), 0.3),
            (prefix + "self_attn.k_proj.weight", (keys, hidden), 0.3),
            (prefix + "self_attn.v_proj.weight", (keys, hidden), 0.3),
            (prefix + "self_attn.o_proj.weight", (hidden, queries), 0.3),
            (prefix + "mlp.gate_proj.weight", (shape.intermediate, hidden), 0.3),
            (prefix + "mlp.up_proj.weight", (shape.intermediate, hidden), 0.3),
            (prefix + "mlp.down_proj.weight", (hidden, shape.intermediate), 0.3),
        ]
    return tensors
