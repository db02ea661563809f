"""Loads a checkpoint into vLLM: its engine arguments, with the defaults that this
server adds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from msgspec import Struct

from ...core.encoder_requests import EmbeddingInfo, Pooling
from ...core.errors import EngineError
from . import backend
from .backend import AdapterTable, VllmConfig
from .engine import VllmEngine
from .features import VllmFeatures
from .pooling import PoolingLimits, VllmEmbedder, VllmScorer
from .process import VllmProcess
from .vision import VllmVision, load_vision

_RESERVED_ARGUMENTS = {
    "model": "the directory follows `vllm:`",
    "tokenizer": "it is in the model's directory",
    "skip_tokenizer_init": "constraints need the tokenizer",
    "disable_log_stats": "this server exports the counters, see /metrics",
    "enable_log_requests": "see --request-log",
}
"""Engine arguments that cannot be set, and why."""


class VllmOptions(Struct, frozen=True):
    """Options of the vLLM engine.

    arguments: fields of vLLM's AsyncEngineArgs.
    reasoning_delimiters: texts that begin and end reasoning, for budgets.
    max_num_waiting: requests that may queue before Overloaded is raised; vLLM itself
        has no limit.
    """

    arguments: Mapping[str, Any]
    reasoning_delimiters: tuple[str, str] | None = None
    max_num_waiting: int = 2048


class LoadedEngine(Struct, frozen=True):
    """A generating engine and its image processor.

    vision: None for a model that does not read images.
    """

    engine: VllmEngine
    vision: VllmVision | None


def load(directory: Path, options: VllmOptions) -> LoadedEngine | VllmEmbedder | VllmScorer:
    """Build the engine of a checkpoint, without starting it: its `start` reads the
    weights. Blocking.

    Raises: EngineError for unknown or invalid arguments.
    """
    if not list(directory.glob("*.safetensors")):
        raise EngineError(
            f"{directory} contains no safetensors file; other formats are not supported, because "
            f"they may run code"
        )
    known_names = {field.name for field in dataclasses.fields(backend.arguments.AsyncEngineArgs)}
    for name in options.arguments:
        if name in _RESERVED_ARGUMENTS:
            raise EngineError(
                f"vllm_args: `{name}` cannot be set here: {_RESERVED_ARGUMENTS[name]}."
            )
        if name not in known_names:
            matches = get_close_matches(name, known_names, 1)
            hint = f" Did you mean `{matches[0]}`?" if matches else ""
            raise EngineError(f"vllm_args: vLLM has no engine argument `{name}`.{hint}")
    arguments = dict(options.arguments)
    # The pipeline's grammars are in llguidance's format; another backend would disable
    # structured output.
    arguments.setdefault("structured_outputs_config", {"backend": "guidance"})
    if options.reasoning_delimiters is not None and "reasoning_config" not in arguments:
        begin, end = options.reasoning_delimiters
        arguments["reasoning_config"] = {"reasoning_start_str": begin, "reasoning_end_str": end}
    arguments |= {"model": str(directory), "disable_log_stats": True, "enable_log_requests": False}
    config = build_engine_config(arguments)
    adapters = AdapterTable()
    process = VllmProcess(arguments, adapters)
    if config.model_config.runner_type == "pooling":
        return _build_pooling_engine(process, config, options.max_num_waiting)
    vision = load_vision(config)
    features = _read_features(config, has_images=vision is not None)
    engine = VllmEngine(process, adapters, features, directory, options.max_num_waiting)
    return LoadedEngine(engine, vision)


def _build_pooling_engine(
    process: VllmProcess, config: VllmConfig, max_num_waiting: int
) -> VllmEmbedder | VllmScorer:
    """Build the engine of a pooling model.

    Raises: EngineError for models whose results no route returns, or whose inputs are
        not plain texts.
    """
    model = config.model_config
    pooler = config.model_config.pooler_config
    limits = PoolingLimits(model.max_model_len, model.get_vocab_size(), max_num_waiting)
    match model.score_type:
        case "bi-encoder" if model.convert_type != "classify":
            embedding_info = EmbeddingInfo(
                model.embedding_size,
                model.max_model_len,
                Pooling(pooler.seq_pooling_type.lower()),
                pooler.use_activation is not False,
                bool(model.is_matryoshka),
                tuple(sorted(model.matryoshka_dimensions or ())),
            )
            return VllmEmbedder(process, limits, embedding_info)
        case "cross-encoder":
            labels: int = model.hf_config.num_labels
            if labels != 1:
                raise EngineError(
                    f"this engine scores pairs with models of one label, not with classifiers of "
                    f"{labels}"
                )
            model_class = backend.model_loader.get_model_cls(model)
            if not model.use_sep_token or backend.scoring_models.supports_score_template(
                model_class
            ):
                raise EngineError(
                    "this engine does not support rerankers that need a prompt template; run "
                    "`vllm serve`, and serve "
                    "its URL"
                )
            tokenizer = backend.tokenizers.cached_tokenizer_from_config(model)
            has_segments = "token_type_ids" in tokenizer("a", "a")
            return VllmScorer(process, limits, has_segments=has_segments)
        case kind:
            raise EngineError(
                f"this engine does not support pooling models of vLLM's score type {kind!r}"
            )


def build_engine_config(arguments: Mapping[str, Any]) -> VllmConfig:
    """Build vLLM's configuration. Raises EngineError if vLLM rejects the arguments."""
    try:
        return backend.arguments.AsyncEngineArgs(**arguments).create_engine_config()
    except Exception as error:
        # vLLM's configuration classes raise many types of errors.
        raise EngineError(f"vLLM rejects these arguments: {error}") from error


def _read_features(config: VllmConfig, *, has_images: bool) -> VllmFeatures:
    model = config.model_config
    reasoning = config.reasoning_config
    delimiters = None
    if reasoning is not None and reasoning.enabled:
        delimiters = (
            tuple(reasoning.reasoning_start_token_ids),
            tuple(reasoning.reasoning_end_token_ids),
        )
    eos: int | None = backend.tokenizers.cached_tokenizer_from_config(model).eos_token_id
    has_grammars = eos is not None and config.structured_outputs_config.backend == "guidance"
    max_logprobs: int = model.max_logprobs
    return VllmFeatures(
        max_model_len=model.max_model_len,
        vocab_size=model.get_vocab_size(),
        max_logprobs=model.get_vocab_size() if max_logprobs < 0 else max_logprobs,
        eos_id=eos if has_grammars else None,
        reasoning_delimiters=delimiters,
        has_lora=config.lora_config is not None,
        can_sleep=bool(model.enable_sleep_mode),
        has_kv_transfer=config.kv_transfer_config is not None,
        has_priorities=config.scheduler_config.policy == "priority",
        has_images=has_images,
        has_tracing=config.observability_config.otlp_traces_endpoint is not None,
    )
