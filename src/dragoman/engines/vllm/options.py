"""What vLLM is told at its start: its own engine arguments by their names, and what this server adds to them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from msgspec import Struct

from ...core.errors import EngineError
from . import backend
from .backend import VllmConfig
from .engine import VllmEngine
from .facts import Facts

_OURS = {
    "model": "the directory follows `vllm:`",
    "tokenizer": "it is in the model's directory",
    "skip_tokenizer_init": "constraints need the tokenizer",
    "disable_log_stats": "this server exports the counters, see /metrics",
    "enable_log_requests": "see --request-log",
}
"""Arguments that cannot be given, and why."""


class VllmOptions(Struct, frozen=True):
    """arguments: fields of vLLM's AsyncEngineArgs. thought: the marks around a thought, as texts, for its budgets.

    max_num_waiting: how many may queue before Overloaded is raised; vLLM itself has no bound.
    """

    arguments: Mapping[str, Any]
    thought: tuple[str, str] | None = None
    max_num_waiting: int = 2048


def load(directory: Path, options: VllmOptions) -> VllmEngine:
    """The engine, not started yet: its weights are read when it is. Blocking.

    Raises EngineError for arguments that vLLM does not know or cannot take.
    """
    if not list(directory.glob("*.safetensors")):
        raise EngineError(
            f"{directory} contains no safetensors file; other formats are not supported, because they may run code"
        )
    known = {field.name for field in dataclasses.fields(backend.arguments.AsyncEngineArgs)}
    for name in options.arguments:
        _check(name, known)
    arguments = _arguments(directory, options)
    config = engine_config(arguments)
    return VllmEngine(arguments, _facts(config), options.max_num_waiting)


def engine_config(arguments: Mapping[str, Any]) -> VllmConfig:
    """Raises EngineError."""
    try:
        return backend.arguments.AsyncEngineArgs(**arguments).create_engine_config()
    except Exception as error:
        # One of dozens of configurations, each with errors of its own.
        raise EngineError(f"vLLM rejects these arguments: {error}") from error


def _check(name: str, known: set[str]) -> None:
    if name in _OURS:
        raise EngineError(f"vllm_args: `{name}` cannot be set here: {_OURS[name]}.")
    if name not in known:
        near = get_close_matches(name, known, 1)
        hint = f" Did you mean `{near[0]}`?" if near else ""
        raise EngineError(f"vllm_args: vLLM has no engine argument `{name}`.{hint}")


def _arguments(directory: Path, options: VllmOptions) -> dict[str, Any]:
    arguments = dict(options.arguments)
    # The pipeline's grammars are llguidance's, and so must vLLM's be; one who asks for another does without.
    arguments.setdefault("structured_outputs_config", {"backend": "guidance"})
    if options.thought is not None and "reasoning_config" not in arguments:
        begin, end = options.thought
        arguments["reasoning_config"] = {"reasoning_start_str": begin, "reasoning_end_str": end}
    return arguments | {"model": str(directory), "disable_log_stats": True, "enable_log_requests": False}


def _facts(config: VllmConfig) -> Facts:
    model, reasoning = config.model_config, config.reasoning_config
    marks = None
    if reasoning is not None and reasoning.enabled:
        marks = (tuple(reasoning.reasoning_start_token_ids), tuple(reasoning.reasoning_end_token_ids))
    eos: int | None = backend.tokenizers.cached_tokenizer_from_config(model).eos_token_id
    grammars = eos is not None and config.structured_outputs_config.backend == "guidance"
    most: int = model.max_logprobs
    return Facts(
        max_model_len=model.max_model_len,
        vocab_size=model.get_vocab_size(),
        max_logprobs=model.get_vocab_size() if most < 0 else most,
        eos=eos if grammars else None,
        marks=marks,
        adapters=config.lora_config is not None,
        sleeps=bool(model.enable_sleep_mode),
        transfers=config.kv_transfer_config is not None,
        prioritised=config.scheduler_config.policy == "priority",
    )
