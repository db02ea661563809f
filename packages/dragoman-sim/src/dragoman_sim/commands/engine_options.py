"""The options of a simulated engine, which have the names of vLLM's."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import msgspec

from dragoman_cli import Option

from ..engine.scheduler_config import SimulatedSchedulerConfig

if TYPE_CHECKING:
    from ..engine.profile import SimulatorProfile

_OTHER_OPTIONS = ("speculative_config", "kv_cache_dtype", "disable_hybrid_kv_cache_manager")
ENGINE_GROUP = "Engine (vLLM's names; defaults come from the profile)"


def build_engine_option(
    help: str, *flags: str, metavar: str | None = None, minimum: int | None = None
) -> Option:
    """Build an option of the simulated engine, whose default is the profile's.

    flags: by default derived from the field's name.
    """
    return Option(*flags, help=help, metavar=metavar, minimum=minimum, group=ENGINE_GROUP)


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """vLLM's flags for the simulated engine; None means the profile's value."""

    max_num_seqs: Annotated[
        int | None, build_engine_option("Maximum number of sequences per step.")
    ] = None
    max_num_batched_tokens: Annotated[
        int | None, build_engine_option("Maximum number of tokens per step.")
    ] = None
    block_size: Annotated[int | None, build_engine_option("KV cache block size in tokens.")] = None
    num_gpu_blocks_override: Annotated[
        int | None, build_engine_option("Number of KV cache blocks.")
    ] = None
    max_model_len: Annotated[
        int | None,
        build_engine_option("Maximum context length in tokens, prompt and output together."),
    ] = None
    enable_prefix_caching: Annotated[
        bool | None,
        build_engine_option(
            "Reuse the KV cache of shared prompt prefixes.",
            "--enable-prefix-caching/--no-enable-prefix-caching",
        ),
    ] = None
    enable_chunked_prefill: Annotated[
        bool | None,
        build_engine_option(
            "Split long prompts over several steps.",
            "--enable-chunked-prefill/--no-enable-chunked-prefill",
        ),
    ] = None
    long_prefill_token_threshold: Annotated[
        int | None,
        build_engine_option("Maximum number of tokens of one prompt per step; 0 is no limit."),
    ] = None
    long_prefill_token_threshold_adaptive: Annotated[
        bool | None,
        build_engine_option(
            "Raise that limit to max-num-batched-tokens / number of requests.",
            "--long-prefill-token-threshold-adaptive",
        ),
    ] = None
    max_num_active_seqs: Annotated[
        int | None,
        build_engine_option("Maximum number of sequences that run at once, up to --max-num-seqs."),
    ] = None
    watermark: Annotated[
        float | None,
        build_engine_option("Fraction of the KV cache that stays free when a request is admitted."),
    ] = None
    scheduling_policy: Annotated[
        str | None, build_engine_option("Scheduling policy: fcfs or priority.")
    ] = None
    async_scheduling: Annotated[
        bool | None,
        build_engine_option(
            "Schedule a step while the previous one runs.",
            "--async-scheduling/--no-async-scheduling",
        ),
    ] = None
    scheduler_reserve_full_isl: Annotated[
        bool | None,
        build_engine_option(
            "Admit a prompt only if all of it fits into the KV cache.",
            "--scheduler-reserve-full-isl/--no-scheduler-reserve-full-isl",
        ),
    ] = None

    max_loras: Annotated[
        int | None, build_engine_option("Maximum number of LoRA adapters that run at once.")
    ] = None
    kv_cache_dtype: Annotated[
        str | None,
        build_engine_option("Number format of keys and values, such as fp8.", metavar="FORMAT"),
    ] = None
    disable_hybrid_kv_cache_manager: Annotated[
        bool | None,
        build_engine_option(
            "Keep all keys and values of layers with a sliding window too.",
            "--disable-hybrid-kv-cache-manager/--enable-hybrid-kv-cache-manager",
        ),
    ] = None
    prefix_cache_retention_interval: Annotated[
        int | None,
        build_engine_option(
            "Tokens between the prefixes that sliding windows and states keep cached, beside the "
            "end of each prompt; 0 keeps no others.",
            minimum=0,
        ),
    ] = None
    speculative_config: Annotated[
        str | None,
        build_engine_option(
            "Speculative decoding, in vLLM's format: method and num_speculative_tokens.",
            metavar="JSON",
        ),
    ] = None

    def overrides(self) -> dict[str, object]:
        """Return the options that are set, by field name of SimulatedSchedulerConfig,
        without those that are no such field.
        """
        return {
            "num_gpu_blocks" if name == "num_gpu_blocks_override" else name: getattr(self, name)
            for name in (field.name for field in dataclasses.fields(EngineOptions))
            if getattr(self, name) is not None and name not in _OTHER_OPTIONS
        }

    def merge_into_profile(self, profile: SimulatorProfile) -> SimulatorProfile:
        """Override the profile's engine and KV cache with the options that are set.
        Raises ValueError.
        """
        if self.disable_hybrid_kv_cache_manager:
            profile = profile.join_kv_cache_groups()
        if self.kv_cache_dtype is not None:
            profile = profile.convert_kv_cache(self.kv_cache_dtype)
        return msgspec.structs.replace(profile, engine=self.merge_into(profile.engine))

    def merge_into(self, config: SimulatedSchedulerConfig) -> SimulatedSchedulerConfig:
        """Override the configuration with the options that are set. Raises ValueError."""
        from ..engine.speculative_decoding import parse_speculative_config  # noqa: PLC0415

        try:
            if self.speculative_config is not None:
                config = parse_speculative_config(self.speculative_config).merge_into(config)
            return msgspec.convert(
                msgspec.to_builtins(config) | self.overrides(), SimulatedSchedulerConfig
            )
        except msgspec.ValidationError as error:
            # Name the flags instead of msgspec's path of the field, or of the fields
            # that a check of them names.
            message, _, path = str(error).partition(" - at `$.")
            if path:
                raise ValueError(f"--{path.rstrip('`').replace('_', '-')}: {message}") from None
            flags = {"num_gpu_blocks": "--num-gpu-blocks-override"} | {
                field.name: f"--{field.name.replace('_', '-')}"
                for field in dataclasses.fields(EngineOptions)
            }
            raise ValueError(
                re.sub(r"\w+", lambda word: flags.get(word[0], word[0]), message)
            ) from None
