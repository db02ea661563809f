"""The model that the engine process hosts, loaded as in a server of one process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
from msgspec import Struct

from ..core.errors import EngineError
from ..core.matcher import Matcher
from ..engines.remote import EngineClient, EngineDescription, HostedEngine
from ..engines.remote.messages import AddRequest
from ..pipeline.engine_backends import TokenBackend
from ..pipeline.lora_adapters import Adapter, Adapters
from ..pipeline.model_lifecycle import LoadProgress
from ..pipeline.model_registry import Models
from ..pipeline.served_model import ModelDetails, ServedModel
from ..serving.clock import Clock
from ..settings import Settings
from .configured_models import DEFAULT_SLOTS, add_queues, build_planned, build_prepared
from .engine_registry import find_engine
from .front_end import FrontEnd
from .hub_models import download_prepared, prepare_model
from .model_check import check_plan
from .model_plan import ModelPlan


class HostedModel(Struct, frozen=True):
    """The engine process's description of its model.

    model, served_model_name: the settings of these names; for a model of a hub, its
        resolved path and name.
    engine, argument: what `model` means, see `ModelPlan`.
    """

    description: EngineDescription
    model: str
    engine: str
    argument: str
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


def load_hosted_model(
    plan: ModelPlan, settings: Settings, clock: Clock
) -> tuple[HostedEngine, HostedModel]:
    """Load a model for the engine process. Blocking. Raises ValueError, OSError,
    DragomanError.
    """
    check_plan(plan)
    if plan.reference is not None:
        prepared = prepare_model(settings, plan.reference, plan.engine or None)
        settings = prepared.settings
        plan = prepared.model_plan
        progress = LoadProgress()
        _check_shareable(plan)
        download_prepared(prepared, progress)
        model = build_prepared(prepared, progress, clock)
    else:
        _check_shareable(plan)
        model = build_planned(plan, settings, clock)
    hosted = host_model(model)
    return hosted, HostedModel(
        hosted.describe(),
        settings.model,
        plan.engine,
        plan.argument,
        settings.served_model_name,
        model.details,
    )


def _check_shareable(plan: ModelPlan) -> None:
    if plan.spec is None or plan.spec.is_shareable:
        return
    name = plan.engine
    if plan.spec.is_replicable and plan.local is not None:
        raise ValueError(
            f"the engine `{name}` is not shared by several front ends: as `{name}:NAME` each "
            f"worker has its own"
        )
    raise ValueError(f"the engine `{name}` cannot run in a process that several front ends share")


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
        # The owner's part of the salt: a client could vary its own with each request.
        owner, _, _ = request.cache_salt.partition("\n")
        grammar = await backend.compiler.recompile(request.grammar, owner)
        if request.closes_at_limit:
            return grammar.build_closing_matcher(backend.compiler.endings, request.max_tokens)
        return grammar.build_matcher()

    interfaces = model.interfaces
    capacity = interfaces.kv_capacity
    return HostedEngine(
        backend.engine,
        model.max_model_len,
        build_matcher,
        num_kv_tokens=None if capacity is None else capacity.num_kv_tokens,
        cache=interfaces.cache,
        control=interfaces.control,
        trainable=interfaces.trainable,
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
    plan = ModelPlan(hosted.model, hosted.engine, hosted.argument, find_engine(hosted.engine))
    if plan.local is None or plan.local.build_front_end is None or plan.own_name is None:
        raise ValueError(f"the engine `{plan.engine}` cannot be shared by several front ends")
    model = plan.local.build_front_end(
        settings,
        clock,
        plan.path,
        plan.own_name,
        FrontEnd(client, description, cache, adapters),
    )
    # Each front end sends at most its share of the engine's concurrency; it queues
    # further requests, fairly by key.
    slots = -(-(settings.max_num_seqs or DEFAULT_SLOTS) // count)
    return add_queues(
        replace(model, details=hosted.details),
        msgspec.structs.replace(settings, max_num_seqs=slots),
        plan.spec,
    )
