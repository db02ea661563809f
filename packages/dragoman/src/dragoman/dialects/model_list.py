"""The list of models, in one format that the SDKs of OpenAI and Anthropic and clients
of vLLM accept.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from .interfaces import Profile


class ModelCard(Struct, frozen=True):
    """A model in the list.

    id: may contain slashes.
    created: Unix seconds.
    root: the model behind an alias or an adapter.
    max_model_len: maximum tokens of prompt and answer together; None if unknown.
    state: state of the model, such as `loaded` or `unloaded`; None omits this server's
        own fields.
    aliases: its other names.
    capabilities: features that clients may use; None if not known yet.
    engine, family, format, quantization, revision: as in `ModelDetails`; None if
        unknown.
    size: size of the weights in bytes.
    parameters: number of weights.
    trained_length: the longest context that the model was trained for, in tokens.
    vocab_size: number of tokens in the vocabulary.
    max_alternatives: alternatives of each token that the engine can report; None means
        all.
    progress: downloaded bytes and total bytes; None if nothing is being downloaded.
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
    engine: str | None = None
    family: str | None = None
    format: str | None = None
    quantization: str | None = None
    revision: str | None = None
    size: int | None = None
    parameters: int | None = None
    trained_length: int | None = None
    vocab_size: int | None = None
    max_alternatives: int | None = None
    progress: tuple[int, int] | None = None


class DownloadProgress(Struct, frozen=True):
    """The progress of a download, in bytes."""

    completed: int
    total: int


class ModelDetailsObject(Struct, frozen=True, omit_defaults=True):
    """The object with this server's own fields."""

    state: str
    aliases: tuple[str, ...]
    capabilities: tuple[str, ...] | None
    engine: str | None = None
    quantization: str | None = None
    size: int | None = None
    parameters: int | None = None
    revision: str | None = None
    progress: DownloadProgress | None = None
    max_alternatives: int | None = None


class ModelMeta(Struct, frozen=True, omit_defaults=True):
    """llama.cpp's `meta`, with its field names."""

    n_ctx: int | None = None
    n_ctx_train: int | None = None
    n_vocab: int | None = None
    n_params: int | None = None
    size: int | None = None


class ModelArchitecture(Struct, frozen=True):
    """OpenRouter's and llama.cpp's `architecture`."""

    input_modalities: tuple[str, ...]
    output_modalities: tuple[str, ...]


class ModelPermission(Struct, frozen=True):
    """A field of old versions of OpenAI's API, which some clients need and vLLM still
    sends.
    """

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


class ModelObject(Struct, frozen=True, omit_defaults=True):
    """One model with OpenAI's fields, then Anthropic's, then vLLM's.

    The context length has a name in each family of clients: `context_length` is
    OpenRouter's and LM Studio's, `context_window` is Groq's and Codex's, `meta.n_ctx`
    is llama.cpp's.
    """

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
    context_length: int | None = None
    context_window: int | None = None
    max_output_tokens: int | None = None
    architecture: ModelArchitecture | None = None
    meta: ModelMeta | None = None
    root: str | msgspec.UnsetType | None = msgspec.UNSET
    parent: str | msgspec.UnsetType | None = msgspec.UNSET
    permission: tuple[ModelPermission, ...] | msgspec.UnsetType = msgspec.UNSET
    dragoman: ModelDetailsObject | msgspec.UnsetType = msgspec.UNSET


class ModelObjectList(Struct, frozen=True):
    object: str
    data: list[ModelObject]
    has_more: bool
    first_id: str | None
    last_id: str | None


def render_model_list(cards: Sequence[ModelCard], profile: Profile) -> bytes:
    """Serialize the response to GET /v1/models."""
    models = [_build_model(card, profile) for card in cards]
    first, last = (models[0].id, models[-1].id) if models else (None, None)
    return msgspec.json.encode(ModelObjectList("list", models, False, first, last))


def render_model(card: ModelCard, profile: Profile) -> bytes:
    """Serialize the response to GET /v1/models/{id}."""
    return msgspec.json.encode(_build_model(card, profile))


def _build_model(card: ModelCard, profile: Profile) -> ModelObject:
    architecture = None
    capabilities = card.capabilities
    if capabilities is not None:
        inputs = ("text", "image") if "images" in capabilities else ("text",)
        outputs = (("generation", "text"), ("embeddings", "embeddings"), ("scoring", "scores"))
        architecture = ModelArchitecture(
            inputs, tuple([kind for name, kind in outputs if name in capabilities])
        )
    model = ModelObject(
        id=card.id,
        object="model",
        created=card.created,
        owned_by=card.owned_by,
        type="model",
        display_name=card.display_name or card.id,
        created_at=datetime.fromtimestamp(card.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        lifecycle="active",
        # The context length has the names of several APIs and servers, since each
        # client looks for one of them.
        max_input_tokens=card.max_model_len,
        max_tokens=card.max_model_len,
        max_model_len=card.max_model_len,
        context_length=card.max_model_len,
        context_window=card.max_model_len,
        max_output_tokens=card.max_model_len if "generation" in (card.capabilities or ()) else None,
        architecture=architecture,
        meta=None
        if card.max_model_len is None
        else ModelMeta(
            card.max_model_len, card.trained_length, card.vocab_size, card.parameters, card.size
        ),
        dragoman=msgspec.UNSET
        if card.state is None
        else ModelDetailsObject(
            card.state,
            card.aliases,
            card.capabilities,
            card.engine,
            card.quantization,
            card.size,
            card.parameters,
            card.revision,
            None if card.progress is None else DownloadProgress(*card.progress),
            card.max_alternatives,
        ),
    )
    if profile is Profile.OPENAI:
        return model
    permission = ModelPermission(f"modelperm-{card.id}", card.created)
    return msgspec.structs.replace(
        model, root=card.root or card.id, parent=card.parent, permission=(permission,)
    )
