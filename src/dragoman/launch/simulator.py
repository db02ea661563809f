"""`sim` and `sim:PROFILE`: a vLLM without a GPU, with the tokens of the embedded model or of any other's tokenizer."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import msgspec
import yaml

from ..core.request import Sampling
from ..engines import tiny
from ..engines.script import Entry, load_script
from ..engines.simulator.composer import Composer, Manner
from ..engines.simulator.config import SchedulerConfig
from ..engines.simulator.dataset import read_dataset
from ..engines.simulator.disaggregation import TransferCost
from ..engines.simulator.driven import KvTransfer, SimulatorConfig
from ..engines.simulator.embedder import SimulatorEmbedder
from ..engines.simulator.engine import SimulatorEngine
from ..engines.simulator.faults import Fault, read_faults
from ..engines.simulator.kv_channel import read_config as read_kv_transfer
from ..engines.simulator.kv_publisher import read_config
from ..engines.simulator.lengths import read_lengths
from ..engines.simulator.lexicon import Lexicon
from ..engines.simulator.profile import Profile, load
from ..pipeline.adapters import Adapters, read_adapter
from ..pipeline.models import ServedModel
from ..prompts.template import load_template, load_tokenizer_info
from ..prompts.tokenizer import HfTokenizer, load_tokenizer
from ..serving.clock import Clock
from ..settings import Settings
from .around import token_backend
from .declared import chat_template, end_of_answer, formats, served_names

DEFAULT_PROFILE = "rtx4090-llama-3.1-8b"
_ENDS = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>", "<end_of_turn>", "</s>", "<eos>")


def build_simulator(settings: Settings, clock: Clock, name: str) -> ServedModel:
    """name: of the profile, or its file; `--profile` says the same."""
    if name and settings.profile:
        raise ValueError("the profile is set twice: in MODEL and by --profile")
    profile = load(name or settings.profile or DEFAULT_PROFILE)
    directory, tokenizer, eos = _tokens(settings)
    template = chat_template(settings, directory) or load_template(tiny.embedded())
    reasoning, tools = formats(settings, directory, template, tokenizer)
    scheduler = scheduler_config(settings, profile)
    lexicon = Lexicon(tokenizer, eos)
    composer = Composer(
        lexicon,
        _manner(settings),
        reasoning=reasoning,
        tools=tools,
        script=None if settings.sim_replies is None else load_script(Path(settings.sim_replies)),
        replies=None if settings.sim_dataset is None else _dataset(Path(settings.sim_dataset)),
    )
    engine = SimulatorEngine(
        _config(settings, profile, scheduler), composer, vocab_size=tokenizer.vocab_size, unix_time=clock.now
    )
    embedder = SimulatorEmbedder(engine, settings.sim_embedding_size)
    backend = token_backend(settings, engine, tokenizer, template, eos, embedder=embedder, cache=engine)
    first, aliases = served_names(settings, profile.name)
    return ServedModel(
        first,
        backend,
        engine.max_model_len,
        int(clock.now()),
        aliases,
        owned_by="vllm",
        sampling=settings.override_generation_config.over(Sampling()),
        max_new_tokens=settings.override_generation_config.max_new_tokens,
        monitored=engine,
        control=engine,
        directed=engine,
        adapters=Adapters(tuple(read_adapter(text) for text in settings.lora_modules)),
        reasoning=reasoning,
        tools=tools,
        tokenizer_info=load_tokenizer_info(directory, template),
    )


def _tokens(settings: Settings) -> tuple[Path, HfTokenizer, frozenset[int]]:
    """Where the tokenizer lies, itself, and what ends an answer in it."""
    if settings.tokenizer is None:
        directory = tiny.embedded()
        return directory, load_tokenizer(directory), end_of_answer(directory)
    path = Path(settings.tokenizer)
    if path.is_dir() and any((path / file).exists() for file in ("generation_config.json", "config.json")):
        return path, load_tokenizer(path), end_of_answer(path)
    tokenizer = load_tokenizer(path) if path.is_dir() else HfTokenizer(path.read_bytes())
    special = tokenizer.special_tokens
    ends = frozenset(special[name] for name in _ENDS if name in special)
    if not ends:
        raise ValueError(f"{path} does not define an end-of-sequence token; add a generation_config.json next to it")
    return path if path.is_dir() else path.parent, tokenizer, ends


def scheduler_config(settings: Settings, profile: Profile) -> SchedulerConfig:
    """The profile's, with what the settings say in its place."""
    own = profile.engine
    block_size = settings.block_size or own.block_size
    blocks = settings.num_gpu_blocks_override
    if blocks is None and settings.kv_cache_tokens is not None:
        blocks = -(-settings.kv_cache_tokens // block_size) + 1
    if blocks is None:
        # A cache of the same bytes has more blocks if they are smaller.
        blocks = own.num_gpu_blocks * own.block_size // block_size
    return msgspec.structs.replace(
        own,
        max_num_seqs=settings.max_num_seqs or own.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens or own.max_num_batched_tokens,
        block_size=block_size,
        num_gpu_blocks=max(2, blocks),
        max_model_len=settings.max_model_len or own.max_model_len,
        enable_prefix_caching=own.enable_prefix_caching and settings.enable_prefix_caching,
        enable_chunked_prefill=own.enable_chunked_prefill and settings.enable_chunked_prefill,
        scheduling_policy=settings.scheduling_policy or own.scheduling_policy,
    )


def _config(settings: Settings, profile: Profile, scheduler: SchedulerConfig) -> SimulatorConfig:
    return SimulatorConfig(
        scheduler=scheduler,
        latency=profile.latency,
        frontend_seconds=profile.frontend_seconds,
        noise=profile.noise,
        time_scale=settings.time_scale,
        warm_up=settings.warm_up,
        ranks=settings.data_parallel_size,
        seed=settings.seed,
        max_num_waiting=settings.max_queued_requests,
        kv_events=None if settings.kv_events_config is None else read_config(settings.kv_events_config),
        kv_transfer=None if settings.kv_transfer_config is None else _transfer(settings.kv_transfer_config, profile),
        faults=() if settings.sim_faults is None else _faults(Path(settings.sim_faults)),
    )


def _transfer(text: str, profile: Profile) -> KvTransfer:
    config = read_kv_transfer(text)
    extra = config.kv_connector_extra_config
    size = extra.bytes_per_token or profile.model.kv_bytes_per_token
    if size is None:
        raise ValueError(
            "--kv-transfer-config needs bytes_per_token in kv_connector_extra_config: the profile has none"
        )
    return KvTransfer(
        msgspec.structs.replace(config, engine_id=config.engine_id or str(uuid4())),
        TransferCost(size, extra.bandwidth, extra.base_seconds),
        profile.hardware.tensor_parallel,
    )


def _manner(settings: Settings) -> Manner:
    return Manner(
        mode=settings.sim_mode,
        output_tokens=read_lengths(settings.sim_output_tokens),
        reasoning_tokens=read_lengths(settings.sim_reasoning_tokens),
        tool_calls=settings.sim_tool_calls,
        reasoning=settings.sim_reasoning,
        directives=settings.directives,
    )


def _dataset(path: Path) -> dict[str, Entry]:
    with path.open("rb") as lines:
        return read_dataset(lines, str(path))


def _faults(path: Path) -> tuple[Fault, ...]:
    try:
        return read_faults(yaml.safe_load(path.read_text(encoding="utf-8")))
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: {error}") from None
