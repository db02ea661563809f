"""Assembly of the application from the settings."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from ..dialects.interfaces import Profile
from ..pipeline.model_registry import Models
from ..serving.app import Application, build_asgi_app
from ..serving.clock import Clock, IdGenerator, SystemClock
from ..serving.cors import CorsPolicy
from ..serving.key_reloader import KeysExchange
from ..serving.media import MediaOptions, MediaResolver
from ..serving.merged_metrics import MetricsExchange
from ..serving.port_faults import PortController
from ..serving.private_file import open_private_file
from ..serving.request_log import RequestLog
from ..serving.serving_options import ServingOptions
from ..serving.stream_keepalive import StreamTimeouts
from ..settings import ServingSettings, Settings, SettingsError, is_loopback
from ..store import Store
from ..tenants.limits_store import LimitsStore
from .configured_models import build_models_in_background
from .engine_registry import find_spec_of_model
from .hub_models import HubPuller
from .limits_store import build_counters, build_limits_store, check_limits_store
from .logs import build_telemetry
from .reload import load_tenants
from .store_builder import build_store, check_store
from .tool_servers import build_hosted_tools, build_tool_servers, load_tool_file


def serves_ui(settings: Settings) -> bool:
    """Whether the page at /ui is served; by default on a loopback address only."""
    return (
        settings.uds is None and is_loopback(settings.host) if settings.ui is None else settings.ui
    )


class AssembledServer(Struct, frozen=True):
    """A configured server that is not running yet."""

    settings: Settings
    models: Models
    application: Application


ModelsBuilder = Callable[[Settings, Clock], Models]


def assemble_server(
    settings: Settings,
    secret: bytes,
    port_controller: PortController | None = None,
    build: ModelsBuilder | None = None,
    metrics_exchange: MetricsExchange | None = None,
    ids: IdGenerator | None = None,
    keys_exchange: KeysExchange | None = None,
    store_warning: str | None = None,
) -> AssembledServer:
    """Build the models, the store and the application.

    port_controller: controls the ports of a simulated server.
    build: see `run`.
    store_warning: see `check_state`.
    metrics_exchange, ids, keys_exchange: see `build_asgi_app`.

    Raises: SettingsError.
    """
    # Before the models, which may take minutes to load.
    state = check_state(settings, os.environ, store_warning)
    models = (build or build_models_in_background)(settings, SystemClock())
    application = build_application(
        settings,
        models,
        secret,
        state.store,
        port_controller,
        metrics_exchange,
        ids=ids,
        limits_store=state.limits_store,
        keys_exchange=keys_exchange,
    )
    return AssembledServer(settings, models, application)


class CheckedState(Struct, frozen=True):
    """The stores of a server, closed.

    store: None if storage is disabled.
    limits_store: None if limits are counted in the process.
    store_warning: what the store has lost, which is found only once: by the first
        process that opens it.
    """

    store: Store | None
    limits_store: LimitsStore | None
    store_warning: str | None


def check_state(
    settings: Settings, environment: Mapping[str, str], store_warning: str | None = None
) -> CheckedState:
    """Check the store, the limits' store, the files of keys and tools and the request log,
    and return the stores.

    store_warning: what the supervisor of this process has found.

    Raises:
        SettingsError: one cannot be used.
    """
    if settings.keys_file is not None:
        load_tenants(settings.keys_file)
    if settings.tools_file is not None:
        load_tool_file(settings.tools_file, environment)
    if settings.request_log is not None:
        check_request_log(Path(settings.request_log))
    store = build_store(settings, environment, store_warning)
    limits_store = build_limits_store(settings, environment)
    if store is not None:
        store_warning = asyncio.run(check_store(store))
    if limits_store is not None:
        asyncio.run(check_limits_store(limits_store))
    return CheckedState(store, limits_store, store_warning)


def build_application(
    settings: Settings,
    models: Models,
    secret: bytes,
    store: Store | None,
    port_controller: PortController | None = None,
    metrics_exchange: MetricsExchange | None = None,
    *,
    ids: IdGenerator | None = None,
    limits_store: LimitsStore | None = None,
    requires_lifespan: bool = False,
    keys_exchange: KeysExchange | None = None,
) -> Application:
    """Build the application from the settings.

    metrics_exchange, ids, requires_lifespan, keys_exchange: see `build_asgi_app`.

    Raises: SettingsError.
    """
    return build_asgi_app(
        models,
        options=build_serving_options(settings),
        ids=ids,
        secret=secret,
        store=store,
        media=MediaResolver(MediaOptions(settings.media_urls, settings.media_hosts)),
        request_log=None
        if settings.request_log is None
        else open_request_log(settings.request_log),
        port_controller=port_controller,
        puller=HubPuller(settings),
        telemetry=build_telemetry(settings, os.environ),
        tool_servers=build_tool_servers(settings, os.environ),
        tenants=None if settings.keys_file is None else load_tenants(settings.keys_file),
        counters=build_counters(limits_store),
        metrics_exchange=metrics_exchange,
        keys_file=None if settings.keys_file is None else Path(settings.keys_file),
        keys_exchange=keys_exchange,
        requires_lifespan=requires_lifespan,
    )


def check_request_log(path: Path) -> None:
    """Check that the request log can be written; a new file stays.

    Raises:
        SettingsError: it cannot.
    """
    # Opening a pipe would wait for its reader, and closing it would end that.
    if path.is_file() or path.is_dir() or not path.exists():
        with _report_request_log_errors(path):
            os.close(open_private_file(path))


def open_request_log(path: str) -> RequestLog:
    """Open the request log before serving, so that a wrong path is reported at startup.

    Raises:
        SettingsError: the file cannot be written.
    """
    with _report_request_log_errors(Path(path)):
        return RequestLog(Path(path))


@contextmanager
def _report_request_log_errors(path: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise SettingsError(f"--request-log: {path} cannot be written: {error.strerror}") from error


def build_serving_options(settings: Settings) -> ServingOptions:
    """Build the serving options from the settings. Raises SettingsError for an invalid
    origin or hosted tool.
    """
    try:
        cors = CorsPolicy(settings.allowed_origins)
    except ValueError as error:
        raise SettingsError(f"--allowed-origins: {error}") from error
    unchanged: dict[str, Any] = {
        name: getattr(settings, name) for name in ServingSettings.__struct_fields__
    }
    spec = find_spec_of_model(settings)
    return ServingOptions(
        **unchanged,
        # The API profile as configured, else `vllm` for the simulator and `openai` for
        # other engines.
        profile=Profile(settings.api_profile or ("openai" if spec is None else spec.api_profile)),
        bind=None if settings.uds is not None else settings.host,
        cors=cors,
        timeouts=StreamTimeouts(keepalive=settings.keepalive_interval),
        ui=serves_ui(settings),
        hosted_tools=build_hosted_tools(settings, os.environ),
    )
