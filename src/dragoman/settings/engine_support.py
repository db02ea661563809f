"""Which settings each engine supports, to warn about unsupported ones. Knows engines by name only."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from .definition import Settings
from .fields import FIELDS_BY_NAME

_BATCHING_ENGINES = ("tiny", "transformers", "mlx")
"""Engines that run on the built-in step loop."""
_VLLM_ENGINES = ("sim", "vllm")
_SCHEDULING_ENGINES = (*_BATCHING_ENGINES, "llamacpp", *_VLLM_ENGINES)
_PARSING_ENGINES = (*_SCHEDULING_ENGINES, "upstream")
"""Engines whose text is parsed by `parsers`."""

_BY_ENGINES: dict[tuple[str, ...], str] = {
    _SCHEDULING_ENGINES: (
        "chat_template trust_request_chat_template max_num_batched_tokens enable_prefix_caching worker_timeout "
        "worker_memory"
    ),
    _PARSING_ENGINES: "tool_call_parser reasoning_parser override_generation_config",
    (*_BATCHING_ENGINES, "llamacpp", "sim"): "kv_cache_tokens close_at_limit",
    (*_PARSING_ENGINES, "scripted"): "max_num_seqs",
    (*_BATCHING_ENGINES, "llamacpp"): "step_timeout",
    _BATCHING_ENGINES: "kv_offloading_dir kv_offloading_bytes",
    ("transformers", "mlx", "llamacpp", "vllm"): "dtype",
    ("transformers", "mlx", "vllm"): "trust_remote_code",
    ("transformers", *_VLLM_ENGINES): "lora_modules",
    ("transformers",): "device quantization attention_backend sampling_device",
    ("llamacpp",): "deterministic gpu_layers mmproj",
    ("tiny", "encoder", "transformers", "llamacpp"): "threads",
    ("vllm",): "vllm_args",
    ("scripted", "sim"): "directives",
    ("upstream",): (
        "upstream_model upstream_kind upstream_task upstream_api_key upstream_weight upstream_timeout upstream_retries"
    ),
    _VLLM_ENGINES: (
        "block_size num_gpu_blocks_override enable_chunked_prefill scheduling_policy data_parallel_size "
        "kv_events_config kv_transfer_config seed speculative_config"
    ),
    ("sim",): (
        "enable_lora max_loras max_num_active_seqs long_prefill_token_threshold long_prefill_token_threshold_adaptive "
        "async_scheduling scheduler_reserve_full_isl watermark tensor_parallel_size kv_events_version "
        "sim_acceptance_rates kv_offloading_size kv_offloading_backend "
        "profile tokenizer time_scale warm_up instances sim_mode sim_replies sim_dataset sim_output_tokens "
        "sim_reasoning_tokens sim_tool_calls sim_reasoning sim_image_tokens sim_embedding_size sim_faults"
    ),
}
SUPPORTED_BY = {name: engines for engines, names in _BY_ENGINES.items() for name in names.split()}
"""The engines that support a setting, where not all do."""
ENGINES = frozenset(engine for engines in _BY_ENGINES for engine in engines) | {"encoder"}
"""Engines whose supported settings are known. Third-party engines may support any."""


def find_changed_settings(settings: Settings) -> frozenset[str]:
    """Names of the settings that differ from their defaults."""
    return frozenset(
        name for name, value in msgspec.structs.asdict(settings).items() if value != FIELDS_BY_NAME[name].default
    )


def describe_unsupported(names: Iterable[str], *engines: str) -> list[str]:
    """A sentence for each of these settings that none of the engines supports."""
    if not ENGINES.issuperset(engines):
        return []
    ignored = [name for name in names if name in SUPPORTED_BY and not set(SUPPORTED_BY[name]) & set(engines)]
    return [_describe_unsupported_one(name, engines) for name in sorted(ignored)]


def _describe_unsupported_one(name: str, engines: tuple[str, ...]) -> str:
    field, supporting = FIELDS_BY_NAME[name], SUPPORTED_BY[name]
    engine_names = supporting[0] if len(supporting) == 1 else f"{', '.join(supporting[:-1])} and {supporting[-1]}"
    flag = field.off_flag if field.default is True else field.flag
    return f"{flag} is for {engine_names}; {' and '.join(sorted(set(engines)))} would ignore it"
