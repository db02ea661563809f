"""Renders a model for /v1/models. Knows no engine."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from ..base import Profile


class ModelCard(Struct, frozen=True):
    """A model in the list.

    id: may contain slashes.
    created: Unix seconds.
    root: the model behind an alias or an adapter.
    max_model_len: tokens of prompt and answer together; None if unknown.
    state: loaded, unloaded, ...
    aliases: its other names.
    capabilities: features that clients may use; None if not known yet.
    """

    id: str
    created: int
    owned_by: str = "dragoman"
    root: str | None = None
    parent: str | None = None
    max_model_len: int | None = None
    display_name: str | None = None
    state: str | None = None
    aliases: tuple[str, ...] = ()
    capabilities: tuple[str, ...] | None = None


class _DragomanFields(Struct, frozen=True):
    """This server's own fields, in an object of their own so that the top level has only one non-standard field."""

    state: str
    aliases: tuple[str, ...]
    capabilities: tuple[str, ...] | None


class _Permission(Struct, frozen=True):
    """A field of old versions of OpenAI's API, which some clients need and vLLM still sends."""

    id: str
    created: int
    object: str = "model_permission"
    allow_create_engine: bool = False
    allow_sampling: bool = True
    allow_logprobs: bool = True
    allow_search_indices: bool = False
    allow_view: bool = True
    allow_fine_tuning: bool = False
    organization: str = "*"
    group: str | None = None
    is_blocking: bool = False


class _Model(Struct, frozen=True, omit_defaults=True):
    """One model with OpenAI's fields, then Anthropic's, then vLLM's."""

    id: str
    object: str
    created: int
    owned_by: str
    type: str
    display_name: str
    created_at: str
    lifecycle: str
    max_input_tokens: int | None
    max_tokens: int | None
    max_model_len: int | None
    root: str | msgspec.UnsetType | None = msgspec.UNSET
    parent: str | msgspec.UnsetType | None = msgspec.UNSET
    permission: tuple[_Permission, ...] | msgspec.UnsetType = msgspec.UNSET
    dragoman: _DragomanFields | msgspec.UnsetType = msgspec.UNSET


class _ModelList(Struct, frozen=True):
    object: str
    data: list[_Model]
    has_more: bool
    first_id: str | None
    last_id: str | None


def render_model_list(cards: Sequence[ModelCard], profile: Profile) -> bytes:
    """The response to GET /v1/models."""
    models = [_build_model(card, profile) for card in cards]
    first, last = (models[0].id, models[-1].id) if models else (None, None)
    return msgspec.json.encode(_ModelList("list", models, False, first, last))


def render_model(card: ModelCard, profile: Profile) -> bytes:
    """The response to GET /v1/models/{id}."""
    return msgspec.json.encode(_build_model(card, profile))


def _build_model(card: ModelCard, profile: Profile) -> _Model:
    model = _Model(
        id=card.id,
        object="model",
        created=card.created,
        owned_by=card.owned_by,
        type="model",
        display_name=card.display_name or card.id,
        created_at=datetime.fromtimestamp(card.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        lifecycle="active",
        max_input_tokens=card.max_model_len,
        max_tokens=card.max_model_len,
        max_model_len=card.max_model_len,
        dragoman=msgspec.UNSET if card.state is None else _DragomanFields(card.state, card.aliases, card.capabilities),
    )
    if profile is Profile.OPENAI:
        return model
    permission = _Permission(f"modelperm-{card.id}", card.created)
    return msgspec.structs.replace(model, root=card.root or card.id, parent=card.parent, permission=(permission,))
