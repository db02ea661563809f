"""Models of mlx-lm, batched and paged, generate what mlx-lm generates with them alone."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest

pytest.importorskip("mlx.core", reason="needs mlx")
pytest.importorskip("mlx_lm", reason="needs mlx-lm")

from dragoman.core.errors import EngineError
from dragoman.core.token_engine import TokenRequest
from dragoman.engines import tiny
from dragoman.engines.batching import SchedulerConfig
from dragoman.engines.mlx import build_paged_model, caches, load_network, mx
from dragoman.engines.tiny.llama import Llama

from ..harness import GREEDY, Outputs, StepperHarness, generate_with_files, run_alone

pytestmark = pytest.mark.mlx

SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 96,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "phi3": {"rope_scaling": None},
    "olmo2": {},
}
LENGTHS = (1, 15, 16, 40, 90)


def network(kind: str, *, seed: int = 7, **more: Any) -> Any:
    module = pytest.importorskip(f"mlx_lm.models.{kind}")
    mx.random.seed(seed)
    model = module.Model(
        module.ModelArgs.from_dict({"model_type": kind} | SMALL | FAMILIES.get(kind, {}) | more)
    )
    model.set_dtype(mx.float32)
    mx.eval(model.parameters())
    return model


def generate_alone(model: Any, prompt: list[int], count: int) -> list[int]:
    cache = caches.make_prompt_cache(model)
    ids = prompt
    generated_ids = list[int]()
    for _ in range(count):
        generated_ids.append(int(mx.argmax(model(mx.array([ids]), cache=cache)[0, -1])))
        ids = generated_ids[-1:]
    return generated_ids


@pytest.mark.parametrize("kind", FAMILIES)
def test_mixed_batch_tokens_match_mlx_lm(kind: str) -> None:
    rng = np.random.default_rng(3)
    prompts = [rng.integers(3, 96, length).tolist() for length in LENGTHS]
    alike = network(kind)
    expected = [generate_alone(alike, prompt, 12) for prompt in prompts]
    model, bytes_per_token = build_paged_model(alike, vocab=96, max_positions=512)
    assert bytes_per_token > 0
    bench = StepperHarness(model, SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=24))
    streams = [
        bench.add(TokenRequest(id=str(place), prompt=tuple(prompt), max_tokens=12, sampling=GREEDY))
        for place, prompt in enumerate(prompts)
    ]
    bench.finish()
    assert [one.tokens for one in streams] == expected


def test_build_paged_model_with_recurrent_state_raises() -> None:
    with pytest.raises(EngineError, match="cannot be batched"):
        build_paged_model(
            network(
                "mamba2",
                num_heads=4,
                state_size=8,
                n_groups=1,
                conv_kernel=4,
                expand=1,
                time_step_limit=(0.0, 10.0),
                time_step_rank=2,
                layer_norm_epsilon=1e-5,
                use_conv_bias=True,
                use_bias=False,
                chunk_size=16,
                residual_in_fp32=False,
            ),
            vocab=96,
            max_positions=512,
        )


def test_build_paged_model_rejects_position_dependent_attention() -> None:
    """Attention that depends on the number of keys instead of the mask changes with
    pages.
    """
    plain = network("llama")

    class KeyCountAttention:
        layers = plain.layers
        modules = plain.modules

        def __call__(self, ids: Any, cache: Any = None) -> Any:
            logits = plain(ids, cache=cache)
            return logits + ids.shape[1]

    with pytest.raises(EngineError, match="output with paged attention differs"):
        build_paged_model(KeyCountAttention(), vocab=96, max_positions=512)


def test_bundled_model_matches_numpy(bundled_model: Llama) -> None:
    loaded, _ = load_network(tiny.find_bundled_model(), dtype="float32", trust_remote_code=False)
    model, _ = build_paged_model(
        loaded, vocab=bundled_model.config.vocab, max_positions=bundled_model.config.max_positions
    )
    prompt = tuple(np.random.default_rng(5).integers(3, model.vocab, 200).tolist())
    ask = TokenRequest(
        id="a", prompt=prompt, max_tokens=30, sampling=GREEDY, logprobs=3, prompt_logprobs=1
    )
    ours = run_alone(bundled_model, ask)
    theirs = run_alone(model, ask)
    assert theirs.tokens == ours.tokens
    found = [score.logprob for score in theirs.prompt[0].logprobs if score]
    assert found == pytest.approx(
        [score.logprob for score in ours.prompt[0].logprobs if score], abs=1e-3
    )


def test_cached_prompt_gives_same_tokens() -> None:
    model, _ = build_paged_model(network("llama"), vocab=96, max_positions=512)
    bench = StepperHarness(model)
    ask = TokenRequest(id="a", prompt=tuple(range(3, 53)), max_tokens=8, sampling=GREEDY)
    first = bench.add(ask)
    bench.finish()
    second = bench.add(ask)
    bench.finish()
    assert (first.cached, second.cached) == ([0], [48])
    assert second.tokens == first.tokens


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_block_files_are_found_by_new_process(dtype: Any, tmp_path: Path) -> None:
    ask = TokenRequest(id="a", prompt=tuple(range(3, 53)), max_tokens=8, sampling=GREEDY)
    streams: list[Outputs] = []
    for _ in range(2):
        loaded = network("llama")
        loaded.set_dtype(dtype)
        streams.append(
            generate_with_files(
                build_paged_model(loaded, vocab=96, max_positions=512)[0], tmp_path, ask
            )
        )
    assert [one.cached for one in streams] == [[0], [48]]
    assert streams[1].tokens == streams[0].tokens


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            {"num_hidden_layers": 9},
            r"Missing 45 parameters: model\.layers\.4\.input_layernorm\.weight, \.\.\.$",
        ),
        (
            {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}},
            r"cannot load [^\n]*$",
        ),
    ],
)
def test_load_network_invalid_config_raises_with_reason(
    tmp_path: Path, fields: dict[str, object], reason: str
) -> None:
    directory = copytree(tiny.find_bundled_model(), tmp_path / "model")
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | fields))
    with pytest.raises(EngineError, match=reason):
        load_network(directory, trust_remote_code=False)
