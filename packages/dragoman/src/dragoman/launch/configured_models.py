"""Builds the configured models: now, in the background, or on demand."""

from __future__ import annotations

import gc
import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace

import msgspec

from ..core.errors import DragomanError
from ..hub import LastUse, record_use
from ..pipeline.engine_backends import TokenBackend
from ..pipeline.lora_adapters import read_adapter
from ..pipeline.model_lifecycle import LoadProgress, ModelSlot, ModelSpec
from ..pipeline.model_registry import Models
from ..pipeline.request_queue import RequestQueue
from ..pipeline.served_model import RequestQueues, ServedModel
from ..serving.clock import Clock
from ..settings import (
    ModelEntry,
    Settings,
    SettingsError,
    find_changed_settings,
    state_directory,
)
from .engine_spec import EngineSpec
from .hub_models import PreparedModel, download_prepared, prepare_model, resolve_paths
from .loaded_model_log import describe_loaded
from .memory_estimate import measure_memory
from .model_check import check_local_model, check_plan
from .model_metadata import load_configured_template, resolve_served_names
from .model_plan import ModelPlan, build_unknown_message, plan_model
from .unsupported_settings import warn_unsupported_names

log = logging.getLogger(__name__)


DEFAULT_SLOTS = 256
"""Number of sequences that an engine is assumed to run at once if `max_num_seqs` is not
set.
"""
DEFAULT_STEP_TOKENS = 8192
"""Tokens of a step that an engine is assumed to compute if nothing says it; vLLM's
default for a server.
"""
WINDOW_STEPS = 4
"""Steps that compute the prompts of API keys which may wait in the engine's own queue.
Another key's request waits for them; with fewer, the engine could run out of prompts.
"""
OWNER_ENCODING_TOKENS = 16_384
"""Tokens of one API key's texts that an encoder works on at a time. It takes an input of
each request in turn, so another key's short request waits for a batch, and a long one
shares the encoder with these. Four of its batches, so that it is never idle.
"""


def build_models(settings: Settings, clock: Clock, *, in_background: bool = False) -> Models:
    """Build all configured models.

    in_background: a model in local files is only checked here, and loaded when `Models`
        starts, like a hub's model.

    Raises:
        SettingsError: MODEL or one of its options is invalid.
    """
    if not settings.models.entries:
        plan = _plan_or_raise(settings)
        prepared = _prepare_or_raise(plan, settings)
        if prepared is None:
            return Models([_build_pinned(plan, settings, clock, in_background=in_background)])
        return Models([_build_hub_spec(ModelEntry(prepared.name, pinned=True), prepared, clock)])
    models = [
        _build_entry(entry, settings, clock, in_background=in_background)
        for entry in settings.models.entries
    ]
    return Models(models, memory=settings.model_memory_limit)


def build_models_in_background(settings: Settings, clock: Clock) -> Models:
    """Build all configured models for a server that listens while they are loaded.
    Raises as `build_models`.
    """
    return build_models(settings, clock, in_background=True)


def build_changed_models(
    models: Models, old: Settings, new: Settings, clock: Clock
) -> list[ModelSlot | ModelSpec] | None:
    """Return the models of new settings: slots of unchanged entries, and specs of all
    others; None without changes.

    Blocking: it may send requests to a hub.

    Raises: SettingsError.
    """
    if new.models == old.models:
        return None
    if not old.models.entries or not new.models.entries:
        raise SettingsError("models: changing between one model and several requires a restart")
    former = {entry.name: entry for entry in old.models.entries}
    slots = {slot.name: slot for slot in models.slots}
    served: list[ModelSlot | ModelSpec] = []
    for entry in new.models.entries:
        slot = slots.get(entry.name)
        # The slot keeps its engine: a reload of the settings must not interrupt running
        # requests.
        if slot is not None and former.get(entry.name) == entry:
            served.append(slot)
        else:
            # Loaded in the background, even if it is pinned: the server keeps serving
            # other requests meanwhile.
            spec = _build_entry(
                msgspec.structs.replace(entry, pinned=False), new, clock, in_background=False
            )
            assert isinstance(spec, ModelSpec)
            is_eager = entry.pinned
            served.append(
                msgspec.structs.replace(spec, is_eager=is_eager, ttl=None if is_eager else spec.ttl)
            )
    return served


def _build_entry(
    entry: ModelEntry, settings: Settings, clock: Clock, *, in_background: bool
) -> ServedModel | ModelSpec:
    """Build a pinned model; only check other models, which are loaded on demand."""
    entry_settings = settings.for_entry(entry)
    place = f"models: {entry.name}: "
    plan = _plan_or_raise(entry_settings, place)
    prepared = _prepare_or_raise(plan, entry_settings, place)
    if entry.pinned and prepared is None:
        return _build_pinned(plan, entry_settings, clock, in_background=in_background)
    if entry.memory is not None:
        memory = entry.memory
    else:
        memory = (
            measure_memory(plan, entry_settings) if prepared is None else prepared.plan.weights_size
        )
    if settings.model_memory_limit is not None and memory > settings.model_memory_limit:
        raise SettingsError(
            f"models: {entry.name}: needs {memory} bytes for weights and KV cache, more than "
            f"--model-memory-limit"
        )
    if prepared is not None:
        return _build_hub_spec(entry, prepared, clock, memory)
    return ModelSpec(
        entry.name,
        lambda: build_planned(plan, entry_settings, clock),
        int(clock.now()),
        entry.aliases,
        entry.ttl,
        memory,
    )


def _plan_or_raise(settings: Settings, place: str = "") -> ModelPlan:
    """Parse MODEL, and check it without loading an engine.

    place: prefix of error messages.

    Raises: SettingsError.
    """
    try:
        plan = plan_model(settings.model, settings.revision)
        check_plan(plan)
        if plan.reference is None and settings.revision is not None:
            raise ValueError("--revision is for models of a hub")
    except (OSError, ValueError, DragomanError) as error:
        raise SettingsError(
            f"{place}cannot serve {settings.model}: {format_error(error)}"
        ) from error
    return plan


def _prepare_or_raise(plan: ModelPlan, settings: Settings, place: str = "") -> PreparedModel | None:
    """Choose the files and the engine of a model of a hub; None for any other model.

    place: prefix of error messages.

    Raises: SettingsError.
    """
    if plan.reference is None:
        return None
    try:
        prepared = prepare_model(settings, plan.reference, plan.engine or None)
    except (OSError, ValueError, DragomanError) as error:
        raise SettingsError(
            f"{place}cannot serve {settings.model}: {format_error(error)}"
        ) from error
    warn_unsupported_names(settings, find_changed_settings(settings), prepared.choice.engine)
    return prepared


def _build_hub_spec(
    entry: ModelEntry, prepared: PreparedModel, clock: Clock, memory: int = 0
) -> ModelSpec:
    """Build the spec of a model of a hub. A pinned one is downloaded and loaded in the
    background from the start.
    """
    progress = LoadProgress(phase="downloading" if prepared.plan.find_missing() else "loading")
    names = prepared.settings.served_model_name

    def load() -> ServedModel:
        return build_prepared(prepared, progress, clock)

    return ModelSpec(
        names[0],
        (lambda: _build_for_good(load)) if entry.pinned else load,
        int(clock.now()),
        names[1:],
        None if entry.pinned else entry.ttl,
        0 if entry.pinned else memory,
        lambda: download_prepared(prepared, progress),
        progress,
        is_eager=entry.pinned,
        revision=prepared.plan.commit,
        adapters=tuple(read_adapter(text).name for text in prepared.settings.lora_modules),
    )


def _build_pinned(
    plan: ModelPlan, settings: Settings, clock: Clock, *, in_background: bool
) -> ServedModel | ModelSpec:
    """Build a model that stays loaded; or only check it, if it is in local files and
    loaded in the background.

    Raises: SettingsError.
    """
    try:
        check_local_model(plan, settings)
        name = plan.own_name if in_background and plan.argument else None
        if name is None:
            return _build_checked(plan, settings, clock)
        # Loaded early only to report a wrong path at once: the build needs the template
        # last.
        load_configured_template(settings)
        names = resolve_served_names(settings, name)
    except (OSError, ValueError, DragomanError) as error:
        raise SettingsError(f"cannot serve {settings.model}: {format_error(error)}") from error
    named = msgspec.structs.replace(settings, served_model_name=(names[0], *names[1]))
    adapters = tuple(read_adapter(text).name for text in settings.lora_modules)
    return ModelSpec(
        names[0],
        lambda: _build_for_good(lambda: _build_checked(plan, named, clock)),
        int(clock.now()),
        names[1],
        is_eager=True,
        adapters=adapters,
    )


def _build_for_good(build_model: Callable[[], ServedModel]) -> ServedModel:
    """Build a model that is never unloaded, and exclude its objects and its libraries'
    from garbage collection.
    """
    model = build_model()
    gc.freeze()
    return model


def format_error(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def build_planned(plan: ModelPlan, settings: Settings, clock: Clock) -> ServedModel:
    """Build the model of a plan. Blocking.

    Raises:
        ValueError: MODEL or an option is invalid.
        OSError, DragomanError: the engine cannot be loaded.
    """
    if plan.reference is not None:
        prepared = prepare_model(settings, plan.reference, plan.engine or None)
        progress = LoadProgress()
        download_prepared(prepared, progress)
        return build_prepared(prepared, progress, clock)
    check_local_model(plan, settings)
    return _build_checked(plan, settings, clock)


def build_prepared(prepared: PreparedModel, progress: LoadProgress, clock: Clock) -> ServedModel:
    """Build a downloaded model, and record its use. Blocking."""
    choice = prepared.choice
    commit = prepared.plan.commit
    progress.phase = "loading"
    log.info(
        "%s: loading commit %s with the engine %s: %s",
        prepared.name,
        commit,
        choice.engine,
        choice.reason,
    )
    model = build_planned(prepared.model_plan, prepared.settings, clock)
    details = replace(model.details, reason=choice.reason, revision=commit, source=prepared.name)
    model = replace(model, details=details)
    use = LastUse(time.time(), choice.engine, model.max_model_len)
    record_use(state_directory(os.environ), prepared.name, use)
    return model


def _build_checked(plan: ModelPlan, settings: Settings, clock: Clock) -> ServedModel:
    if plan.spec is None:
        raise ValueError(build_unknown_message(plan))
    settings = resolve_paths(settings)
    model = plan.spec.build(settings, clock, plan.argument)
    if settings.lora_modules and model.adapters is None:
        raise ValueError("--lora-modules: this engine does not support adapters")
    if plan.local is not None:
        details = plan.local.format.read_details(plan.path)
        details = replace(details, engine=plan.engine, reason=plan.reason)
        model = replace(model, details=details)
    for line in describe_loaded(settings, model):
        log.info("%s: %s", model.name, line)
    return add_queues(model, settings, plan.spec)


def add_queues(
    model: ServedModel, settings: Settings, spec: EngineSpec | None = None
) -> ServedModel:
    """Return the model with the request queues that the settings describe.

    spec: the engine's; None if it has no spec.
    """
    max_requests = settings.max_queued_requests
    max_tokens = settings.max_queued_tokens
    has_own_queue = isinstance(model.backend, TokenBackend)
    slots = settings.max_num_seqs or (DEFAULT_SLOTS if has_own_queue else None)
    queue = RequestQueue(
        max_requests,
        max_tokens,
        slots=slots,
        limits_concurrency=not has_own_queue,
        window_tokens=WINDOW_STEPS * _find_step_tokens(settings, spec) if has_own_queue else None,
    )
    encoding = RequestQueue(max_requests, max_tokens, owner_tokens=OWNER_ENCODING_TOKENS)
    queues = RequestQueues(queue, encoding)
    return replace(model, queues=queues)


def _find_step_tokens(settings: Settings, spec: EngineSpec | None) -> int:
    """Return the maximum tokens of a step of the engine, as far as they are known."""
    if spec is None:
        return DEFAULT_STEP_TOKENS
    is_supported = spec.supports is None or "max_num_batched_tokens" in spec.supports
    if is_supported and settings.max_num_batched_tokens is not None:
        return settings.max_num_batched_tokens
    default = None if spec.local is None else spec.local.step_tokens
    return default or DEFAULT_STEP_TOKENS
