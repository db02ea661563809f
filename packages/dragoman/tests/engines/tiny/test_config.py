"""config.json of transformers 4 and 5; unsupported configurations are rejected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dragoman.core.errors import EngineError
from dragoman.engines.tiny.model import read_config, read_model

from .models import Shape, config, write_model


def write_config(tmp_path: Path, **changes: object) -> Path:
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps(
            {name: value for name, value in (config(Shape()) | changes).items() if value != "-"}
        )
    )
    return path


def test_rope_is_read_as_both_versions_of_transformers_write_it(tmp_path: Path) -> None:
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


def test_what_is_left_out_has_the_defaults_of_transformers(tmp_path: Path) -> None:
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
    ],
)
def test_what_would_be_computed_wrong_is_refused(tmp_path: Path, field: str, value: object) -> None:
    with pytest.raises(EngineError, match=r"config\.json"):
        read_config(write_config(tmp_path, **{field: value}))


def test_a_model_with_parts_that_a_llama_does_not_have_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path, Shape(tied=False))
    write_config(tmp_path, num_hidden_layers=1, tie_word_embeddings=False)
    with pytest.raises(EngineError, match=r"layers\.1"):
        read_model(tmp_path)
