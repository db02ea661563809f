"""Builds a served model around an engine, from the model's metadata with the settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..constraints.bounded_compiler import BoundedCompiler
from ..core.encoder import Embedder
from ..core.engine_interfaces import EngineInterfaces
from ..core.prompt_images import ImageProcessor
from ..core.request import Sampling
from ..core.token_engine import TokenEngine
from ..isolation.worker_pool import WorkerLimits
from ..pipeline.detokenizer import Vocabulary
from ..pipeline.engine_backends import TokenBackend
from ..pipeline.lora_adapters import Adapters
from ..pipeline.served_model import GenerationDefaults, ServedModel
from ..prompts.hf_tokenizer import HfTokenizer, load_tokenizer
from ..prompts.render import Renderer
from ..prompts.request_templates import RequestTemplates
from ..prompts.template import Template
from ..prompts.tokenizer_info import load_tokenizer_info
from ..serving.clock import Clock
from ..settings import GenerationConfig, Settings
from .model_metadata import (
    load_chat_template,
    load_eos_ids,
    load_generation_config,
    resolve_formats,
    resolve_served_names,
)

if TYPE_CHECKING:
    from ..engines.batching import BatchingEngine, BlockFiles, EngineLimits


def build_engine_limits(settings: Settings) -> EngineLimits:
    from ..engines.batching import EngineLimits  # noqa: PLC0415 - numpy takes long to import

    return EngineLimits(
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        num_kv_tokens=settings.kv_cache_tokens,
        enable_prefix_caching=settings.enable_prefix_caching,
        max_num_waiting=settings.max_queued_requests,
        step_timeout=settings.step_timeout,
    )


def build_block_files(
    settings: Settings, directory: Path, library: str, device: str = "auto"
) -> BlockFiles | None:
    """Return the place where an engine stores offloaded KV blocks; None if that is
    disabled.

    library: the distribution that computes the blocks; its version is part of the
        fingerprint.
    device: the device that computes them.
    """
    if settings.kv_offloading_dir is None:
        return None
    from importlib.metadata import version  # noqa: PLC0415 - as above

    from ..engines.batching import BLOCK_SIZE, BlockFiles, compute_fingerprint  # noqa: PLC0415 - as above

    files = [*directory.glob("*.safetensors"), *directory.glob("*.json")]
    name = compute_fingerprint(
        files, library, version(library), settings.dtype, device, str(BLOCK_SIZE)
    )
    return BlockFiles(
        Path(settings.kv_offloading_dir).expanduser() / name, settings.kv_offloading_bytes
    )


def build_token_backend(
    settings: Settings,
    engine: TokenEngine,
    tokenizer: HfTokenizer,
    template: Template | None,
    eos: frozenset[int],
    *,
    embedder: Embedder | None = None,
    vision: ImageProcessor | None = None,
) -> TokenBackend:
    """Build the backend of a token engine.

    template: None for a model without a chat template.

    The other parameters are those of TokenBackend.
    """
    workers = WorkerLimits(seconds=settings.worker_timeout, memory=settings.worker_memory)
    return TokenBackend(
        engine=engine,
        tokenizer=tokenizer,
        vocabulary=Vocabulary(tokenizer),
        compiler=BoundedCompiler(tokenizer, sorted(eos), worker_limits=workers),
        eos=eos,
        renderer=None if template is None else Renderer(template, tokenizer),
        request_templates=RequestTemplates(workers)
        if settings.trust_request_chat_template
        else None,
        embedder=embedder,
        vision=vision,
    )


def build_defaults(
    settings: Settings, model_defaults: GenerationConfig | None = None
) -> GenerationDefaults:
    """Return the defaults of requests: those of the settings, else those of the model."""
    overrides = settings.override_generation_config
    config = GenerationConfig() if model_defaults is None else model_defaults
    return GenerationDefaults(
        overrides.merge_into(config.merge_into(Sampling())),
        overrides.max_new_tokens or config.max_new_tokens,
    )


def build_batching_model(
    settings: Settings,
    clock: Clock,
    directory: Path,
    engine: BatchingEngine,
    *,
    own_name: str,
    embedder: Embedder | None = None,
    vision: ImageProcessor | None = None,
    adapters: Adapters | None = None,
) -> ServedModel:
    """Build a served model around a batching engine. The parameters are those of
    `build_token_model`.
    """
    return build_token_model(
        settings,
        clock,
        directory,
        engine,
        own_name=own_name,
        max_model_len=engine.max_model_len,
        embedder=embedder,
        interfaces=EngineInterfaces(control=engine.control, trainable=engine.control, cache=engine),
        vision=vision,
        adapters=adapters,
    )


def build_token_model(
    settings: Settings,
    clock: Clock,
    directory: Path,
    engine: TokenEngine,
    *,
    own_name: str,
    max_model_len: int,
    embedder: Embedder | None = None,
    interfaces: EngineInterfaces,
    vision: ImageProcessor | None = None,
    adapters: Adapters | None = None,
) -> ServedModel:
    """Build a served model around a token engine.

    directory: contains tokenizer.json and the model's metadata.
    own_name: the model's name if the settings do not name it.
    interfaces: the optional interfaces of the engine.

    The other parameters are those of ServedModel and its backend; None if the engine
    does not support the feature.
    """
    tokenizer = load_tokenizer(directory)
    template = load_chat_template(settings, directory)
    formats = resolve_formats(settings, directory, template, tokenizer)
    if vision is not None and vision.placeholder not in tokenizer.control_tokens.names:
        # Otherwise a user could write the image placeholder as text.
        raise ValueError(
            f"{vision.placeholder!r} is not a control token of the tokenizer in {directory}"
        )
    backend = build_token_backend(
        settings,
        engine,
        tokenizer,
        template,
        load_eos_ids(directory, tokenizer),
        embedder=embedder,
        vision=vision,
    )
    name, aliases = resolve_served_names(settings, own_name)
    return ServedModel(
        name,
        backend,
        max_model_len,
        int(clock.now()),
        aliases,
        defaults=build_defaults(settings, load_generation_config(directory)),
        formats=formats,
        tokenizer_info=load_tokenizer_info(directory, template),
        interfaces=interfaces,
        adapters=adapters,
    )
