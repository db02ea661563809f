"""Ollama's descriptions of models: lists, details, downloads.

Ollama names a model `model:tag`. A model without a tag is listed as `model:latest`, and
found under both names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from ...core.model_download import PullProgress
from ...core.request import Sampling
from ..generation_fields import resolve_model
from ..interfaces import ReaderOptions
from ..json_encoding import encode_string, escape_line_breaks
from ..request_body import BodySchema, ParsedBody
from .wire import (
    OLLAMA_MODEL,
    OLLAMA_SAMPLING,
    OllamaModelBody,
)
from .writer import format_time

LATEST = ":latest"
UNKNOWN_ARCHITECTURE = "unknown"
_MODEL = BodySchema(OllamaModelBody)


class NamedModel(Struct, frozen=True):
    """A parsed body of /api/show or /api/pull.

    warnings, unknown: as in `GenerationCall`.
    """

    model: str
    stream: bool = True
    warnings: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def read_model_reference(data: bytes, options: ReaderOptions) -> NamedModel:
    """Parse a body of /api/show or /api/pull. Raises RequestError."""
    parsed = ParsedBody(data)
    body = parsed.decode(_MODEL)
    warnings, unknown = OLLAMA_MODEL.classify_body(parsed, _MODEL)
    return NamedModel(
        resolve_model(body.model or body.name, options),
        body.stream is not False,
        tuple(warnings),
        unknown,
    )


class OllamaModelCard(Struct, frozen=True):
    """A model as Ollama's routes describe it.

    name: a name or an alias.
    root: the model behind the name.
    created: Unix seconds.
    size: bytes in memory; 0 if unknown.
    max_model_len, capabilities: None if the model has not been loaded yet.
    architecture, quantization, format: empty if unknown.
    parameters: number of weights.
    template: the source of its chat template.
    """

    name: str
    root: str
    created: int
    size: int = 0
    max_model_len: int | None = None
    capabilities: tuple[str, ...] | None = None
    embedding_length: int | None = None
    architecture: str = ""
    parameters: int | None = None
    quantization: str = ""
    format: str = ""
    template: str = ""
    sampling: Sampling = Sampling()

    @property
    def digest(self) -> str:
        """A hash of the model's name, which clients use as a key. In Ollama it is the
        manifest's.
        """
        return hashlib.sha256(self.root.encode("utf-8", "surrogateescape")).hexdigest()


class RunningModel(Struct, frozen=True):
    """A loaded model.

    expires_at: Unix seconds at which it is unloaded unless it is used before.
    """

    card: OllamaModelCard
    expires_at: float


class OllamaModelDetails(Struct, frozen=True):
    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaListedModel(Struct, frozen=True):
    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: OllamaModelDetails


class OllamaProcessModel(Struct, frozen=True):
    name: str
    model: str
    size: int
    digest: str
    details: OllamaModelDetails
    expires_at: str
    size_vram: int
    context_length: int


class OllamaShow(Struct, frozen=True, omit_defaults=True):
    """The response of /api/show. As in Ollama, unknown fields are omitted."""

    details: OllamaModelDetails
    model_info: dict[str, str | int]
    modified_at: str
    parameters: str = ""
    template: str = ""
    capabilities: tuple[str, ...] | None = None


def render_tags(cards: Sequence[OllamaModelCard]) -> bytes:
    """Serialize the response of /api/tags."""
    models = [
        OllamaListedModel(
            name := add_tag(card.name),
            name,
            format_time(card.created),
            card.size,
            card.digest,
            _build_details(card),
        )
        for card in cards
    ]
    return msgspec.json.encode({"models": models})


def render_running_models(models: Sequence[RunningModel]) -> bytes:
    """Serialize the response of /api/ps. The model that stays loaded longest comes
    first.
    """
    entries = [
        OllamaProcessModel(
            name := add_tag(model.card.name),
            name,
            model.card.size,
            model.card.digest,
            _build_details(model.card),
            format_time(model.expires_at),
            0,
            model.card.max_model_len or 0,
        )
        for model in sorted(models, key=lambda model: -model.expires_at)
    ]
    return msgspec.json.encode({"models": entries})


def render_show(card: OllamaModelCard) -> bytes:
    """Serialize the response of /api/show."""
    architecture = card.architecture or UNKNOWN_ARCHITECTURE
    # The keys are those of GGUF metadata: clients look up the context length under the
    # architecture's name.
    info: dict[str, str | int] = {
        "general.architecture": architecture,
        "general.basename": card.root,
    }
    if card.max_model_len is not None:
        info[f"{architecture}.context_length"] = card.max_model_len
    if card.parameters is not None:
        info["general.parameter_count"] = card.parameters
    if card.embedding_length is not None:
        info[f"{architecture}.embedding_length"] = card.embedding_length
    # The model's sampling defaults in the syntax of a Modelfile, if they differ from
    # the neutral values.
    parameters = [
        f"{name:<30} {value:g}"
        for name, core in OLLAMA_SAMPLING.core_names.items()
        if (value := getattr(card.sampling, core)) != getattr(Sampling(), core)
    ]
    show = OllamaShow(
        _build_details(card),
        info,
        format_time(card.created),
        "\n".join(parameters),
        card.template,
        card.capabilities,
    )
    return escape_line_breaks(msgspec.json.encode(show))


def add_tag(name: str) -> str:
    """Add a tag to the name unless it has one, as Ollama's clients expect in lists."""
    # A colon before the last slash belongs to the port of a registry, not to a tag.
    return name if ":" in name.rpartition("/")[2] else name + LATEST


def render_load_status(model: str, now: float, reason: str, *, is_chat: bool) -> bytes:
    """Serialize the response to a request without a prompt, which only loads or unloads
    a model.

    now: Unix seconds.
    reason: `load` or `unload`.
    """
    message = b'"message":{"role":"assistant","content":""}' if is_chat else b'"response":""'
    return b'{"model":%s,"created_at":"%s",%s,"done":true,"done_reason":"%s"}' % (
        encode_string(model),
        format_time(now).encode(),
        message,
        reason.encode(),
    )


def render_pull_progress(progress: PullProgress) -> bytes:
    return escape_line_breaks(msgspec.json.encode(progress)) + b"\n"


def list_served_progress(card: OllamaModelCard) -> tuple[PullProgress, ...]:
    """List the progress that Ollama reports for a model that needs no download."""
    digest = f"sha256:{card.digest}"
    size = card.size
    layer = (PullProgress(f"pulling {card.digest[:12]}", digest, size, size),) if size else ()
    statuses = ("verifying sha256 digest", "writing manifest", "success")
    return (PullProgress("pulling manifest"), *layer, *map(PullProgress, statuses))


def _build_details(card: OllamaModelCard) -> OllamaModelDetails:
    families = [card.architecture] if card.architecture else []
    size = ""
    count = card.parameters
    if count is not None:
        # Formatted as by Ollama: `8.2B`, `751.63M` or `22K`.
        units = (("B", 1_000_000_000, 1), ("M", 1_000_000, 2), ("K", 1000, 0), ("", 1, 0))
        unit, divisor, digits = next(row for row in units if count >= row[1] or not row[0])
        size = (
            f"{count // divisor}{unit}"
            if count % divisor == 0
            else f"{count / divisor:.{digits}f}{unit}"
        )
    return OllamaModelDetails("", card.format, card.architecture, families, size, card.quantization)
