"""The lines that a server prints when it has started: what is served, and an example request."""

from __future__ import annotations

import os

import msgspec

from ..core.embeddings import EncodingTask
from ..engines.simulator.config import VLLM_VERSION
from ..pipeline.models import EmbedderBackend, Models, ModelSlot, ScorerBackend, TextEncoderBackend
from ..settings import Settings
from .storage import find_store_file


def build_greeting(settings: Settings, models: Models, port: int | None) -> list[str]:
    """The startup lines: what is served, and an example request."""
    first_slot = models.slots[0]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    scheme = "http" if settings.ssl_certfile is None else "https"
    address = f"{scheme}://{host}:{port}" if settings.uds is None else f"unix:{settings.uds}"
    route, fields = _build_example_request(first_slot)
    body = msgspec.json.encode({"model": first_slot.name, **fields}).decode()
    curl = ["curl"] if settings.uds is None else ["curl", "--unix-socket", settings.uds]
    if settings.api_key or settings.keys_file is not None:
        curl += ["-H", '"Authorization: Bearer $KEY"']
    base_url = address if settings.uds is None else f"{scheme}://localhost"
    context = "" if first_slot.summary is None else f" (context {first_slot.summary.max_model_len} tokens)"
    if first_slot.spec is not None and first_slot.is_starting:
        context = f" ({first_slot.spec.progress.phase}; requests get 503 until GET /readyz returns 200)"
    simulated = f", simulating vLLM {VLLM_VERSION}" if is_simulated(settings) else ""
    return [
        f"Serving {', '.join(slot.name for slot in models.slots)} on {address}{context}{simulated}",
        f"Try: {' '.join(curl)} {base_url}{route} -H 'Content-Type: application/json' -d '{body}'",
        f"Stored responses, files and batches: {_describe_store(settings)}. Documentation: README.md and docs/.",
    ]


def _describe_store(settings: Settings) -> str:
    """Where responses, files and batches are stored, without credentials."""
    match settings.store.partition(":"):
        case "none", _, _:
            return "none"
        case "memory", _, _:
            return "in memory, lost on exit"
        case "sqlite", _, path:
            return path or str(find_store_file(path, os.environ))
        case kind, _, _:
            return kind


def _build_example_request(slot: ModelSlot) -> tuple[str, dict[str, object]]:
    """Return a route that the model supports and a minimal body for it."""
    question = "What is the capital of Japan?"
    match None if slot.model is None else slot.model.backend:
        case EmbedderBackend():
            return "/v1/embeddings", {"input": question}
        case TextEncoderBackend(engine) if EncodingTask.EMBEDDINGS in engine.encoding_tasks:
            return "/v1/embeddings", {"input": question}
        case ScorerBackend() | TextEncoderBackend():
            return "/rerank", {"query": question, "documents": ["Tokyo", "Seven"]}
        case _:
            return "/v1/chat/completions", {"messages": [{"role": "user", "content": question}]}


def is_simulated(settings: Settings) -> bool:
    return settings.model.partition(":")[0] == "sim"
