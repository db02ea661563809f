"""The server as an ASGI application in the process of another program."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from typing import Any

import msgspec

from ..core.errors import DragomanError
from ..pipeline.model_registry import Models
from ..pipeline.served_model import ServedModel
from ..serving.app import Application
from ..serving.clock import Clock, SystemClock
from ..settings import Settings, SettingsError, load_keywords
from .configured_models import add_queues, build_models, build_models_in_background
from .limits_store import build_limits_store
from .plugin import SupportedEngine, build_served_model
from .reload import load_tenants
from .secret_key import load_secret_key
from .server_assembly import ModelsBuilder, build_application
from .store_builder import build_store
from .unsupported_settings import warn_unsupported


def create_app(
    model: str | None = None,
    *,
    engines: Mapping[str, SupportedEngine] | None = None,
    **settings: Any,  # noqa: ANN401 - each has its own type, see docs/embedding.md
) -> Application:
    """Build an ASGI application that serves MODEL, as the command does, or the given
    engines.

    The application's lifespan starts and stops the engines: code that mounts it passes
    `lifespan=app.lifespan` to the outer application.

    Args:
        model: as for the command `dragoman serve`.
        engines: engines by the name under which each is served.
        settings: as on the command line, with underscores. The environment is not read.

    Raises:
        SettingsError: a setting is invalid.
    """
    read_settings, build = resolve_models(model, engines, settings)
    if read_settings.instances.items:
        raise SettingsError(
            "instances: only `dragoman serve` can run several servers in one process"
        )
    if read_settings.is_multiprocess:
        raise SettingsError(
            "workers: only `dragoman serve` can start processes; the outer server has its own "
            "setting"
        )
    secret = load_secret_key(read_settings, os.environ) or secrets.token_bytes(32)
    # Before the models, which may take minutes to load.
    store = build_store(read_settings, os.environ)
    limits_store = build_limits_store(read_settings, os.environ)
    if read_settings.keys_file is not None:
        load_tenants(read_settings.keys_file)
    models = build(read_settings, SystemClock())
    # The address that the outer application listens on is unknown: the web page is off
    # unless it is enabled.
    read_settings = msgspec.structs.replace(read_settings, ui=bool(read_settings.ui))
    return build_application(
        read_settings, models, secret, store, limits_store=limits_store, requires_lifespan=True
    )


def resolve_models(
    model: str | None,
    engines: Mapping[str, SupportedEngine] | None,
    settings: Mapping[str, object],
    *,
    in_background: bool = False,
) -> tuple[Settings, ModelsBuilder]:
    """Return the settings, and the function that builds the models.

    model, engines, settings: see `create_app`.
    in_background: see `build_models`.

    Raises: SettingsError.
    """
    if engines is None:
        read_settings = load_keywords({**settings, "model": model})
        warn_unsupported(read_settings)
        return read_settings, build_models_in_background if in_background else build_models
    if model is not None or settings.get("models") is not None:
        raise SettingsError("engines: set either engines or the settings `model` and `models`")
    if not engines:
        raise SettingsError("engines: at least one engine is needed")
    read_settings = load_keywords(settings)
    if read_settings.served_model_name and len(engines) > 1:
        raise SettingsError(
            "served_model_name: with several engines, each is served under its key in `engines`"
        )
    return read_settings, lambda settings, clock: _build_engine_models(engines, settings, clock)


def _build_engine_models(engines: Mapping[str, object], settings: Settings, clock: Clock) -> Models:
    models: list[ServedModel] = []
    for name, engine in engines.items():
        try:
            models.append(
                add_queues(build_served_model(engine, settings, clock, own_name=name), settings)
            )
        except (OSError, ValueError, DragomanError) as error:
            raise SettingsError(f"engines: {name}: {error}") from error
    return Models(models)
