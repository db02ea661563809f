"""The log lines about a loaded model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..hub import format_bytes
from ..parsers import registry
from ..pipeline.engine_backends import TokenBackend
from ..pipeline.served_model import ModelDetails, ServedModel
from ..settings import Settings
from .engine_registry import find_engine
from .engine_spec import LocalModels


def describe_loaded(settings: Settings, model: ServedModel) -> list[str]:
    """Return log lines about a loaded model: its engine, size, context and formats."""
    details = model.details
    if details.engine is None:
        return []
    spec = find_engine(details.engine)
    local = None if spec is None else spec.local
    path = Path(details.source or "")
    weights = [
        f"engine {details.engine} ({details.reason})",
        f"device {_find_device(settings, local, path)}",
    ]
    if details.quantization is not None:
        weights.append(f"quantization {details.quantization}")
    if details.dtype is not None:
        weights.append(f"weights in {details.dtype}")
    dtype = _find_dtype(settings, local, path)
    if dtype is not None:
        weights.append(f"computed in {dtype}")
    if details.parameters is not None:
        weights.append(f"{details.parameters:,} parameters")
    if details.size is not None:
        weights.append(format_bytes(details.size))
    if details.revision is not None:
        weights.append(f"commit {details.revision}")
    context = f"context {model.max_model_len} tokens"
    capacity = model.interfaces.kv_capacity
    if capacity is not None:
        context += f", {_describe_kv_cache(details, local, capacity.num_kv_tokens)}"
    return [", ".join(weights), context, *_describe_formats(settings, model)]


def _describe_kv_cache(details: ModelDetails, local: LocalModels | None, num_tokens: int) -> str:
    text = f"KV cache of {num_tokens} tokens"
    if local is not None and local.kv_block_size is not None:
        text += f" in {-(-num_tokens // local.kv_block_size)} blocks"
    size = details.kv_bytes_per_token and num_tokens * details.kv_bytes_per_token
    if not size:
        return text
    if local is not None and local.takes_kv_cache_at_start:
        # In float32, twice the size that the details have.
        return f"{text} ({format_bytes(2 * size)}, taken at the start)"
    return f"{text} ({format_bytes(size)} in 16 bits when full)"


def _find_device(settings: Settings, local: LocalModels | None, path: Path) -> str:
    if local is None or local.describe_device is None:
        return "chosen by the library"
    return local.describe_device(settings, path)


def _find_dtype(settings: Settings, local: LocalModels | None, path: Path) -> str | None:
    fixed = None if local is None or local.find_dtype is None else local.find_dtype(path)
    return fixed or (None if settings.dtype == "auto" else settings.dtype)


def _describe_formats(settings: Settings, model: ServedModel) -> Iterator[str]:
    if not isinstance(model.backend, TokenBackend):
        return
    if model.backend.renderer is None:
        yield (
            "no chat template: only raw prompts are answered; set --chat-template for conversations"
        )
        return
    template = None if model.tokenizer_info is None else model.tokenizer_info.chat_template
    special_tokens = model.backend.tokenizer.special_tokens.keys()
    detected = (
        (None, None) if template is None else registry.detect_formats(template, special_tokens)
    )
    declared = "declared by the model"
    reasoning = settings.reasoning_parser or detected[0] or declared
    tools = settings.tool_call_parser or detected[1] or declared
    yield ", ".join(
        (
            "chat template found",
            "no tool call parser detected: calls that the model makes by itself stay text (see "
            "--tool-call-parser)"
            if model.formats.tools is None
            else f"tool call parser {tools}",
            "no reasoning parser detected: reasoning stays in the text (see --reasoning-parser)"
            if model.formats.reasoning is None
            else f"reasoning parser {reasoning}",
        )
    )
