"""config.json of transformers 4 and 5; unsupported configurations are rejected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dragoman.core.errors import EngineError
from dragoman.engines.tiny.llama import read_model
from dragoman.engines.tiny.llama_config import read_config

from .models import Shape, config, write_model


def write_config(tmp_path: Path, **changes: object) -> Path:
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps(
            {name: value for name, value in (config(Shape()) | changes).items() if value != "-"}
        )
    )
    return path


def test_read_config_parses_rope_of_transformers_4_and_5(tmp_path: Path) -> None:
    assert (
        read_config(write_config(tmp_path, rope_parameters={"rope_theta": 5e5})).rope.theta == 5e5
    )
    old = read_config(
        write_config(
            tmp_path,
            rope_parameters="-",
            rope_theta=2e4,
            rope_scaling={"type": "linear", "factor": 4},
        )
    )
    assert (old.rope.theta, old.rope.kind, old.rope.factor) == (2e4, "linear", 4)
    assert read_config(write_config(tmp_path, rope_parameters="-")).rope.theta == 10000


def test_read_config_uses_transformers_defaults(tmp_path: Path) -> None:
    read = read_config(
        write_config(tmp_path, num_key_value_heads="-", head_dim="-", tie_word_embeddings="-")
    )
    assert (read.kv_heads, read.head_dim, read.is_tied) == (4, 8, False)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("architectures", ["Qwen2ForCausalLM"]),
        ("hidden_act", "gelu"),
        ("attention_bias", True),
        ("mlp_bias", True),
        ("num_key_value_heads", 3),
        ("rope_parameters", {"rope_type": "yarn", "rope_theta": 1e4}),
        ("hidden_size", "many"),
        *(
            (name, value)
            for name in ("max_position_embeddings", "num_hidden_layers", "vocab_size", "head_dim")
            for value in (0, -1, 1 << 60)
        ),
        *(("rms_norm_eps", value) for value in (1e308, 1.0, -1e-6)),
        ("rope_parameters", {"rope_theta": 0}),
        ("rope_parameters", {"rope_theta": 1e308}),
    ],
)
def test_read_config_unsupported_value_raises(tmp_path: Path, field: str, value: object) -> None:
    with pytest.raises(EngineError, match=r"config\.json"):
        read_config(write_config(tmp_path, **{field: value}))


def test_read_model_with_unexpected_tensors_raises(tmp_path: Path) -> None:
    write_model(tmp_path, Shape(tied=False))
    write_config(tmp_path, num_hidden_layers=1, tie_word_embeddings=False)
    with pytest.raises(EngineError, match=r"layers\.1"):
        read_model(tmp_path)
