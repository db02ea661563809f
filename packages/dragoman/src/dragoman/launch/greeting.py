"""The lines that the server prints when it starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import msgspec

from ..core.encoder_requests import EncodingTask
from ..pipeline.engine_backends import (
    EmbedderBackend,
    ScorerBackend,
    TextEncoderBackend,
    TranscriberBackend,
)
from ..pipeline.model_registry import Models
from ..settings import Settings
from .engine_registry import find_spec_of_model
from .server_assembly import AssembledServer, serves_ui
from .store_builder import find_store_file

_RERANK_EXAMPLE = {"query": "What is the capital of Japan?", "documents": ["Tokyo", "Seven"]}


def build_greeting(settings: Settings, models: Models, port: int | None) -> list[str]:
    """Build the startup lines: the models and the address, an example request, the
    store, and what else the command line implies.
    """
    first_slot = models.slots[0]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    scheme = "http" if settings.ssl_certfile is None else "https"
    address = f"{scheme}://{host}:{port}" if settings.uds is None else f"unix:{settings.uds}"
    question = "What is the capital of Japan?"
    match None if first_slot.model is None else first_slot.model.backend:
        case TextEncoderBackend(engine) if EncodingTask.EMBEDDINGS not in engine.encoding_tasks:
            route = "/rerank"
            fields = _RERANK_EXAMPLE
        case ScorerBackend():
            route = "/rerank"
            fields = _RERANK_EXAMPLE
        case EmbedderBackend() | TextEncoderBackend():
            route = "/v1/embeddings"
            fields = {"input": question}
        case _:
            route = "/v1/chat/completions"
            fields = {"messages": [{"role": "user", "content": question}]}
    body = msgspec.json.encode({"model": first_slot.name, **fields}).decode()
    arguments = f"{route} -H 'Content-Type: application/json' -d '{body}'"
    if first_slot.model is not None and isinstance(first_slot.model.backend, TranscriberBackend):
        arguments = f"/v1/audio/transcriptions -F model={first_slot.name} -F file=@speech.wav"
    curl = ["curl"] if settings.uds is None else ["curl", "--unix-socket", settings.uds]
    if settings.api_key or settings.keys_file is not None:
        curl += ["-H", '"Authorization: Bearer $KEY"']
    base_url = address if settings.uds is None else f"{scheme}://localhost"
    context = (
        ""
        if first_slot.summary is None
        else f" (context {first_slot.summary.max_model_len} tokens)"
    )
    if first_slot.spec is not None and first_slot.is_starting:
        context = (
            f" ({first_slot.spec.progress.phase}; requests get 503 until GET /readyz returns 200)"
        )
    # Only the kind of an external store is printed: its URL may contain credentials.
    match settings.store.partition(":"):
        case "memory", _, _:
            store = "in memory, lost on exit"
        case "sqlite", _, path:
            store = path or str(find_store_file(path, os.environ))
        case kind, _, _:
            store = kind
    pages = f"API reference: {base_url}/docs" + (
        f", web UI: {base_url}/ui" if serves_ui(settings) else ""
    )
    spec = find_spec_of_model(settings)
    simulated = "" if spec is None or spec.simulates is None else f", simulating {spec.simulates}"
    return [
        f"Serving {', '.join(slot.name for slot in models.slots)} on {address}{context}{simulated}",
        f"Try: {' '.join(curl)} {base_url}{arguments}",
        f"Stored responses, files and batches: {store}. {pages}",
        *settings.information,
    ]


def print_greetings(
    assembled_servers: Sequence[AssembledServer],
    ports: Sequence[int | None],
    print_line: Callable[[str], None],
) -> None:
    """Print the first line of the greeting, with the address, for each server, and the
    other lines once.
    """
    greetings = [
        build_greeting(item.settings, item.models, port)
        for item, port in zip(assembled_servers, ports, strict=True)
    ]
    for line in (*(lines[0] for lines in greetings), *greetings[0][1:]):
        print_line(line)
