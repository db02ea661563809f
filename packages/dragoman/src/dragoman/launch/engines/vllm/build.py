"""Builds `vllm:DIRECTORY`: a model that vLLM runs in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ....core.engine_interfaces import EngineInterfaces
from ....core.errors import EngineError
from ....engines.vllm.load import LoadedEngine, VllmOptions, load
from ....engines.vllm.pooling import VllmEmbedder, VllmScorer
from ....pipeline.engine_backends import EmbedderBackend, ScorerBackend
from ....pipeline.lora_adapters import Adapters, read_adapter
from ....pipeline.served_model import ServedModel
from ....prompts.hf_tokenizer import load_tokenizer
from ....prompts.tokenizer_info import load_tokenizer_info
from ....serving.clock import Clock
from ....settings import Settings
from ...model_builder import build_token_model
from ...model_metadata import load_chat_template, resolve_formats, resolve_served_names
from .settings import VllmEngineSettings


def build_vllm(settings: Settings, clock: Clock, path: str) -> ServedModel:
    """Build a model that vLLM runs.

    path: a directory with config.json, tokenizer.json and *.safetensors.
    """
    directory = Path(path)
    adapters = tuple(read_adapter(text) for text in settings.lora_modules)
    arguments = build_engine_arguments(settings)
    if adapters:
        arguments.setdefault("enable_lora", True)
    template = load_chat_template(settings, directory)
    reasoning = resolve_formats(
        settings, directory, template, load_tokenizer(directory, generates=False)
    ).reasoning
    options = VllmOptions(
        arguments,
        None if reasoning is None else (reasoning.syntax.begin, reasoning.syntax.end),
        settings.max_queued_requests,
    )
    loaded = load(directory, options)
    if not isinstance(loaded, LoadedEngine):
        if adapters:
            raise EngineError("adapters are not supported for vLLM's pooling models")
        tokenizer = load_tokenizer(directory, generates=False)
        match loaded:
            case VllmEmbedder():
                backend = EmbedderBackend(loaded, tokenizer)
                limit = loaded.embedding_info.max_tokens
            case VllmScorer():
                backend = ScorerBackend(loaded, tokenizer)
                limit = loaded.max_tokens
        name, aliases = resolve_served_names(settings, directory.resolve().name)
        info = load_tokenizer_info(directory)
        return ServedModel(
            name,
            backend,
            limit,
            int(clock.now()),
            aliases,
            interfaces=EngineInterfaces(stats_source=loaded),
            tokenizer_info=info,
        )
    engine = loaded.engine
    for adapter in adapters:
        engine.add_adapter(adapter.name, adapter.path)
    served_adapters = Adapters(adapters, engine) if arguments.get("enable_lora") else None
    if served_adapters is not None:
        engine.on_adapter_drop(served_adapters.drop)
    return build_token_model(
        settings,
        clock,
        directory,
        engine,
        own_name=directory.resolve().name,
        max_model_len=engine.max_model_len,
        interfaces=EngineInterfaces(
            control=engine.control,
            trainable=engine.trainable,
            stats_source=engine,
            cache=engine,
        ),
        vision=loaded.vision,
        adapters=served_adapters,
    )


def build_engine_arguments(settings: Settings) -> dict[str, Any]:
    """Build vLLM's engine arguments from the settings. `--vllm-args` adds to them and
    overrides them.

    Raises:
        EngineError: a setting is not a JSON object.
    """
    candidates: dict[str, Any] = {
        "max_model_len": settings.max_model_len,
        "max_num_seqs": settings.max_num_seqs,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "block_size": settings.block_size,
        "num_gpu_blocks_override": settings.num_gpu_blocks_override,
        "scheduling_policy": settings.scheduling_policy,
        # Passed only if disabled: vLLM itself disables both features for some models.
        "enable_prefix_caching": None if settings.enable_prefix_caching else False,
        "enable_chunked_prefill": None if settings.enable_chunked_prefill else False,
        "kv_events_config": _decode_object("kv_events_config", settings.kv_events_config),
        "kv_transfer_config": _decode_object("kv_transfer_config", settings.kv_transfer_config),
        "speculative_config": _decode_object("speculative_config", settings.speculative_config),
    }
    explicit = {name: value for name, value in candidates.items() if value is not None}
    return {
        "dtype": settings.dtype,
        "trust_remote_code": settings.trust_remote_code,
        "data_parallel_size": settings.data_parallel_size or 1,
        "seed": settings.seed,
        **explicit,
        **(_decode_object("vllm_args", settings.of(VllmEngineSettings).vllm_args) or {}),
    }


def _decode_object(name: str, text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise EngineError(f"{name} must be a JSON object: {error}") from error
