"""Test every causal architecture of the installed transformers with a small random
model: correct or rejected.

    python -m tests.engines.transformers.architectures docs/architectures.json

serves each of them from a directory, compares all answers with the library's
`generate`, and writes the results. With names after the file, only these are tested,
and the results of the others stay unchanged.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import signal
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Generator
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dragoman.core.errors import EngineError
from dragoman.core.token_engine import TokenRequest
from dragoman.engines.batching import SchedulerConfig
from dragoman.engines.batching.limit_reduction import find_limits
from dragoman.engines.transformers.backend import library, torch
from dragoman.engines.transformers.load import build_paged_model
from dragoman.engines.transformers.load_network import TransformersOptions, load_network

from ..harness import GREEDY, Outputs, StepperHarness

RIGHT = "right"
WRONG = "wrong"
REFUSED = "refused"
UNTRIED = "not tried"
LENGTHS = (7, 45, 150)
LIMIT = 100
"""Value of every limit of a configuration: more tokens than the engine's own check has,
and fewer than the longest prompt.
"""
COUNT = 24
NEAR = 1e-3
"""Tolerance of logprobs; if the best two differ by less, either token is correct."""
SECONDS = 60
"""Timeout of an architecture in seconds."""

WIDTHS = dict.fromkeys(
    ("hidden_size", "n_embd", "d_model", "embedding_size", "dim", "lru_width"), 32
)
LAYERS = dict.fromkeys(
    ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"), 4
)
HEADS = dict.fromkeys(
    ("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads"), 4
)
INNER = dict.fromkeys(
    ("intermediate_size", "ffn_dim", "d_ff", "ffn_hidden_size", "decoder_ffn_dim"), 48
)
EXPERTS = dict.fromkeys(
    ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4
)
CHOSEN = dict.fromkeys(
    ("num_experts_per_tok", "moe_k", "moe_topk", "num_experts_per_token", "top_k_experts"), 2
)
GROUPS = dict.fromkeys(
    ("n_group", "topk_group", "n_shared_experts", "first_k_dense_replace", "num_shared_experts"), 1
)
RANKS = dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16)
PARTS = dict.fromkeys(
    ("head_dim", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "global_head_dim"), 8
)
MAMBA = {
    "mamba_n_heads": 4,
    "mamba_num_heads": 4,
    "mamba_d_head": 16,
    "mamba_head_dim": 16,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_d_ssm": 64,
    "mamba_expand": 2,
    "mamba_chunk_size": 16,
    "mamba_dt_rank": 4,
    "n_mamba_heads": 2,
    "ssm_state_size": 8,
}
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
SMALL: dict[str, Any] = {
    **WIDTHS,
    **LAYERS,
    **HEADS,
    **INNER,
    **EXPERTS,
    **CHOSEN,
    **GROUPS,
    **RANKS,
    **PARTS,
    **MAMBA,
    **LINEAR,
    "vocab_size": 96,
    "vocab_size_per_layer_input": 96,
    "hidden_size_per_layer_input": 8,
    "num_key_value_heads": 2,
    "num_global_key_value_heads": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24,
    "max_position_embeddings": 512,
    "n_positions": 512,
    "max_seq_len": 512,
    "query_pre_attn_scalar": 8,
    "initializer_range": 0.4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "num_kv_shared_layers": 0,
    "use_cache": True,
    "is_decoder": True,
    "use_sliding_window": True,
    "max_window_layers": 2,
    "sliding_window": LIMIT,
}
LONG_FACTORS = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 3.0, 4.0, 5.0]}
LONG_ROPE = {"rope_theta": 1e4, "original_max_position_embeddings": 60, **LONG_FACTORS}


def _rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, **more}}


OPTIONAL = (
    "head_dim",
    "moe_intermediate_size",
    "n_routed_experts",
    "num_experts_per_tok",
    "num_key_value_heads",
    "pad_token_id",
    "q_lora_rank",
    "sliding_window",
)
"""Fields of SMALL that are set even if an architecture's default is None."""
TIME_STEPS = {"time_step_min": 1e-9}
"""The library clamps smaller time steps in prefill, but not in decode."""
SPECIAL: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1, 3], "num_hidden_layers": 4},
    "codegen": {"rotary_dim": 8},
    "deepseek_v2": {"topk_method": "greedy"},
    "dots1": {"n_shared_experts": 1},
    "granitemoehybrid": {"layer_types": ["attention", "mamba"] * 2},
    "jamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 0,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
    },
    "nemotron_h": {
        "layers_block_type": ["mamba", "attention", "mlp", "mamba", "moe"],
        "n_groups": 1,
        **TIME_STEPS,
    },
    "falcon": {"alibi": False, "new_decoder_architecture": False},
    "gptj": {"rotary_dim": 8},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "num_layers": 4},
    "minimax_m3_vl_text": {
        "layer_types": ["full_attention", "minimax_m3_sparse"] * 2,
        "index_block_size": 40,
        "index_topk_blocks": 2,
        "num_key_value_heads": 4,
    },
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2, "num_dense_layers": 1},
    "mamba2": {"num_heads": 4, "head_dim": 16, "n_groups": 1, "state_size": 8},
    **dict.fromkeys(
        ("qwen2_vl_text", "qwen2_5_vl_text"), _rope("default", mrope_section=[2, 1, 1])
    ),
    "zamba2": {"layers_block_type": ["mamba", "hybrid"] * 2, "num_mem_blocks": 1, **TIME_STEPS},
    "zaya": {"num_experts_per_tok": 1, "head_dim": 16},
}
"""Additional fields that an architecture needs."""
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama, linear RoPE": ("llama", _rope("linear", factor=4.0)),
    "llama, dynamic RoPE": ("llama", _rope("dynamic", factor=4.0)),
    "llama, yarn RoPE": ("llama", _rope("yarn", factor=4.0, original_max_position_embeddings=60)),
    "llama, llama3 RoPE": (
        "llama",
        _rope(
            "llama3",
            factor=4.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=60,
        ),
    ),
    "phi3, longrope": (
        "phi3",
        {
            "original_max_position_embeddings": 60,
            "rope_parameters": {"rope_type": "longrope", **LONG_ROPE},
        },
    ),
    "phimoe, longrope": (
        "phimoe",
        {
            "original_max_position_embeddings": 60,
            "rope_parameters": {
                "rope_type": "longrope",
                "short_mscale": 1.1,
                "long_mscale": 1.2,
                **LONG_ROPE,
            },
        },
    ),
}


IMAGE_TEXT = (
    *("aya_vision", "idefics3", "internvl", "llava", "llava_next", "mistral3", "qwen2_5_vl"),
    *("qwen2_vl", "qwen3_vl", "smolvlm"),
)
"""Image-text models that the library does not list as causal ones. They are tried with
text alone; tests/engines/transformers/test_vision.py gives images to some.
"""
TOWER: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "embed_dim", "out_hidden_size", "projection_dim"), 32),
    **dict.fromkeys(("num_hidden_layers", "depth", "num_global_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "num_heads", "attention_heads"), 4),
    "num_key_value_heads": 4,
    "head_dim": 8,
    "intermediate_size": 48,
}
"""Fields of the parts for images and sound."""


class Outcome(msgspec.Struct, frozen=True):
    """The result of an architecture.

    reason: why it is rejected, or what differs.
    """

    name: str
    result: str
    reason: str = ""


class Results(msgspec.Struct, frozen=True):
    """The data of the table in docs/transformers.md."""

    date: str
    versions: dict[str, str]
    tried: tuple[Outcome, ...]


def names() -> list[str]:
    auto: Any = import_module("transformers.models.auto.modeling_auto")
    return [*auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *VARIANTS, *IMAGE_TEXT]


def configure(name: str) -> Any:
    """Build a small configuration. Raises the library's errors."""
    kind, more = VARIANTS.get(name, (name, {}))
    plain = library.AutoConfig.for_model(kind)
    text = plain.get_text_config()
    if text is plain:
        return library.AutoConfig.for_model(
            kind, **(_choose_fields(plain) | SPECIAL.get(kind, {}) | more)
        )
    parts = {
        name: part for name in plain.sub_configs if (part := getattr(plain, name, None)) is not None
    }
    if not any(part is text for part in parts.values()):
        raise ValueError("its text part is within another part")
    return library.AutoConfig.for_model(
        kind,
        **{
            name: {"model_type": part.model_type}
            | (
                _choose_fields(part) | SPECIAL.get(part.model_type, {})
                if part is text
                else {field: value for field, value in TOWER.items() if _can_set(part, field)}
            )
            for name, part in parts.items()
        },
    )


def _choose_fields(plain: Any) -> dict[str, Any]:
    """Choose the fields of a text model.

    plain: its default configuration.
    """
    fields = {
        field: value
        for field, value in SMALL.items()
        if _can_set(plain, field)
        and (isinstance(_default(plain, field), int | float) or field in OPTIONAL)
    }
    limits = {name: LIMIT for name in find_limits([plain]) if _can_set(plain, name)}
    fields = limits | fields
    if "kv_lora_rank" in fields and "num_key_value_heads" in fields:
        fields["num_key_value_heads"] = 4
    kinds = (
        list(dict.fromkeys(_default(plain, "layer_types") or ()))
        if _can_set(plain, "layer_types")
        else []
    )
    if kinds:
        fields["layer_types"] = [kinds[layer % len(kinds)] for layer in range(max(4, len(kinds)))]
        fields |= {field: max(4, len(kinds)) for field in LAYERS if field in fields}
    return fields


def _can_set(config: Any, field: str) -> bool:
    kind = config.__class__
    own = getattr(kind, field, None)
    is_derived = isinstance(own, property) and own.fset is None
    # Setting it would set the other one, which is derived from it.
    is_derived |= field == "layer_types" and isinstance(
        getattr(kind, "layers_block_type", None), property
    )
    return not is_derived and _default(config, field) is not LookupError


def _default(config: Any, field: str) -> Any:
    try:
        return getattr(config, field)
    except Exception:
        return LookupError


def try_out(name: str, directory: Path) -> Outcome:
    """Save an architecture, serve it and compare it with the library."""
    try:
        torch.manual_seed(7)
        config = configure(name)
        is_text = config.get_text_config() is config
        auto: Any = library.AutoModelForCausalLM if is_text else library.AutoModelForImageTextToText
        network = auto.from_config(config).eval()
        with torch.no_grad():
            for weight in network.parameters():
                weight.add_(0.03 * torch.randn_like(weight))
        network.save_pretrained(directory)
    except Exception as error:
        return Outcome(name, UNTRIED, _tell(error))
    options = TransformersOptions(device="cpu", dtype="float32")
    rng = np.random.default_rng(3)
    prompts = [rng.integers(3, 96, length).tolist() for length in LENGTHS]
    try:
        loaded = load_network(directory, options)
        expected = [_generate(loaded, prompt) for prompt in prompts]
    except EngineError as error:
        return Outcome(name, REFUSED, _tell(error).replace(str(directory), "it"))
    except Exception as error:
        return Outcome(name, UNTRIED, f"the library's own `generate` fails: {_tell(error)}")
    try:
        model, _ = build_paged_model(loaded)
    except EngineError as error:
        return Outcome(name, REFUSED, _tell(error))
    bench = StepperHarness(
        model, SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=24), num_kv_tokens=512
    )
    for company in ("together", "again, from the cache"):
        streams = [
            bench.add(
                TokenRequest(
                    id=str(n), prompt=tuple(prompt), max_tokens=COUNT, sampling=GREEDY, logprobs=2
                )
            )
            for n, prompt in enumerate(prompts)
        ]
        bench.finish()
        for prompt, ours, theirs in zip(prompts, streams, expected, strict=True):
            difference = _compare(ours, *theirs)
            if difference:
                return Outcome(name, WRONG, f"{company}, prompt of {len(prompt)}: {difference}")
    return Outcome(name, RIGHT)


def _generate(network: Any, prompt: list[int]) -> tuple[list[int], Any]:
    ids = torch.tensor([prompt])
    fixed = {
        "max_new_tokens": COUNT,
        "min_new_tokens": COUNT,
        "do_sample": False,
        "eos_token_id": None,
    }
    output = {"return_dict_in_generate": True, "output_logits": True}
    with torch.no_grad():
        generated = network.generate(ids, attention_mask=torch.ones_like(ids), **fixed, **output)
    scores = torch.log_softmax(torch.cat(generated.logits).float(), dim=-1)
    return generated.sequences[0, len(prompt) :].tolist(), scores.numpy()


def _compare(ours: Outputs, tokens: list[int], scores: Any) -> str:
    """Return the first difference; empty if there is none before a position where the
    best two tokens tie.
    """
    for place, (mine, theirs, score, row) in enumerate(
        zip(ours.tokens, tokens, ours.scores, scores, strict=False)
    ):
        best, second = np.sort(row)[:-3:-1]
        if mine != theirs:
            return "" if best - second < NEAR else f"another token at {place}"
        if score is None or abs(score.logprob - row[theirs]) > NEAR:
            return f"another logprob at {place}"
    return "" if len(ours.tokens) == len(tokens) else f"{len(ours.tokens)} tokens: {ours.end}"


def _tell(error: Exception) -> str:
    text = error.message if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:200]


@contextlib.contextmanager
def _within(seconds: int) -> Generator[None]:
    def stop(*_: object) -> None:
        raise TimeoutError(f"no result within {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def run(chosen: list[str]) -> Generator[Outcome]:
    for name in chosen:
        with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stdout(io.StringIO()):
            try:
                with _within(SECONDS):
                    tried = try_out(name, Path(directory))
            except TimeoutError as error:
                tried = Outcome(name, UNTRIED, str(error))
            except Exception as error:
                tried = Outcome(name, WRONG, f"while serving: {_tell(error)}")
        yield tried


def main(file: str, *chosen: str) -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    library.utils.logging.set_verbosity_error()
    found: list[Outcome] = []
    for tried in run(list(chosen) or names()):
        found.append(tried)
        print(tried.name, tried.result, tried.reason, sep=" | ", flush=True)
    print(Counter(tried.result for tried in found))
    versions = {library: version(library) for library in ("torch", "transformers")}
    if chosen:
        before = msgspec.json.decode(Path(file).read_bytes(), type=Results)
        if before.versions != versions:
            raise ValueError(f"{file} was recorded with {before.versions}: try all names")
        again = {tried.name: tried for tried in found}
        known = {tried.name for tried in before.tried}
        found = [again.get(tried.name, tried) for tried in before.tried]
        found += [tried for tried in again.values() if tried.name not in known]
    results = Results(datetime.now(UTC).date().isoformat(), versions, tuple(found))
    Path(file).write_text(json.dumps(msgspec.to_builtins(results), indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
