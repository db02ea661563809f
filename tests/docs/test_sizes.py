"""The documented size of the embedded model is the size of its file."""

from __future__ import annotations

from math import prod
from pathlib import Path

import msgspec
import pytest

from dragoman.engines.tiny import find_bundled_model

ROOT = Path(__file__).parents[2]


class Tensor(msgspec.Struct):
    shape: list[int]


@pytest.mark.parametrize("page", ["README.md", "training/tiny/README.md"])
def test_documented_model_size_matches_weights(page: str):
    weights = (find_bundled_model() / "model.safetensors").read_bytes()
    end = 8 + int.from_bytes(weights[:8], "little")
    header = msgspec.json.decode(weights[8:end], type=dict[str, msgspec.Raw])
    tensors = [
        msgspec.json.decode(raw, type=Tensor)
        for name, raw in header.items()
        if name != "__metadata__"
    ]
    parameters = sum(prod(tensor.shape) for tensor in tensors)
    text = (ROOT / page).read_text(encoding="utf-8")
    assert f"{parameters:,} parameters" in text
    assert f"{(len(weights) - end) / 1e6:.1f} MB" in text
