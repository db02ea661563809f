"""The settings as fields that a command line or a table can show."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator
from types import NoneType
from typing import Any, Literal

import msgspec
from msgspec import Struct

from .definition import Settings
from .sections import Option, Secret

PREFIX = "DRAGOMAN_"


class SettingField(Struct, frozen=True):
    """One setting.

    kind: its type, without None.
    choices: its allowed words.
    """

    name: str
    kind: Any
    default: Any
    option: Option
    choices: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        return flag_of(self.name)

    @property
    def off_flag(self) -> str:
        return f"--{self.option.off_flag}" if self.option.off_flag else "--no-" + self.flag.removeprefix("--")

    @property
    def variable(self) -> str:
        return variable_of(self.name)

    @property
    def is_list(self) -> bool:
        return typing.get_origin(self.kind) is tuple

    @property
    def is_secret(self) -> bool:
        return self.kind is Secret or (self.is_list and typing.get_args(self.kind)[0] is Secret)


def flag_of(name: str) -> str:
    """The option of a setting on the command line."""
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + name.upper()


def _list_fields() -> Iterator[SettingField]:
    hints = typing.get_type_hints(Settings, include_extras=True)
    for info in msgspec.structs.fields(Settings):
        annotated, option = typing.get_args(hints[info.name])
        members = [kind for kind in typing.get_args(annotated) if kind is not NoneType]
        is_optional = NoneType in typing.get_args(annotated)
        kind = members[0] if is_optional else annotated
        choices = typing.get_args(kind) if typing.get_origin(kind) is Literal else ()
        yield SettingField(info.name, kind, info.default, option, choices)


FIELDS = tuple(sorted(_list_fields(), key=lambda field: field.option.group == "Simulator"))
"""In order of definition, the simulator's at the end."""
FIELDS_BY_NAME = {field.name: field for field in FIELDS}
FORMER_NAMES = {
    "max_waiting": "max_queued_requests",
    "max_waiting_tokens": "max_queued_tokens",
    "reasoning_check": "reasoning_verification",
    "models_memory": "model_memory_limit",
}
"""Former names of settings and their present ones; accepted with a warning for one release."""
MODEL_GROUPS = frozenset({"Model", "Scheduling", "Upstream", "Simulation", "Simulator"})
"""Groups whose settings can be set per model."""


# Which settings each engine supports, to warn about unsupported ones. Knows engines by name only.

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
