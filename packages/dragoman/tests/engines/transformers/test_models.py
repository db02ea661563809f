"""Models of many families, batched and paged, generate what transformers generates with
them alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch (CPU)")
pytest.importorskip("transformers", reason="needs transformers")

from dragoman.core.errors import EngineError
from dragoman.core.request import Sampling
from dragoman.core.token_engine import Sampled, TokenOutput, TokenRequest
from dragoman.engines import tiny, transformers
from dragoman.engines.batching import BLOCK_SIZE, Chunk, EngineLimits, SchedulerConfig
from dragoman.engines.hardware import count_usable_cores
from dragoman.engines.tiny.llama import Llama
from dragoman.engines.transformers import paged_attention
from dragoman.engines.transformers.backend import library, torch
from dragoman.engines.transformers.kv_pool import KvPool
from dragoman.engines.transformers.largest_step import compute_largest_step
from dragoman.engines.transformers.load import build_paged_model
from dragoman.engines.transformers.load_network import load_network
from dragoman.engines.transformers.paged_attention import PagedStep, StepLayout
from dragoman.engines.transformers.transformers_model import TransformersModel

from ..harness import GREEDY, Outputs, StepperHarness, files, generate_with_files, run_alone

pytestmark = pytest.mark.torch
TorchDispatchMode: Any = import_module("torch.utils._python_dispatch").TorchDispatchMode

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
EXPERTS = {
    "num_local_experts": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
}
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


def generate_alone(model: Any, prompt: list[int], count: int) -> list[int]:
    ids = torch.tensor([prompt])
    fixed = {
        "max_new_tokens": count,
        "min_new_tokens": count,
        "do_sample": False,
        "eos_token_id": None,
    }
    with torch.no_grad():
        generated = model.generate(ids, attention_mask=torch.ones_like(ids), **fixed)
    return generated[0, len(prompt) :].tolist()


@pytest.mark.parametrize("backend", ["flash", "math"])
def test_attention_backend_uses_only_requested_kernel(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed: list[tuple[bool, bool, bool]] = []
    compute = torch.nn.functional.scaled_dot_product_attention

    def watched(*args: Any, **more: Any) -> Any:
        cuda = torch.backends.cuda
        allowed.append(
            (cuda.flash_sdp_enabled(), cuda.math_sdp_enabled(), cuda.mem_efficient_sdp_enabled())
        )
        return compute(*args, **more)

    prompt = list(range(3, 43))
    expected = generate_alone(network("llama"), prompt, 8)
    model, _ = build_paged_model(network("llama"), backend)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    request = TokenRequest(id="a", prompt=tuple(prompt), max_tokens=8, sampling=GREEDY)
    assert list(run_alone(model, request).tokens) == expected
    assert set(allowed) == {(backend == "flash", backend == "math", False)}


def test_build_paged_model_with_unusable_kernel_raises() -> None:
    with pytest.raises(EngineError, match="cannot be batched"):
        build_paged_model(network("llama"), "efficient")


@pytest.mark.parametrize("kind", FAMILIES)
def test_mixed_batch_tokens_match_transformers(kind: str) -> None:
    rng = np.random.default_rng(3)
    prompts = [rng.integers(3, 96, length).tolist() for length in LENGTHS]
    expected = [generate_alone(network(kind), prompt, 12) for prompt in prompts]
    model, bytes_per_token = build_paged_model(network(kind))
    assert bytes_per_token > 0
    # A budget so small that prompts are prefilled in chunks while others decode.
    bench = StepperHarness(model, SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=24))
    streams = [
        bench.add(TokenRequest(id=str(place), prompt=tuple(prompt), max_tokens=12, sampling=GREEDY))
        for place, prompt in enumerate(prompts)
    ]
    bench.finish()
    assert [one.tokens for one in streams] == expected


@pytest.mark.parametrize("kind", ["llama", "gpt_oss"])
def test_layout_of_accelerators_gives_same_answers(kind: str) -> None:
    """Chunks sorted by length, and the keys and values of grouped heads repeated."""
    rng = np.random.default_rng(3)
    asks = [
        TokenRequest(
            id=str(number),
            prompt=tuple(rng.integers(3, 96, length).tolist()),
            max_tokens=12,
            sampling=GREEDY,
            logprobs=1,
            prompt_logprobs=0 if number % 2 else None,
        )
        for number, length in enumerate((90, 3, 40, 1, 200, 15, 16, 70, 5, 120))
    ]
    answers: list[list[list[TokenOutput]]] = []
    for layout in (StepLayout(), StepLayout(sorts_chunks=True, expands_heads=True)):
        model, _ = build_paged_model(network(kind))
        model.layout = layout
        bench = StepperHarness(model, SchedulerConfig(max_num_seqs=10, max_num_batched_tokens=48))
        streams = [bench.add(ask) for ask in asks]
        bench.finish()
        answers.append([stream.answer for stream in streams])
    for plain, arranged in zip(*answers, strict=True):
        assert [type(output) for output in plain] == [type(output) for output in arranged]
        for ours, theirs in zip(plain, arranged, strict=True):
            if isinstance(ours, Sampled) and isinstance(theirs, Sampled):
                assert ours.token == theirs.token
                assert ours.logprobs is not None
                assert theirs.logprobs is not None
                assert ours.logprobs.logprob == pytest.approx(theirs.logprobs.logprob, abs=1e-4)


def test_sorted_chunks_form_fewer_groups() -> None:
    lengths = (500, 20, 470, 30, 510, 25)
    model, _ = build_paged_model(network("llama"))
    chunks: list[Chunk] = []
    for length in lengths:
        ask = TokenRequest(id=str(length), prompt=(3,) * length, max_tokens=2)
        bench = StepperHarness(model)
        bench.add(ask)
        (sequence,) = bench.sequences
        sequence.blocks = list(range(1, -(-length // BLOCK_SIZE) + 1))
        chunks.append(Chunk(sequence, length - 1, length))
    device = torch.device("cpu")
    pool = KvPool(40, device)
    order = StepLayout(sorts_chunks=True).order(chunks)
    assert [chunks[index].end for index in order] == sorted(lengths)
    assert StepLayout().order(chunks) == list(range(6))
    assert len(PagedStep(chunks, pool, device).groups) == 6
    assert len(PagedStep([chunks[index] for index in order], pool, device).groups) == 2


@pytest.mark.parametrize(
    ("max_tokens", "max_pairs", "max_model_len", "num_keys"),
    [(64, 8192, 512, 128), (900, 90, 512, 511), (64, 8192, 100, 99)],
)
def test_compute_largest_step_ends_longest_prompt(
    max_tokens: int, max_pairs: int, max_model_len: int, num_keys: int
) -> None:
    model, _ = build_paged_model(network("llama"))
    assert compute_largest_step(model, max_tokens, max_pairs, max_model_len) == num_keys


def test_build_paged_model_with_uncached_state_raises() -> None:
    with pytest.raises(EngineError, match="cannot be batched: its state"):
        build_paged_model(network("rwkv", attention_hidden_size=32))


def test_bundled_model_matches_numpy(bundled_model: Llama) -> None:
    model, _ = build_paged_model(
        load_network(
            tiny.find_bundled_model(),
            transformers.TransformersOptions(device="cpu", dtype="float32"),
        )
    )
    prompt = tuple(np.random.default_rng(5).integers(3, model.vocab, 300).tolist())
    ask = TokenRequest(
        id="a", prompt=prompt, max_tokens=40, sampling=GREEDY, logprobs=3, prompt_logprobs=1
    )
    ours = run_alone(bundled_model, ask)
    theirs = run_alone(model, ask)
    assert theirs.tokens == ours.tokens
    found = [score.logprob for score in theirs.prompt[0].logprobs if score]
    assert found == pytest.approx(
        [score.logprob for score in ours.prompt[0].logprobs if score], abs=1e-4
    )


def test_cached_prompt_gives_same_tokens() -> None:
    model, _ = build_paged_model(network("llama"))
    bench = StepperHarness(model)
    ask = TokenRequest(id="a", prompt=tuple(range(3, 53)), max_tokens=8, sampling=GREEDY)
    first = bench.add(ask)
    second = None
    bench.finish()
    second = bench.add(ask)
    bench.finish()
    assert (first.cached, second.cached) == ([0], [48])
    assert second.tokens == first.tokens


def test_block_files_are_found_by_new_process(tmp_path: Path) -> None:
    ask = TokenRequest(id="a", prompt=tuple(range(3, 53)), max_tokens=8, sampling=GREEDY)
    first, second = (
        generate_with_files(build_paged_model(network("gemma2").bfloat16())[0], tmp_path, ask)
        for _ in range(2)
    )
    assert (first.cached, second.cached) == ([0], [48])
    assert second.tokens == first.tokens


def test_block_files_are_restored_after_other_steps(tmp_path: Path) -> None:
    ask = TokenRequest(id="a", prompt=tuple(range(3, 53)), max_tokens=8, sampling=GREEDY)
    first = generate_with_files(build_paged_model(network("llama"))[0], tmp_path, ask)
    with files(tmp_path) as store:
        bench = StepperHarness(build_paged_model(network("llama"))[0], files=store)
        bench.add(TokenRequest(id="b", prompt=(7, 8, 9), max_tokens=8, sampling=GREEDY))
        bench.finish()
        second = bench.add(ask)
        bench.finish()
    assert (first.cached, second.cached) == ([0], [48])
    assert second.tokens == first.tokens


class LargestTensor(TorchDispatchMode):
    """Records the size of the largest tensor that an operation returns."""

    numbers: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if isinstance(output, torch.Tensor):
            self.numbers = max(self.numbers, output.numel())
        return output


@pytest.mark.parametrize("kind", ["gpt_oss", "gemma2"])
def test_unfused_attention_memory_does_not_grow_with_prompt(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paged_attention, "_PIECE_PAIRS", 1 << 13)
    model, _ = build_paged_model(network(kind, sliding_window=512))
    limits = SchedulerConfig(max_num_batched_tokens=400)
    prompt = tuple(np.random.default_rng(2).integers(3, 96, 400).tolist())
    ask = TokenRequest(id="a", prompt=prompt, max_tokens=2, sampling=GREEDY)
    largest = LargestTensor()
    with largest:
        outputs = run_alone(model, ask, limits)
    assert outputs.tokens == generate_alone(network(kind, sliding_window=512), list(prompt), 2)
    # The scores of all pairs would have a number for each of 4 heads. The largest tensor
    # is the KV pool.
    assert largest.numbers < 2 * 400 * 416


def test_nan_values_in_reused_blocks_do_not_leak() -> None:
    """A sequence whose values were NaN is followed by another one in the same blocks."""
    broken = network("llama")
    broken.model.embed_tokens.weight.data[5] = float("nan")
    # Paged explicitly: the check at load would reject such a model.
    model = TransformersModel(broken)
    (good, bad) = ((7, 8, 9), (5, 5, 5) * 12)
    broken.set_attn_implementation("dragoman_paged")
    bench = StepperHarness(
        model, SchedulerConfig(enable_prefix_caching=False), num_kv_tokens=64, max_model_len=64
    )
    asks = [
        TokenRequest(id="x", prompt=ids, max_tokens=4, sampling=GREEDY) for ids in (good, bad, good)
    ]
    streams: list[Outputs] = []
    for ask in asks:
        streams.append(bench.add(ask))
        bench.finish()
    assert streams[2].tokens == streams[0].tokens
    assert len(streams[0].tokens) == 4


def test_load_without_safetensors_raises(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(EngineError, match="safetensors"):
        transformers.load(tmp_path, EngineLimits(), transformers.TransformersOptions())


def save_model(directory: Path, kind: str, **more: Any) -> Path:
    network(kind, **more).save_pretrained(directory)
    return directory


ON_A_CPU = transformers.TransformersOptions(device="cpu", dtype="float32")


@pytest.mark.parametrize("kind", ["gemma2", "gpt_oss", "vaultgemma"])
def test_model_without_sdpa_attention_loads_and_matches(kind: str, tmp_path: Path) -> None:
    prompt = list(range(3, 43))
    loaded = load_network(save_model(tmp_path, kind), ON_A_CPU)
    expected = generate_alone(loaded, prompt, 8)
    model, _ = build_paged_model(loaded)
    ask = TokenRequest(id="a", prompt=tuple(prompt), max_tokens=8, sampling=GREEDY)
    assert run_alone(model, ask).tokens == expected


FACTORS = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 3.0, 4.0, 5.0]}
LONG_ROPE: dict[str, Any] = {
    "original_max_position_embeddings": 64,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "original_max_position_embeddings": 64,
        "short_mscale": 1.1,
        "long_mscale": 1.2,
        **FACTORS,
    },
}
ROPES: dict[str, tuple[str, dict[str, Any]]] = {
    "phi3 longrope": ("phi3", LONG_ROPE),
    "phimoe longrope": ("phimoe", LONG_ROPE),
    "dynamic": (
        "llama",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}},
    ),
    "chunks and scales": (
        "llama4_text",
        {"attention_chunk_size": 64, "floor_scale": 32, "num_local_experts": 4},
    ),
    "windows": ("mistral", {"sliding_window": 64}),
}


@pytest.mark.parametrize("rope", ROPES)
def test_mixed_batch_beyond_window_and_rope_limits_matches(rope: str) -> None:
    kind, more = ROPES[rope]
    rng = np.random.default_rng(4)
    prompts = [rng.integers(3, 96, length).tolist() for length in (7, 58, 150)]
    expected = [generate_alone(network(kind, **more), prompt, 20) for prompt in prompts]
    model, _ = build_paged_model(network(kind, **more))
    bench = StepperHarness(model, SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=32))
    for name in ("first", "again"):
        streams = [
            bench.add(
                TokenRequest(id=f"{name} {n}", prompt=tuple(prompt), max_tokens=20, sampling=GREEDY)
            )
            for n, prompt in enumerate(prompts)
        ]
        bench.finish()
        assert [one.tokens for one in streams] == expected, name


def test_prefix_cache_separates_long_rope_factors() -> None:
    model, _ = build_paged_model(network("phi3", **LONG_ROPE))
    bench = StepperHarness(model)
    long = tuple(np.random.default_rng(4).integers(3, 96, 100).tolist())
    expected = run_alone(
        model, TokenRequest(id="x", prompt=long, max_tokens=8, sampling=GREEDY)
    ).tokens
    bench.add(TokenRequest(id="short", prompt=long[:50], max_tokens=2, sampling=GREEDY))
    bench.finish()
    assert bench.stepper.scheduler.count_cached_tokens(long[:50], "") == 48
    assert bench.stepper.scheduler.count_cached_tokens(long, "") == 0
    outputs = bench.add(TokenRequest(id="long", prompt=long, max_tokens=8, sampling=GREEDY))
    bench.finish()
    assert (outputs.cached, outputs.tokens) == ([0], expected)


def test_build_paged_model_with_cache_dependent_output_raises() -> None:
    """Moshi attends to the whole prompt without a cache, but to a window with one."""
    with pytest.raises(EngineError, match="differs"):
        build_paged_model(network("moshi", sliding_window=64))


def plant_keyword(model: Any, **keywords: object) -> Any:
    """Return the model, with a further keyword in every call of its attention."""
    for module in model.modules():
        if hasattr(module, "q_proj"):
            module.forward = partial(module.forward, **keywords)
    return model


@pytest.mark.parametrize(
    ("keywords", "reason"),
    [
        ({"block_indices": [0]}, "uses `block_indices`"),
        ({"position_bias": [0]}, "uses `position_bias`"),
        ({"is_causal": False}, "not causal"),
    ],
)
def test_build_paged_model_unknown_keyword_raises(keywords: Any, reason: str) -> None:
    with pytest.raises(EngineError, match=reason):
        build_paged_model(plant_keyword(network("llama"), **keywords))


def test_build_paged_model_unset_keyword_passes() -> None:
    build_paged_model(plant_keyword(network("llama"), block_indices=None, output_attentions=False))


def test_build_paged_model_sparse_attention_raises() -> None:
    """MiniMax M3 selects blocks of keys; its limits are the real ones."""
    sparse = {
        "layer_types": ["full_attention", "minimax_m3_sparse"] * 2,
        "index_head_dim": 8,
        "rotary_dim": 8,
        "num_key_value_heads": 4,
        **EXPERTS,
    }
    with pytest.raises(EngineError, match="uses `block_indices`"):
        build_paged_model(network("minimax_m3_vl_text", **sparse))


@pytest.mark.parametrize(
    "name", ["keep_window", "index_block_size", "index_topk", "chunk_length", "local_blocks"]
)
def test_build_paged_model_limit_of_any_name_is_passed(name: str) -> None:
    """A layer computes prompts beyond a real limit in another way than steps."""
    model = network("llama")
    layer = model.model.layers[1].mlp
    setattr(layer, name, 4096)
    forward = layer.forward

    def compute(states: Any) -> Any:
        is_far = states.shape[1] > getattr(layer, name)
        return forward(states * 0.5 if is_far else states)

    layer.forward = compute
    with pytest.raises(EngineError, match="differs"):
        build_paged_model(model)


def test_build_paged_model_irreducible_limit_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    model = network("llama")
    layer = model.model.layers[1].mlp
    layer.block_size = 256
    forward = layer.forward

    def compute(states: Any) -> Any:
        if layer.block_size != 256:
            raise RuntimeError("the sizes of tensors do not match")
        return forward(states)

    layer.forward = compute
    build_paged_model(model)
    assert "beyond block_size (256) is not checked" in caplog.text
    assert layer.block_size == 256


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("rwkv", "state beside keys and values"),
        ("t5", "it is not a causal language model"),
        ("bloom", "differs"),
        ("deepseek_v32", "read the library's attention mask|does not compute its trial prompts"),
    ],
)
def test_build_paged_model_error_is_one_short_line(kind: str, reason: str, tmp_path: Path) -> None:
    if kind == "t5":
        config = library.AutoConfig.for_model(
            "t5", vocab_size=96, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4
        )
        library.AutoModelForSeq2SeqLM.from_config(config).save_pretrained(tmp_path)
    else:
        save_model(tmp_path, kind)
    with pytest.raises(EngineError, match=reason) as refused:
        build_paged_model(load_network(tmp_path, ON_A_CPU))
    assert len(refused.value.message) < 300
    assert "\n" not in refused.value.message


@pytest.mark.parametrize("threads", [None, 1, 3])
def test_load_sets_torch_threads_from_option_or_cores(threads: int | None, tmp_path: Path) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        options = transformers.TransformersOptions(device="cpu", dtype="float32", threads=threads)
        transformers.load(save_model(tmp_path, "llama"), EngineLimits(), options)
        assert torch.get_num_threads() == (threads or count_usable_cores())
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's /proc")
def test_kv_pool_uses_memory_only_for_written_blocks() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    keys = torch.ones((4, 8, 64))
    pool = KvPool(32_768, torch.device("cpu"))
    before = resident()
    allocated, _ = pool.get_layer(0, keys, keys)
    assert allocated.numel() * allocated.element_size() == 1 << 30
    allocated[7] = 1
    assert allocated[6:9].sum() == 8 * 64
    assert resident() - before < 64 << 20


def test_sampling_seed_determines_tokens() -> None:
    model, _ = build_paged_model(network("qwen2"))

    def sample(seed: int) -> list[int]:
        return run_alone(
            model,
            TokenRequest(
                id="s",
                prompt=(3, 4, 5),
                max_tokens=12,
                sampling=Sampling(temperature=2.0, seed=seed),
            ),
        ).tokens

    assert sample(1) == sample(1)
    assert sample(1) != sample(2)


def change_config(directory: Path, **fields: object) -> None:
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def cut_weights(directory: Path) -> None:
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (
            partial(change_config, num_hidden_layers=5),
            r"lacks 9 tensors of LlamaForCausalLM, such as model\.layers\.4\.",
        ),
        (
            partial(change_config, architectures=["BertLMHeadModel"], model_type="bert"),
            "lacks .* tensors of BertLMHead",
        ),
        (
            partial(change_config, vocab_size=100),
            r"has shape \(96, 32\), but config\.json says \(100, 32\); download",
        ),
        (
            partial(change_config, hidden_size=30),
            "hidden size .30. is not a multiple of the number of attention heads",
        ),
        (
            partial(change_config, model_type="t5"),
            "not a causal language model; transformers generates text only with those",
        ),
        (cut_weights, "cannot load .*: Error while deserializing header"),
    ],
)
def test_load_network_incomplete_checkpoint_raises(
    tmp_path: Path, damage: Callable[[Path], None], reason: str
) -> None:
    """The library initializes missing tensors randomly."""
    damage(save_model(tmp_path, "llama"))
    with pytest.raises(EngineError, match=reason) as rejected:
        load_network(tmp_path, ON_A_CPU)
    assert "\n" not in str(rejected.value)


def test_load_network_logs_unused_tensors(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    change_config(save_model(tmp_path, "llama"), num_hidden_layers=3)
    load_network(tmp_path, ON_A_CPU)
    assert "LlamaForCausalLM does not use 9 of the tensors, such as model.layers.3." in caplog.text
