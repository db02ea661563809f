"""The same model in transformers generates the same tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.core.token_engine import TokenRequest
from dragoman.engines.tiny import find_bundled_model
from dragoman.engines.tiny.llama import Llama

from ..harness import GREEDY, run_alone
from .models import Shape, make_model, write_model

torch: Any = pytest.importorskip("torch", reason="needs torch (CPU) to compare with")
transformers: Any = pytest.importorskip("transformers", reason="needs transformers to compare with")

pytestmark = pytest.mark.torch

LENGTHS = [1, 2, 17, 130, 1500]


def greedy(directory: Path, prompt: list[int], count: int) -> list[int]:
    model = transformers.LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32)
    ids = torch.tensor([prompt])
    # With an explicit mask, as otherwise a padding token within a prompt would be
    # treated as padding.
    fixed = {
        "max_new_tokens": count,
        "min_new_tokens": count,
        "do_sample": False,
        "eos_token_id": None,
    }
    with torch.no_grad():
        generated = model.generate(ids, attention_mask=torch.ones_like(ids), **fixed)
    return generated[0, len(prompt) :].tolist()


@pytest.mark.parametrize("length", LENGTHS)
def test_bundled_model_tokens_match_transformers(bundled_model: Llama, length: int) -> None:
    prompt = np.random.default_rng(length).integers(0, bundled_model.config.vocab, length).tolist()
    request = TokenRequest(id="a", prompt=tuple(prompt), max_tokens=24, sampling=GREEDY)
    assert run_alone(bundled_model, request).tokens == greedy(find_bundled_model(), prompt, 24)


@pytest.mark.parametrize(
    "shape",
    [
        Shape(tied=False),
        Shape(kv_heads=4),
        Shape(rope={"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}),
        Shape(
            rope={
                "rope_type": "llama3",
                "rope_theta": 5e5,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 128,
            }
        ),
    ],
)
def test_llama_variants_tokens_match_transformers(tmp_path: Path, shape: Shape) -> None:
    write_model(tmp_path, shape)
    prompt = np.random.default_rng(1).integers(0, shape.vocab, 300).tolist()
    request = TokenRequest(id="a", prompt=tuple(prompt), max_tokens=24, sampling=GREEDY)
    assert run_alone(make_model(tmp_path, shape), request).tokens == greedy(tmp_path, prompt, 24)
