"""Recurrent state: a sequence's output equals the library's, alone, in any batch and in
any slot.
"""

from __future__ import annotations

import logging
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch (CPU)")
pytest.importorskip("transformers", reason="needs transformers")

from dragoman.core.errors import EngineError, RequestError
from dragoman.core.token_engine import Failed, TokenRequest
from dragoman.engines import transformers
from dragoman.engines.batching import AdapterRegistry, BlockFiles, EngineLimits, SchedulerConfig
from dragoman.engines.safetensors_reader import Tensors
from dragoman.engines.transformers.backend import library, safetensors, torch
from dragoman.engines.transformers.load import build_paged_model
from dragoman.engines.transformers.recurrent import StatePool
from dragoman.engines.transformers.transformers_model import TransformersModel

from ..faults import FaultyModel, raise_for
from ..harness import GREEDY, Outputs, StepperHarness, run_alone, run_client
from .architectures import configure
from .test_models import ON_A_CPU, generate_alone

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*:FutureWarning:transformers"),
    pytest.mark.filterwarnings("ignore:.*:UserWarning:peft"),
]

KINDS = {
    "qwen3_next": "a gated delta rule beside attention",
    "lfm2": "convolutions only",
    "falcon_h1": "both in the same layer",
    "jamba": "a scan that begins anew with every chunk",
    "mamba2": "no attention at all",
    "zamba2": "attention that layers share",
}
COUNT = 12
PROMPTS = [np.random.default_rng(5).integers(3, 96, length).tolist() for length in (1, 7, 33, 50)]
TIGHT = SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=24)


def network(kind: str, seed: int = 7) -> Any:
    torch.manual_seed(seed)
    model = library.AutoModelForCausalLM.from_config(configure(kind)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.03 * torch.randn_like(weight))
    return model


@cache
def generate_expected(kind: str, seed: int = 7) -> list[list[int]]:
    return [generate_alone(network(kind, seed), prompt, COUNT) for prompt in PROMPTS]


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def model(kind: str) -> TransformersModel:
    return build_paged_model(network(kind))[0]


def ask(number: int, name: str = "") -> TokenRequest:
    return TokenRequest(
        id=f"{name}{number}", prompt=tuple(PROMPTS[number]), max_tokens=COUNT, sampling=GREEDY
    )


def test_batch_and_slot_reuse_keep_tokens(kind: str, model: TransformersModel) -> None:
    bench = StepperHarness(model, TIGHT)
    for name in ("first", "in the same slots"):
        streams = [bench.add(ask(number, name)) for number in (2, 0, 3, 1)]
        bench.finish()
        assert [streams[place].tokens for place in (1, 3, 0, 2)] == generate_expected(kind), name
        assert [one.cached for one in streams] == [[0]] * 4


def test_preemption_keeps_tokens(kind: str, model: TransformersModel) -> None:
    bench = StepperHarness(model, TIGHT, num_kv_tokens=80)
    streams = [bench.add(ask(number)) for number in range(4)]
    bench.finish()
    assert [one.tokens for one in streams] == generate_expected(kind)
    assert bench.stepper.scheduler.num_preemptions > 0


def test_abort_of_other_sequences_keeps_tokens(kind: str, model: TransformersModel) -> None:
    bench = StepperHarness(model, TIGHT)
    streams = [bench.add(ask(number)) for number in (3, 2, 1)]
    bench.step(6)
    # Other sequences reuse their slots, and the slots of the rest are no longer
    # consecutive.
    for place in (0, 1):
        bench.stepper.scheduler.remove(bench.sequences[place])
    streams += [bench.add(ask(number, "late")) for number in (0, 3)]
    bench.step(2)
    bench.stepper.scheduler.remove(bench.sequences[3])
    bench.finish()
    assert [streams[2].tokens, streams[4].tokens] == [
        generate_expected(kind)[1],
        generate_expected(kind)[3],
    ]


def test_sequences_wait_for_free_state_slot(kind: str, model: TransformersModel) -> None:
    bench = StepperHarness(
        model, SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=24, num_state_slots=2)
    )
    streams = [bench.add(ask(number)) for number in range(4)]
    most = 0
    while bench.stepper.scheduler.has_work:
        bench.step()
        most = max(most, bench.stepper.scheduler.num_running)
    assert most == 2
    assert [one.tokens for one in streams] == generate_expected(kind)


def test_sleep_and_update_weights_restart_sequences(kind: str, tmp_path: Path) -> None:
    model, _ = build_paged_model(network(kind))
    other = network(kind, 8)
    tied = set(other.all_tied_weights_keys)
    weights = {name: weight for name, weight in other.state_dict().items() if name not in tied}
    safetensors.torch.save_file(weights, tmp_path / "model.safetensors")
    swap = model.prepare_weights(Tensors(tmp_path))
    bench = StepperHarness(model, TIGHT)
    streams = [bench.add(ask(number)) for number in range(4)]
    bench.step(5)
    bench.stepper.close()
    bench.finish()
    assert [one.tokens for one in streams] == generate_expected(kind)
    again = bench.add(
        TokenRequest(id="a", prompt=tuple(PROMPTS[3]), max_tokens=COUNT, sampling=GREEDY)
    )
    bench.step(1)
    swap()
    bench.stepper.replace_weights("new")
    bench.finish()
    assert again.tokens == generate_expected(kind, 8)[3]


def test_prompt_logprobs_match_for_chunked_prefill(
    model: TransformersModel,
) -> None:
    request = TokenRequest(
        id="a", prompt=tuple(PROMPTS[3]), max_tokens=1, sampling=GREEDY, prompt_logprobs=0
    )
    full, cut = (
        [score.logprob for score in run_alone(model, request, limits).prompt[0].logprobs if score]
        for limits in (SchedulerConfig(), SchedulerConfig(max_num_seqs=2, max_num_batched_tokens=5))
    )
    assert len(full) == len(PROMPTS[3]) - 1
    assert cut == pytest.approx(full, abs=1e-4)


def test_failed_step_frees_state_slots() -> None:
    model, _ = build_paged_model(network("lfm2"))
    faulty = FaultyModel(model, raise_for("1"))
    bench = StepperHarness(faulty, SchedulerConfig(num_state_slots=1))
    failed = bench.add(ask(1))
    outputs = bench.add(ask(2))
    bench.finish_despite_faults()
    assert isinstance(failed.end, Failed)
    assert outputs.tokens == generate_expected("lfm2")[2]


def test_build_paged_model_decode_unlike_prefill_raises() -> None:
    """The library clamps the time steps of Nemotron H only in prefill: a preempted
    answer would change.
    """
    config = configure("nemotron_h")
    config.time_step_min = 0.1
    torch.manual_seed(7)
    with pytest.raises(EngineError, match="differs token by token in a reused state slot"):
        build_paged_model(library.AutoModelForCausalLM.from_config(config).eval())


@pytest.mark.parametrize(
    ("kind", "by_token"),
    [("mamba", True), ("jamba", True), ("mamba2", False), ("qwen3_next", False)],
)
def test_chunk_reset_layers_are_detected_in_bfloat16(kind: str, by_token: bool) -> None:
    """With random weights of bfloat16 the state of a few tokens changes less than
    rounding does.
    """
    torch.manual_seed(7)
    config = configure(kind)
    config.initializer_range = 0.1
    network = library.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    model, _ = build_paged_model(network)
    assert model.recurrent.by_token == by_token


def test_load_logs_state_memory_and_disables_prefix_cache(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    network("qwen3_next").save_pretrained(tmp_path)
    with caplog.at_level(logging.INFO):
        transformers.load(tmp_path, EngineLimits(max_num_seqs=3), ON_A_CPU)
    assert "recurrent state of 3 sequences, at most 0 MiB" in caplog.text
    assert "the prefix cache is off" in caplog.text
    with pytest.raises(EngineError, match="--kv-offloading-dir"):
        transformers.load(tmp_path, EngineLimits(), ON_A_CPU, BlockFiles(tmp_path / "kv", 1 << 20))


async def test_attention_free_model_uses_configured_max_model_len(
    tmp_path: Path,
) -> None:
    network("mamba2").save_pretrained(tmp_path)
    engine = transformers.load(tmp_path, EngineLimits(max_model_len=100), ON_A_CPU).engine
    assert engine.max_model_len == 100
    async with run_client(engine) as client:
        assert (await client.ask(ask(3))).tokens == generate_expected("mamba2")[3]
        assert engine.count_cached_tokens(PROMPTS[3], "") == 0
        await engine.control.sleep(1)
        await engine.control.wake_up()
        assert (await client.ask(ask(2))).tokens == generate_expected("mamba2")[2]


def test_bytes_per_slot_sums_states_of_all_layers() -> None:
    model, _ = build_paged_model(network("qwen3_next"))
    config = configure("qwen3_next")
    heads = config.linear_num_value_heads
    width = config.linear_value_head_dim
    recurrent = heads * config.linear_key_head_dim * width
    channels = 2 * config.linear_num_key_heads * config.linear_key_head_dim + heads * width
    layers = config.layer_types.count("linear_attention")
    assert model.bytes_per_slot == 4 * layers * (
        recurrent + channels * config.linear_conv_kernel_dim
    )


def test_state_pool_consecutive_slots_are_updated_in_place() -> None:
    pool = StatePool(4)
    pool.write(0, ("conv_states", 0), slice(1, 3), torch.ones(2, 3))
    states = pool.get_layer(0)["conv_states", 0]
    view = states[1:3]
    view += 1
    pool.write(0, ("conv_states", 0), slice(1, 3), view)
    pool.write(0, ("conv_states", 0), torch.tensor([0, 3]), torch.full((2, 3), 5.0))
    assert states[:, 0].tolist() == [5, 2, 2, 5]
    assert pool.bytes_per_slot == 12


def _write_adapter(base: Any, directory: Path, seed: int, targets: str | list[str]) -> Any:
    peft: Any = import_module("peft")
    torch.manual_seed(seed)
    config = peft.LoraConfig(
        task_type="CAUSAL_LM", init_lora_weights=False, r=4, lora_alpha=16, target_modules=targets
    )
    adapted = peft.get_peft_model(base, config)
    adapted.save_pretrained(directory)
    return adapted


@pytest.mark.parametrize("kind", ["qwen3_next", "lfm2", "granitemoehybrid"])
def test_adapters_of_recurrent_layers_in_one_batch_match_peft(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="needs peft")
    targets = {
        "qwen3_next": ["in_proj_qkvz", "in_proj_ba", "out_proj", "q_proj"],
        "lfm2": ["in_proj", "out_proj", "v_proj"],
        "granitemoehybrid": ["in_proj", "out_proj", "q_proj"],
    }[kind]
    answers = [generate_expected(kind)]
    for seed in (1, 2):
        adapted = _write_adapter(network(kind), tmp_path / str(seed), seed, targets)
        answers.append([generate_alone(adapted, prompt, COUNT) for prompt in PROMPTS])
    assert answers[0] != answers[1] != answers[2]
    model, _ = build_paged_model(network(kind))
    adapters = AdapterRegistry(model.lora.read)
    for name in ("1", "2"):
        adapters.load(name, str(tmp_path / name))
    bench = StepperHarness(model, SchedulerConfig(max_num_seqs=12, max_num_batched_tokens=40))
    streams: list[Outputs] = [
        bench.add(ask(number, name), adapters.find(name))
        for name in ("0", "1", "2")
        for number in range(4)
    ]
    bench.finish()
    assert [one.tokens for one in streams] == [tokens for group in answers for tokens in group]


def test_load_adapter_for_unsupported_projection_raises(tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="needs peft")
    _write_adapter(network("mamba"), tmp_path, 1, ["dt_proj"])
    model, _ = build_paged_model(network("mamba"))
    with pytest.raises(RequestError, match="does not compute it token by token"):
        AdapterRegistry(model.lora.read).load("a", str(tmp_path))


@pytest.mark.parametrize("after_forward", [False, True])
def test_step_fault_fails_only_its_sequence(after_forward: bool) -> None:
    """The states of a failed step are dropped with its keys and values."""
    model, _ = build_paged_model(network("lfm2"))
    faulty = FaultyModel(model, raise_for("2", position=20), after_forward=after_forward)
    bench = StepperHarness(faulty, TIGHT)
    streams = [bench.add(ask(number)) for number in range(len(PROMPTS))]
    bench.finish_despite_faults()
    assert isinstance(streams[2].end, Failed)
    for number in (0, 1, 3):
        assert streams[number].tokens == generate_expected("lfm2")[number]
