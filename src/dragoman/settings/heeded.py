"""Which settings an engine heeds, so that what it would ignore is said. Knows engines by their names."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from .definition import Settings
from .fields import BY_NAME

_STEPPED = ("tiny", "transformers", "mlx")
"""Over our own step loop."""
_VLLMS = ("sim", "vllm")
_SCHEDULED = (*_STEPPED, "llamacpp", *_VLLMS)
_PARSED = (*_SCHEDULED, "upstream")
"""Whose text our parsers read."""

_BY_ENGINES: dict[tuple[str, ...], str] = {
    _SCHEDULED: (
        "chat_template trust_request_chat_template max_num_seqs max_num_batched_tokens enable_prefix_caching "
        "max_queued_tokens worker_timeout worker_memory"
    ),
    _PARSED: "tool_call_parser reasoning_parser override_generation_config",
    (*_STEPPED, "llamacpp", "sim"): "kv_cache_tokens",
    (*_SCHEDULED, "encoder"): "max_queued_requests",
    (*_STEPPED, "llamacpp"): "step_timeout",
    _STEPPED: "kv_offloading_dir kv_offloading_bytes",
    ("transformers", "mlx", "llamacpp", "vllm"): "dtype",
    ("transformers", "mlx", "vllm"): "trust_remote_code",
    ("transformers", *_VLLMS): "lora_modules",
    ("transformers",): "device quantization attention_backend",
    ("llamacpp",): "gpu_layers mmproj threads",
    ("vllm",): "vllm_args",
    ("scripted", "sim"): "directives",
    ("upstream",): ("upstream_model upstream_kind upstream_api_key upstream_weight upstream_timeout upstream_retries"),
    _VLLMS: (
        "block_size num_gpu_blocks_override enable_chunked_prefill scheduling_policy data_parallel_size "
        "kv_events_config kv_transfer_config seed"
    ),
    ("sim",): (
        "profile tokenizer time_scale warm_up instances sim_mode sim_replies sim_dataset sim_output_tokens "
        "sim_reasoning_tokens sim_tool_calls sim_reasoning sim_embedding_size sim_faults"
    ),
}
HEEDED_BY = {name: engines for engines, names in _BY_ENGINES.items() for name in names.split()}
"""The engines that heed a setting, where not all do."""
ENGINES = frozenset(engine for engines in _BY_ENGINES for engine in engines)
"""Whose settings are known. Those of third parties may heed any."""


def told(settings: Settings) -> frozenset[str]:
    """Names of the settings that are not what they are by default."""
    return frozenset(name for name, value in msgspec.structs.asdict(settings).items() if value != BY_NAME[name].default)


def unheeded(names: Iterable[str], *engines: str) -> list[str]:
    """A sentence for each of these settings that none of the engines heeds."""
    if not ENGINES.issuperset(engines):
        return []
    ignored = [name for name in names if name in HEEDED_BY and not set(HEEDED_BY[name]) & set(engines)]
    return [_sentence(name, engines) for name in sorted(ignored)]


def _sentence(name: str, engines: tuple[str, ...]) -> str:
    field, heeding = BY_NAME[name], HEEDED_BY[name]
    whose = heeding[0] if len(heeding) == 1 else f"{', '.join(heeding[:-1])} and {heeding[-1]}"
    flag = field.off_flag if field.default is True else field.flag
    return f"{flag} is for {whose}; {' and '.join(sorted(set(engines)))} would ignore it"
