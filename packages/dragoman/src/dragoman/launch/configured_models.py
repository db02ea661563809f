"""Builds the configured models: now, in the background, or on demand."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec

from ..core.errors import DragomanError
from ..pipeline.engine_backends import TokenBackend
from ..pipeline.lora_adapters import read_adapter
from ..pipeline.model_lifecycle import LoadProgress, ModelSlot, ModelSpec
from ..pipeline.model_registry import Models
from ..pipeline.request_queue import RequestQueue
from ..pipeline.served_model import ServedModel
from ..serving.clock import Clock
from ..settings import (
    ModelEntry,
    Settings,
    SettingsError,
    find_changed_settings,
)
from .engine_choice import choose_directory_engine
from .hub_models import (
    PreparedModel,
    build_prepared,
    download_prepared,
    prepare_model,
    resolve_paths,
)
from .hub_reference import find_reference
from .in_process_engines import (
    build_encoder,
    build_mlx,
    build_scripted,
    build_tiny,
    build_transformers,
)
from .loaded_model_log import describe_loaded
from .local_models import check_local_model, find_model_name
from .memory_estimate import measure_memory
from .model_details import read_details
from .model_metadata import load_configured_template, resolve_served_names
from .model_name import ENGINES_WITH_DIRECTORY, build_unknown_message, check_model, parse_model
from .unsupported_settings import warn_unsupported_names

log = logging.getLogger(__name__)


DEFAULT_SLOTS = 256
"""Number of sequences that an engine is assumed to run at once if `max_num_seqs` is not
set.
"""


def build_models(settings: Settings, clock: Clock, *, in_background: bool = False) -> Models:
    """Build all configured models.

    in_background: a model in local files is only checked here, and loaded when `Models`
        starts, like a hub's model.

    Raises:
        SettingsError: MODEL or one of its options is invalid.
    """
    if not settings.models.entries:
        prepared = _prepare_or_raise(settings)
        if prepared is None:
            return Models([_build_pinned(settings, clock, in_background=in_background)])
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
            served.append(replace(spec, is_eager=is_eager, ttl=None if is_eager else spec.ttl))
    return served


def _build_entry(
    entry: ModelEntry, settings: Settings, clock: Clock, *, in_background: bool
) -> ServedModel | ModelSpec:
    """Build a pinned model; only check other models, which are loaded on demand."""
    entry_settings = settings.for_entry(entry)
    try:
        check_model(entry_settings.model)
    except (OSError, ValueError, DragomanError) as error:
        raise SettingsError(
            f"models: {entry.name}: cannot serve {entry_settings.model}: {format_error(error)}"
        ) from error
    prepared = _prepare_or_raise(entry_settings, f"models: {entry.name}: ")
    if entry.pinned and prepared is None:
        return _build_pinned(entry_settings, clock, in_background=in_background)
    if entry.memory is not None:
        memory = entry.memory
    else:
        memory = measure_memory(entry_settings) if prepared is None else prepared.plan.weights_size
    if settings.model_memory_limit is not None and memory > settings.model_memory_limit:
        raise SettingsError(
            f"models: {entry.name}: needs {memory} bytes for weights and KV cache, more than "
            f"--model-memory-limit"
        )
    if prepared is not None:
        return _build_hub_spec(entry, prepared, clock, memory)
    return ModelSpec(
        entry.name,
        lambda: build(entry_settings, clock),
        int(clock.now()),
        entry.aliases,
        entry.ttl,
        memory,
    )


def _prepare_or_raise(settings: Settings, place: str = "") -> PreparedModel | None:
    """Choose the files and the engine of a model of a hub; None for any other model.

    place: prefix of error messages.

    Raises: SettingsError.
    """
    try:
        parsed = find_reference(settings.model, settings.revision)
        if parsed is None:
            if settings.revision is not None:
                raise ValueError("--revision is for models of a hub")
            return None
        prepared = prepare_model(settings, *parsed)
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
        return build_prepared(prepared, progress, lambda settings: build(settings, clock))

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
    settings: Settings, clock: Clock, *, in_background: bool
) -> ServedModel | ModelSpec:
    """Build a model that stays loaded; or only check it, if it is in local files and
    loaded in the background.

    Raises: SettingsError.
    """
    try:
        check(settings)
        name = find_model_name(*parse_model(settings.model)) if in_background else None
        if name is None:
            return _build_checked(settings, clock)
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
        lambda: _build_for_good(lambda: _build_checked(named, clock)),
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


def build(settings: Settings, clock: Clock) -> ServedModel:
    """Build the model. Blocking.

    Raises:
        ValueError: MODEL or an option is invalid.
        OSError, DragomanError: the engine cannot be loaded.
    """
    if (parsed := find_reference(settings.model, settings.revision)) is not None:
        prepared = prepare_model(settings, *parsed)
        progress = LoadProgress()
        download_prepared(prepared, progress)
        return build_prepared(prepared, progress, lambda resolved: build(resolved, clock))
    check(settings)
    return _build_checked(settings, clock)


def check(settings: Settings) -> None:
    """Check MODEL, and a model in local files as far as possible without its weights.

    Raises:
        ValueError, OSError, DragomanError: see `build`.
    """
    check_model(settings.model)
    kind, path = parse_model(settings.model)
    if find_reference(settings.model) is None and find_model_name(kind, path) is not None:
        is_fallback = path == settings.model
        check_local_model(
            kind, path, is_fallback=is_fallback, trust_remote_code=settings.trust_remote_code
        )


def _build_checked(settings: Settings, clock: Clock) -> ServedModel:
    settings = resolve_paths(settings)
    model = _build_by_kind(settings, clock)
    if model is None:
        raise ValueError(build_unknown_message(*parse_model(settings.model)))
    if settings.lora_modules and model.adapters is None:
        raise ValueError("--lora-modules: this engine does not support adapters")
    kind, rest = parse_model(settings.model)
    if kind in (*ENGINES_WITH_DIRECTORY, "llamacpp"):
        if settings.model == "tiny":
            from ..engines.tiny import find_bundled_model  # noqa: PLC0415 - as below

            path = find_bundled_model()
            reason = "it is the embedded model"
        elif rest == settings.model and Path(rest).is_dir():
            path = Path(rest)
            reason = choose_directory_engine(Path(rest)).reason
        else:
            path = Path(rest)
            reason = "it is a GGUF file" if rest == settings.model else "MODEL names it"
        model = replace(model, details=replace(read_details(path), engine=kind, reason=reason))
    for line in describe_loaded(settings, model):
        log.info("%s: %s", model.name, line)
    return add_queues(model, settings)


def add_queues(model: ServedModel, settings: Settings) -> ServedModel:
    """Return the model with the request queues that the settings describe."""
    max_requests = settings.max_queued_requests
    max_tokens = settings.max_queued_tokens
    has_own_queue = isinstance(model.backend, TokenBackend)
    slots = settings.max_num_seqs or (DEFAULT_SLOTS if has_own_queue else None)
    queue = RequestQueue(
        max_requests, max_tokens, slots=slots, limits_concurrency=not has_own_queue
    )
    return replace(model, queue=queue, encoding_queue=RequestQueue(max_requests, max_tokens))


def _build_by_kind(settings: Settings, clock: Clock) -> ServedModel | None:  # noqa: PLR0911 - a table
    """Build the model by kind; None if there is no such engine.

    Engines are imported here, since some take seconds to import.
    """
    kind, rest = parse_model(settings.model)
    match kind:
        case "scripted":
            return build_scripted(settings, clock, rest)
        case "upstream":
            from .upstream import build_upstream  # noqa: PLC0415 - see above

            return build_upstream(settings, clock, rest)
        case "tiny" if rest or settings.model == "tiny":
            return build_tiny(settings, clock, rest)
        case "transformers" if rest:
            return build_transformers(settings, clock, rest)
        case "mlx" if rest:
            return build_mlx(settings, clock, rest)
        case "encoder" if rest:
            return build_encoder(settings, clock, Path(rest))
        case "llamacpp" if rest:
            from .llamacpp import build_llamacpp  # noqa: PLC0415 - see above

            return build_llamacpp(settings, clock, rest)
        case "vllm" if rest:
            from .vllm import build_vllm  # noqa: PLC0415 - see above

            return build_vllm(settings, clock, rest)
        case "python" if rest:
            from .plugin import build_python  # noqa: PLC0415 - see above

            return build_python(settings, clock, rest)
        case _:
            from .plugin import build_installed  # noqa: PLC0415 - see above

            return build_installed(settings, clock, kind, rest)
