"""The model that the engine process hosts, loaded as in a server of one process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
from msgspec import Struct

from ..core.errors import EngineError
from ..core.matcher import Matcher
from ..core.weight_updates import SucceedingTrainable
from ..engines.remote import EngineClient, EngineDescription, HostedEngine
from ..engines.remote.messages import AddRequest
from ..pipeline.engine_backends import TokenBackend
from ..pipeline.lora_adapters import Adapter, Adapters
from ..pipeline.model_lifecycle import LoadProgress
from ..pipeline.model_registry import Models
from ..pipeline.served_model import ModelDetails, ServedModel
from ..serving.clock import Clock
from ..settings import Settings
from .configured_models import DEFAULT_SLOTS, add_queues, build
from .hub_models import build_prepared, download_prepared, prepare_model
from .hub_reference import find_reference
from .loaded_model_log import HasKvCapacity
from .model_builder import build_token_model
from .model_name import parse_model

HOSTED = ("tiny", "transformers", "mlx", "llamacpp")
"""Engines that can have a process of their own."""


class HostedModel(Struct, frozen=True):
    """The engine process's description of its model.

    model, served_model_name: the settings of these names; for a model of a hub, its
        resolved path and name.
    """

    description: EngineDescription
    model: str
    served_model_name: tuple[str, ...]
    details: ModelDetails


@dataclass(frozen=True, slots=True)
class _ModelAdapters:
    """The adapters of a served model for the engine process. Implements
    `HostedAdapters`.
    """

    adapters: Adapters

    def list_entries(self) -> Sequence[tuple[str, str]]:
        return [(adapter.name, adapter.path) for adapter in self.adapters]

    async def load(self, name: str, path: str) -> None:
        await self.adapters.load(Adapter(name, path), replace=True)

    async def unload(self, name: str) -> None:
        if name in self.adapters:
            await self.adapters.unload(name)


def load_hosted_model(settings: Settings, clock: Clock) -> tuple[HostedEngine, HostedModel]:
    """Load a model for the engine process. Blocking. Raises ValueError, OSError,
    DragomanError.
    """
    if (parsed := find_reference(settings.model, settings.revision)) is not None:
        prepared = prepare_model(settings, *parsed)
        progress = LoadProgress()
        _check_kind(prepared.settings.model)
        download_prepared(prepared, progress)
        settings = prepared.settings
        model = build_prepared(prepared, progress, lambda resolved: build(resolved, clock))
    else:
        _check_kind(settings.model)
        model = build(settings, clock)
    hosted = host_model(model)
    return hosted, HostedModel(
        hosted.describe(), settings.model, settings.served_model_name, model.details
    )


def _check_kind(model: str) -> None:
    kind, _ = parse_model(model)
    if kind == "encoder":
        raise ValueError(
            "an encoder is not shared by several front ends: as `encoder:NAME` each worker has "
            "its own"
        )
    if kind not in HOSTED:
        raise ValueError(
            f"the engine `{kind}` cannot run in a process that several front ends share"
        )


def host_model(model: ServedModel) -> HostedEngine:
    """Return the engine of a model, with its controls, for the engine process.

    Raises: ValueError for a model that generates no tokens.
    """
    backend = model.backend
    if not isinstance(backend, TokenBackend):
        raise ValueError(
            "a model that only embeds or scores cannot be shared by several front ends; serve it "
            "with one process"
        )

    async def build_matcher(request: AddRequest) -> Matcher:
        if request.grammar is None:
            raise EngineError("The request has a constraint without a grammar.")
        grammar = await backend.compiler.recompile(request.grammar)
        if request.closes_at_limit:
            return grammar.build_closing_matcher(backend.compiler.endings, request.max_tokens)
        return grammar.build_matcher()

    engine = backend.engine
    return HostedEngine(
        engine,
        model.max_model_len,
        build_matcher,
        num_kv_tokens=engine.num_kv_tokens if isinstance(engine, HasKvCapacity) else None,
        cache=backend.cache,
        control=model.control,
        trainable=model.trainable if isinstance(model.trainable, SucceedingTrainable) else None,
        embedder=backend.embedder,
        adapters=None if model.adapters is None else _ModelAdapters(model.adapters),
    )


def build_front_end_models(
    settings: Settings, clock: Clock, hosted: HostedModel, path: str, count: int
) -> Models:
    """Build the models of a front end.

    path: path of the engine's socket.
    count: number of front ends.

    Raises: OSError, ValueError, DragomanError.
    """
    return Models(
        [
            build_front_end_model(
                settings, clock, hosted, EngineClient(path, hosted.description), count
            )
        ]
    )


def build_front_end_model(
    settings: Settings, clock: Clock, hosted: HostedModel, client: EngineClient, count: int = 1
) -> ServedModel:
    """Build the model of one of `count` front ends."""
    settings = msgspec.structs.replace(
        settings, model=hosted.model, served_model_name=hosted.served_model_name
    )
    description = hosted.description
    adapters = None
    if description.has_adapters:
        adapters = own_adapters = Adapters((), client)
        client.on_adapters = lambda entries: own_adapters.replace_all(
            Adapter(*entry) for entry in entries
        )
    cache = client if description.has_cache else None
    kind, rest = parse_model(settings.model)
    if kind == "llamacpp":
        from .llamacpp import build_gguf_model, load_gguf_parts  # noqa: PLC0415 - numpy takes long to import

        parts = load_gguf_parts(settings, rest)
        model = build_gguf_model(
            settings, clock, parts, client, max_model_len=client.max_model_len, cache=cache
        )
    else:
        directory = Path(rest)
        if kind == "tiny" and not rest:
            from ..engines.tiny import find_bundled_model  # noqa: PLC0415 - numpy takes long to import

            directory = find_bundled_model()
        model = build_token_model(
            settings,
            clock,
            directory,
            client,
            own_name="tiny" if not rest else directory.resolve().name,
            max_model_len=client.max_model_len,
            embedder=client.embedder,
            cache=cache,
            control=client.control if description.has_control else None,
            trainable=client.control if description.is_trainable else None,
            adapters=adapters,
        )
    # Each front end sends at most its share of the engine's concurrency; it queues
    # further requests, fairly by key.
    slots = -(-(settings.max_num_seqs or DEFAULT_SLOTS) // count)
    return add_queues(
        replace(model, details=hosted.details),
        msgspec.structs.replace(settings, max_num_seqs=slots),
    )
