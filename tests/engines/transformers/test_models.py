"""Models of many families say, batched with others and in pages, what transformers makes of them alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch (CPU)")
pytest.importorskip("transformers", reason="needs transformers")

from dragoman.core.engine import TokenRequest
from dragoman.core.errors import EngineError
from dragoman.core.request import Sampling
from dragoman.engines import tiny, transformers
from dragoman.engines.batching import EngineLimits, SchedulerConfig
from dragoman.engines.tiny.model import Llama
from dragoman.engines.transformers.backend import library, torch
from dragoman.engines.transformers.engine import build_paged_model
from dragoman.engines.transformers.model import TransformersModel, load_network

from ..harness import GREEDY, Bench, Told, alone, told_by

pytestmark = pytest.mark.torch

SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "initializer_range": 0.4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 24},
    "qwen2": {},
    "qwen3": {},
    "qwen3_moe": EXPERTS,
    "phi3": {},
    "gemma2": {"sliding_window": 24, "query_pre_attn_scalar": 8},
    "gemma3_text": {"sliding_window": 24, "query_pre_attn_scalar": 8},
    "granite": {"logits_scaling": 2.0},
    "olmo2": {},
    "gpt_oss": EXPERTS | {"sliding_window": 24},
    "gpt2": {"n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 512},
}
LENGTHS = (1, 15, 16, 40, 90)


def network(kind: str, **more: Any) -> Any:
    torch.manual_seed(7)
    config = library.AutoConfig.for_model(kind, **(SMALL | FAMILIES.get(kind, {}) | more))
    return library.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()


def generated(model: Any, prompt: list[int], count: int) -> list[int]:
    ids = torch.tensor([prompt])
    fixed = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False, "eos_token_id": None}
    with torch.no_grad():
        made = model.generate(ids, attention_mask=torch.ones_like(ids), **fixed)
    return made[0, len(prompt) :].tolist()


@pytest.mark.parametrize("backend", ["flash", "math"])
def test_the_kernel_that_was_asked_for_computes_and_no_other(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    allowed: list[tuple[bool, bool, bool]] = []
    compute = torch.nn.functional.scaled_dot_product_attention

    def watched(*given: Any, **more: Any) -> Any:
        cuda = torch.backends.cuda
        allowed.append((cuda.flash_sdp_enabled(), cuda.math_sdp_enabled(), cuda.mem_efficient_sdp_enabled()))
        return compute(*given, **more)

    prompt = list(range(3, 43))
    expected = generated(network("llama"), prompt, 8)
    model, _ = build_paged_model(network("llama"), backend)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    asked = TokenRequest(id="a", prompt=tuple(prompt), max_tokens=8, sampling=GREEDY)
    assert list(alone(model, asked).tokens) == expected
    assert set(allowed) == {(backend == "flash", backend == "math", False)}


def test_a_kernel_that_cannot_compute_here_is_refused_when_the_model_is_loaded() -> None:
    with pytest.raises(EngineError, match="cannot be batched"):
        build_paged_model(network("llama"), "efficient")


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_family_says_in_a_mixed_batch_what_it_says_alone_in_its_library(kind: str) -> None:
    rng = np.random.default_rng(3)
    prompts = [rng.integers(3, 96, length).tolist() for length in LENGTHS]
    expected = [generated(network(kind), prompt, 12) for prompt in prompts]
    model, bytes_per_token = build_paged_model(network(kind))
    assert bytes_per_token > 0
    # So small a budget that prompts are cut into pieces beside the decoding of others.
    bench = Bench(model, SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=24))
    told = [
        bench.add(TokenRequest(id=str(place), prompt=tuple(prompt), max_tokens=12, sampling=GREEDY))
        for place, prompt in enumerate(prompts)
    ]
    bench.finish()
    assert [one.tokens for one in told] == expected


@pytest.mark.parametrize("kind", ["mamba", "rwkv", "falcon_h1"])
def test_a_model_with_state_beside_its_keys_and_values_is_refused(kind: str) -> None:
    with pytest.raises(EngineError, match="cannot be batched"):
        build_paged_model(network(kind, mamba_n_heads=4, mamba_d_ssm=32, mamba_d_head=8))


def test_the_embedded_model_says_the_same_in_torch(packaged: Llama) -> None:
    model, _ = build_paged_model(
        load_network(tiny.find_bundled_model(), transformers.TransformersOptions(device="cpu", dtype="float32"))
    )
    prompt = tuple(np.random.default_rng(5).integers(3, model.vocab, 300).tolist())
    ask = TokenRequest(id="a", prompt=prompt, max_tokens=40, sampling=GREEDY, logprobs=3, prompt_logprobs=1)
    ours, theirs = alone(packaged, ask), alone(model, ask)
    assert theirs.tokens == ours.tokens
    found = [score.logprob for score in theirs.prompt[0].logprobs if score]
    assert found == pytest.approx([score.logprob for score in ours.prompt[0].logprobs if score], abs=1e-4)


def test_a_second_time_comes_from_the_cache_and_is_the_same() -> None:
    model, _ = build_paged_model(network("llama"))
    bench = Bench(model)
    ask = TokenRequest(id="a", prompt=tuple(range(3, 53)), max_tokens=8, sampling=GREEDY)
    first, second = bench.add(ask), None
    bench.finish()
    second = bench.add(ask)
    bench.finish()
    assert (first.cached, second.cached) == ([0], [48])
    assert second.tokens == first.tokens


def test_a_new_process_finds_what_an_old_one_kept_in_files(tmp_path: Path) -> None:
    ask = TokenRequest(id="a", prompt=tuple(range(3, 53)), max_tokens=8, sampling=GREEDY)
    first, second = (told_by(build_paged_model(network("gemma2").bfloat16())[0], tmp_path, ask) for _ in range(2))
    assert (first.cached, second.cached) == ([0], [48])
    assert second.tokens == first.tokens


def test_what_a_predecessor_left_in_a_block_does_no_harm() -> None:
    """A sequence that computed no numbers at all is followed by one in the same blocks."""
    broken = network("llama")
    broken.model.embed_tokens.weight.data[5] = float("nan")
    # Paged by hand: the check at load would rightly refuse such a model.
    model, (good, bad) = TransformersModel(broken), ((7, 8, 9), (5, 5, 5) * 12)
    broken.set_attn_implementation("dragoman_paged")
    bench = Bench(model, SchedulerConfig(enable_prefix_caching=False), num_kv_tokens=64, max_model_len=64)
    asks = [TokenRequest(id="x", prompt=ids, max_tokens=4, sampling=GREEDY) for ids in (good, bad, good)]
    told: list[Told] = []
    for ask in asks:
        told.append(bench.add(ask))
        bench.finish()
    assert told[2].tokens == told[0].tokens
    assert len(told[0].tokens) == 4


def test_only_safetensors_are_read(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(EngineError, match="safetensors"):
        transformers.load(tmp_path, EngineLimits(), transformers.TransformersOptions())


def test_seeds_decide() -> None:
    model, _ = build_paged_model(network("qwen2"))

    def said(seed: int) -> list[int]:
        return alone(
            model, TokenRequest(id="s", prompt=(3, 4, 5), max_tokens=12, sampling=Sampling(temperature=2.0, seed=seed))
        ).tokens

    assert said(1) == said(1)
    assert said(1) != said(2)
