"""Builds `sim` and `sim:PROFILE`: a simulated vLLM without a GPU, with the bundled
model's or another tokenizer.
"""

from __future__ import annotations

import os
from pathlib import Path
from secrets import token_hex
from uuid import uuid4

import msgspec

from dragoman.core.engine_interfaces import EngineInterfaces
from dragoman.engines.bundled_model import find_bundled_model
from dragoman.engines.script import load_script
from dragoman.launch.hub_models import fetch_tokenizer
from dragoman.launch.model_builder import build_defaults, build_token_backend
from dragoman.launch.model_metadata import (
    find_eos_ids,
    load_chat_template,
    resolve_formats,
    resolve_served_names,
)
from dragoman.launch.unsupported_settings import report_ignored
from dragoman.pipeline.lora_adapters import Adapters, read_adapter
from dragoman.pipeline.served_model import ModelDetails, ServedModel
from dragoman.prompts.hf_tokenizer import HfTokenizer, load_tokenizer
from dragoman.prompts.template_loader import load_template
from dragoman.prompts.tokenizer_info import load_tokenizer_info
from dragoman.serving.clock import Clock
from dragoman.settings import Settings

from .engine.block_hashes import DEFAULT_SEED, BlockHasher
from .engine.embedder import SimulatedVision, SimulatorEmbedder, find_image_token
from .engine.engine import KvTransferSettings, SimulatorConfig, SimulatorEngine
from .engine.fault_injection import parse_faults
from .engine.kv_publisher import parse_kv_events_config
from .engine.kv_transfer_config import parse_kv_transfer_config as read_kv_transfer
from .engine.lexicon import Lexicon
from .engine.network_link import TransferCost
from .engine.profile import RankLayout, SimulatorProfile, load
from .engine.reply_generator import (
    ReplyGenerator,
    ReplyOptions,
    parse_length_distribution,
    read_dataset,
)
from .engine.scheduler_config import SimulatedSchedulerConfig
from .engine.speculative_decoding import parse_acceptance_rates, parse_speculative_config
from .settings import SimulatorSettings

DEFAULT_PROFILE = "rtx4090-llama-3.1-8b"
_EOS_NAMES = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "</s>",
    "<eos>",
)
"""Names of end-of-sequence tokens, for tokenizers without a configuration that states
them.
"""


def build_simulator(settings: Settings, clock: Clock, name: str) -> ServedModel:
    """Build a simulated model.

    name: the profile's name or file, as an alternative to `--profile`; may be empty.
    """
    simulator = settings.of(SimulatorSettings)
    profile = load_profile(settings, name)
    path = (
        find_bundled_model()
        if simulator.tokenizer is None
        else fetch_tokenizer(simulator.tokenizer)
    )
    tokenizer, eos = _load_tokenizer(path)
    directory = path if path.is_dir() else path.parent
    template = load_chat_template(settings, directory) or load_template(find_bundled_model())
    formats = resolve_formats(settings, directory, template, tokenizer)
    recorded_replies = None
    if simulator.sim_dataset is not None:
        with Path(simulator.sim_dataset).open("rb") as lines:
            recorded_replies = read_dataset(lines, simulator.sim_dataset)
    replies = ReplyGenerator(
        Lexicon(tokenizer, eos),
        ReplyOptions(
            mode=simulator.sim_mode,
            output_tokens=parse_length_distribution(simulator.sim_output_tokens),
            reasoning_tokens=parse_length_distribution(simulator.sim_reasoning_tokens),
            tool_calls=simulator.sim_tool_calls,
            reasoning=simulator.sim_reasoning,
            directives=settings.directives,
        ),
        reasoning=formats.reasoning,
        tools=formats.tools,
        script=None if simulator.sim_replies is None else load_script(Path(simulator.sim_replies)),
        replies=recorded_replies,
    )
    config = _build_config(settings, profile)
    adapters = Adapters(tuple(read_adapter(text) for text in settings.lora_modules))
    engine = SimulatorEngine(
        config,
        replies,
        vocab_size=tokenizer.vocab_size,
        unix_time=clock.now,
        hasher=_build_hasher(simulator),
        find_lora_path=adapters.find_path,
    )
    embedder = SimulatorEmbedder(engine, simulator.sim_embedding_size)
    vision = None
    if simulator.sim_image_tokens:
        token = find_image_token(
            tokenizer.special_tokens, "" if template is None else template.source, eos
        )
        vision = SimulatedVision(simulator.sim_image_tokens, token)
    backend = build_token_backend(
        settings, engine, tokenizer, template, eos, embedder=embedder, vision=vision
    )
    served_name, aliases = resolve_served_names(settings, profile.name)
    return ServedModel(
        served_name,
        backend,
        engine.max_model_len,
        int(clock.now()),
        aliases,
        # Clients and routers recognize vLLM by this field.
        details=ModelDetails(owned_by="vllm"),
        defaults=build_defaults(settings),
        formats=formats,
        tokenizer_info=load_tokenizer_info(directory, template),
        interfaces=EngineInterfaces(
            control=engine,
            scriptable=engine,
            simulation=engine,
            stats_source=engine,
            cache=engine,
        ),
        adapters=adapters,
    )


def load_profile(settings: Settings, name: str) -> SimulatorProfile:
    """Load the profile of a server. name: as of `build_simulator`. Raises ValueError."""
    profile = settings.of(SimulatorSettings).profile
    if name and profile:
        raise ValueError("the profile is set twice: in MODEL and by --profile")
    return load(name or profile or DEFAULT_PROFILE)


def _build_hasher(simulator: SimulatorSettings) -> BlockHasher:
    """Build the hasher of blocks. Raises ValueError if its library is missing."""
    algorithm = simulator.prefix_caching_hash_algo
    seed = simulator.hash_seed or os.environ.get("PYTHONHASHSEED")
    if seed is None:
        # As in vLLM: with a known seed a client could find blocks that collide.
        seed = token_hex(32) if algorithm.startswith("xxhash") else DEFAULT_SEED
    return BlockHasher(algorithm, seed)


def _load_tokenizer(path: Path) -> tuple[HfTokenizer, frozenset[int]]:
    """Load a tokenizer and its end-of-sequence tokens from a model's directory or a
    `tokenizer.json`.
    """
    tokenizer = load_tokenizer(path) if path.is_dir() else HfTokenizer(path.read_bytes())
    eos = find_eos_ids(path if path.is_dir() else path.parent, tokenizer) or frozenset(
        id for name, id in tokenizer.special_tokens.items() if name in _EOS_NAMES
    )
    if not eos:
        raise ValueError(
            f"{path} does not define an end-of-sequence token; add a generation_config.json next "
            f"to it"
        )
    return tokenizer, eos


def _build_config(settings: Settings, profile: SimulatorProfile) -> SimulatorConfig:
    simulator = settings.of(SimulatorSettings)
    profile = _convert_kv_cache(simulator, profile)
    scheduler = build_scheduler_config(settings, profile)
    if scheduler.kv_cache_groups:
        _check_grouped(settings, profile)
    kv_transfer = None
    offloading = None
    faults = ()
    if settings.kv_transfer_config is not None:
        transfer_config = read_kv_transfer(settings.kv_transfer_config)
        extra = transfer_config.kv_connector_extra_config
        size = extra.bytes_per_token or profile.model.kv_bytes_per_token
        if size is None:
            raise ValueError(
                "--kv-transfer-config needs bytes_per_token in kv_connector_extra_config: the "
                "profile has none"
            )
        kv_transfer = KvTransferSettings(
            msgspec.structs.replace(
                transfer_config, engine_id=transfer_config.engine_id or str(uuid4())
            ),
            TransferCost(size, extra.bandwidth, extra.base_seconds),
            profile.hardware.tensor_parallel,
            profile.model.layers or 1,
        )
    if simulator.kv_offloading_backend != "native":
        raise ValueError(
            f"--kv-offloading-backend {simulator.kv_offloading_backend}: only `native` is simulated"
        )
    if simulator.kv_offloading_size is not None:
        if settings.kv_transfer_config is not None or settings.kv_events_config is not None:
            raise ValueError(
                "--kv-offloading-size is not simulated together with --kv-transfer-config or "
                "--kv-events-config"
            )
        if profile.hardware.lock_step:
            raise ValueError(
                "--kv-offloading-size is not simulated for ranks that share experts, as those of "
                f"{profile.name} do"
            )
        if scheduler.num_speculative_tokens or not scheduler.enable_prefix_caching:
            raise ValueError(
                "--kv-offloading-size is simulated with prefix caching and without "
                "--speculative-config only"
            )
        offloading = profile.build_offloading(simulator.kv_offloading_size)
        offloading.build_config(scheduler.block_size)
    if simulator.sim_faults is not None:
        from dragoman.core.strict_yaml import load_yaml  # noqa: PLC0415 - yaml takes long to import

        try:
            faults = parse_faults(load_yaml(Path(simulator.sim_faults).read_bytes()))
        except ValueError as error:
            raise ValueError(f"{simulator.sim_faults}: {error}") from None
    return SimulatorConfig(
        scheduler=scheduler,
        latency=profile.latency,
        frontend_seconds=profile.frontend_seconds,
        noise=profile.noise,
        time_scale=simulator.time_scale,
        warm_up=simulator.warm_up,
        ranks=read_ranks(settings, profile),
        acceptance_rates=profile.acceptance_rates
        if simulator.sim_acceptance_rates is None
        else parse_acceptance_rates(simulator.sim_acceptance_rates),
        seed=settings.seed,
        accepts_images=simulator.sim_image_tokens > 0,
        max_num_waiting=settings.max_queued_requests,
        cache_hit_threshold=_choose_cache_hit_threshold(settings, scheduler),
        kv_events=None
        if settings.kv_events_config is None
        else parse_kv_events_config(settings.kv_events_config),
        kv_transfer=kv_transfer,
        offloading=offloading,
        faults=faults,
    )


def read_ranks(settings: Settings, profile: SimulatorProfile) -> RankLayout:
    """Return the data-parallel ranks of a server: those of the profile, or another number
    of independent ones.

    Raises:
        ValueError: the profile has ranks that share experts, in another number.
    """
    ranks = profile.hardware.ranks
    count = settings.data_parallel_size or ranks.count
    if ranks.lock_step and count != ranks.count:
        raise ValueError(
            f"--data-parallel-size {count}: the times of {profile.name} are those of {ranks.count} "
            f"ranks that share experts; use a profile of such a server"
        )
    return msgspec.structs.replace(ranks, count=count)


def _convert_kv_cache(simulator: SimulatorSettings, profile: SimulatorProfile) -> SimulatorProfile:
    if simulator.disable_hybrid_kv_cache_manager:
        profile = profile.join_kv_cache_groups()
    return profile.convert_kv_cache(simulator.kv_cache_dtype or profile.model.kv_cache_dtype)


def _check_grouped(settings: Settings, profile: SimulatorProfile) -> None:
    """Check that nothing is set that needs one table of blocks per sequence."""
    for flag, is_set in (
        ("--kv-transfer-config", settings.kv_transfer_config is not None),
        ("--kv-events-config", settings.kv_events_config is not None),
        ("--kv-offloading-size", settings.of(SimulatorSettings).kv_offloading_size is not None),
    ):
        if is_set:
            raise ValueError(
                f"{flag} is not simulated with the several KV cache groups of profile "
                f"{profile.name}; add --disable-hybrid-kv-cache-manager"
            )


def build_scheduler_config(
    settings: Settings, profile: SimulatorProfile
) -> SimulatedSchedulerConfig:
    """Build the profile's scheduler config with the settings' overrides. Raises
    ValueError for invalid ones.
    """
    simulator = settings.of(SimulatorSettings)
    tensor_parallel = profile.hardware.tensor_parallel
    if simulator.tensor_parallel_size not in (None, tensor_parallel):
        raise ValueError(
            f"--tensor-parallel-size {simulator.tensor_parallel_size}: the times of {profile.name} "
            f"are those of "
            f"{tensor_parallel}; use a profile of such a server"
        )
    profile_config = profile.engine
    block_size = settings.block_size or profile_config.block_size
    blocks = settings.num_gpu_blocks_override
    if blocks is None and settings.kv_cache_tokens is not None:
        # One block is vLLM's null block, which is never allocated.
        blocks = -(-settings.kv_cache_tokens // block_size) + 1
    if blocks is None:
        # A cache of the same size in bytes has more blocks if they are smaller.
        blocks = profile_config.num_gpu_blocks * profile_config.block_size // block_size
    if settings.speculative_config is not None:
        profile_config = parse_speculative_config(settings.speculative_config).merge_into(
            profile_config
        )
    return msgspec.structs.replace(
        profile_config,
        max_num_seqs=settings.max_num_seqs or profile_config.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens
        or profile_config.max_num_batched_tokens,
        block_size=block_size,
        num_gpu_blocks=max(2, blocks),
        max_model_len=settings.max_model_len or profile_config.max_model_len,
        enable_prefix_caching=profile_config.enable_prefix_caching
        and settings.enable_prefix_caching,
        enable_chunked_prefill=profile_config.enable_chunked_prefill
        and settings.enable_chunked_prefill,
        scheduling_policy=settings.scheduling_policy or profile_config.scheduling_policy,
        max_loras=simulator.max_loras or profile_config.max_loras,
        max_num_active_seqs=simulator.max_num_active_seqs or profile_config.max_num_active_seqs,
        long_prefill_token_threshold=profile_config.long_prefill_token_threshold
        if simulator.long_prefill_token_threshold is None
        else simulator.long_prefill_token_threshold,
        long_prefill_token_threshold_adaptive=profile_config.long_prefill_token_threshold_adaptive
        or simulator.long_prefill_token_threshold_adaptive,
        async_scheduling=profile_config.async_scheduling and simulator.async_scheduling,
        scheduler_reserve_full_isl=profile_config.scheduler_reserve_full_isl
        and simulator.scheduler_reserve_full_isl,
        watermark=profile_config.watermark if simulator.watermark is None else simulator.watermark,
        prefix_cache_retention_interval=_choose_retention_interval(settings, profile),
    )


def _choose_cache_hit_threshold(settings: Settings, scheduler: SimulatedSchedulerConfig) -> float:
    threshold = settings.of(SimulatorSettings).global_cache_hit_threshold
    if threshold and not scheduler.enable_prefix_caching:
        warning = "--global-cache-hit-threshold has no effect: prefix caching is disabled"
        report_ignored(settings, (warning,))
        return 0.0
    return threshold


def _choose_retention_interval(settings: Settings, profile: SimulatorProfile) -> int | None:
    interval = settings.of(SimulatorSettings).prefix_cache_retention_interval
    if interval and not profile.engine.kv_cache_groups:
        # A line of vLLM may have it whatever the profile is.
        warning = (
            "--prefix-cache-retention-interval has no effect: no layers of profile "
            f"{profile.name} keep a sliding window or a state apart from the others"
        )
        report_ignored(settings, (warning,))
        interval = None
    return profile.engine.prefix_cache_retention_interval if interval is None else interval
