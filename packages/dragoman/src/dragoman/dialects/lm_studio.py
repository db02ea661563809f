"""The lists of models of LM Studio's own API, in its two versions.

Editors ask them for the context length and the abilities of a model.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from .model_list import ModelCard

_LOADED = "loaded"


class StudioModel(Struct, frozen=True, omit_defaults=True):
    """A model of /api/v0/models.

    type: llm, vlm or embeddings.
    max_context_length: absent until the model has been loaded once.
    """

    id: str
    object: str
    type: str
    publisher: str
    state: str
    arch: str | None = None
    compatibility_type: str | None = None
    quantization: str | None = None
    max_context_length: int | None = None
    loaded_context_length: int | None = None
    capabilities: tuple[str, ...] = ()


class StudioModelList(Struct, frozen=True):
    object: str
    data: list[StudioModel]


class StudioQuantization(Struct, frozen=True):
    name: str


class StudioConfig(Struct, frozen=True):
    context_length: int | None


class StudioInstance(Struct, frozen=True):
    id: str
    config: StudioConfig


class StudioAbilities(Struct, frozen=True):
    vision: bool
    trained_for_tool_use: bool


class StudioModelV1(Struct, frozen=True):
    """A model of /api/v1/models. type: llm or embedding."""

    type: str
    publisher: str
    key: str
    display_name: str
    architecture: str | None
    quantization: StudioQuantization | None
    size_bytes: int | None
    params_string: str | None
    loaded_instances: tuple[StudioInstance, ...]
    max_context_length: int | None
    format: str | None
    capabilities: StudioAbilities | None


class StudioModelListV1(Struct, frozen=True):
    models: list[StudioModelV1]


def render_studio_models(cards: Sequence[ModelCard]) -> bytes:
    return msgspec.json.encode(StudioModelList("list", [_build_v0(card) for card in cards]))


def render_studio_model(card: ModelCard) -> bytes:
    return msgspec.json.encode(_build_v0(card))


def render_studio_models_v1(cards: Sequence[ModelCard]) -> bytes:
    return msgspec.json.encode(StudioModelListV1([_build_v1(card) for card in cards]))


def _build_v0(card: ModelCard) -> StudioModel:
    abilities = card.capabilities or ()
    is_loaded = card.state == _LOADED
    if "generation" in abilities or not abilities:
        kind = "vlm" if "images" in abilities else "llm"
    else:
        kind = "embeddings"
    return StudioModel(
        card.id,
        "model",
        kind,
        card.owned_by,
        "loaded" if is_loaded else "not-loaded",
        card.family,
        card.format,
        card.quantization,
        card.max_model_len,
        card.max_model_len if is_loaded else None,
        ("tool_use",) if "tools" in abilities else (),
    )


def _build_v1(card: ModelCard) -> StudioModelV1:
    abilities = card.capabilities or ()
    generates = "generation" in abilities or not abilities
    instances = (
        (StudioInstance(card.id, StudioConfig(card.max_model_len)),)
        if card.state == _LOADED
        else ()
    )
    return StudioModelV1(
        "llm" if generates else "embedding",
        card.owned_by,
        card.id,
        card.display_name or card.id,
        card.family,
        None if card.quantization is None else StudioQuantization(card.quantization),
        card.size,
        None if card.parameters is None else _format_parameters(card.parameters),
        instances,
        card.max_model_len,
        card.format,
        StudioAbilities("images" in abilities, "tools" in abilities) if generates else None,
    )


def _format_parameters(count: int) -> str:
    """Format a number of weights as in the names of models, such as 270M or 8B."""
    for size, unit in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return str(count)
