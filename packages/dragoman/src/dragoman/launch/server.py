"""The server process, independent of the engine: assembly of the application, sockets,
signals, graceful shutdown.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import secrets
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, cast

import msgspec
import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from dragoman_sim.engine.scheduler_config import VLLM_VERSION
from dragoman_sim.port_faults import ServerPort, ServerPortController, ServerPorts

from ..core.encoder_requests import EncodingTask
from ..dialects.interfaces import Profile
from ..http.limits import HttpLimits
from ..http.server_connection import Http11ProtocolFactory
from ..pipeline.model_registry import EmbedderBackend, Models, ScorerBackend, TextEncoderBackend
from ..serving.app import Application, create_app
from ..serving.clock import Clock, IdGenerator, SystemClock
from ..serving.cors import CorsPolicy
from ..serving.media import MediaOptions, MediaResolver
from ..serving.merged_metrics import MetricsExchange
from ..serving.port_faults import PortController
from ..serving.request_log import RequestLog
from ..serving.serving_options import ServingOptions
from ..serving.stream_keepalive import StreamTimeouts
from ..settings import ServingSettings, Settings, SettingsError, check_exposure, is_loopback
from ..store import Store
from ..tenants.limits_store import LimitsStore
from .hub_models import HubPuller
from .limits_store import build_counters, build_limits_store, check_limits_store
from .listener import SocketFile
from .logs import build_telemetry, configure_logging
from .models import build_models_in_background, format_error, warn_unsupported
from .reload import Reloader, load_tenants
from .secret_key import load_secret_key
from .store_builder import build_store, check_store, find_store_file
from .systemd import Notifier, inherit_sockets
from .tls import build_tls_context

_RERANK_EXAMPLE = {"query": "What is the capital of Japan?", "documents": ["Tokyo", "Seven"]}


def build_greeting(settings: Settings, models: Models, port: int | None) -> list[str]:
    """Build the startup lines: the models and the address, an example request, and the
    store.
    """
    first_slot = models.slots[0]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    scheme = "http" if settings.ssl_certfile is None else "https"
    address = f"{scheme}://{host}:{port}" if settings.uds is None else f"unix:{settings.uds}"
    question = "What is the capital of Japan?"
    match None if first_slot.model is None else first_slot.model.backend:
        case TextEncoderBackend(engine) if EncodingTask.EMBEDDINGS not in engine.encoding_tasks:
            route = "/rerank"
            fields = _RERANK_EXAMPLE
        case ScorerBackend():
            route = "/rerank"
            fields = _RERANK_EXAMPLE
        case EmbedderBackend() | TextEncoderBackend():
            route = "/v1/embeddings"
            fields = {"input": question}
        case _:
            route = "/v1/chat/completions"
            fields = {"messages": [{"role": "user", "content": question}]}
    body = msgspec.json.encode({"model": first_slot.name, **fields}).decode()
    curl = ["curl"] if settings.uds is None else ["curl", "--unix-socket", settings.uds]
    if settings.api_key or settings.keys_file is not None:
        curl += ["-H", '"Authorization: Bearer $KEY"']
    base_url = address if settings.uds is None else f"{scheme}://localhost"
    context = (
        ""
        if first_slot.summary is None
        else f" (context {first_slot.summary.max_model_len} tokens)"
    )
    if first_slot.spec is not None and first_slot.is_starting:
        context = (
            f" ({first_slot.spec.progress.phase}; requests get 503 until GET /readyz returns 200)"
        )
    # Only the kind of an external store is printed: its URL may contain credentials.
    match settings.store.partition(":"):
        case "memory", _, _:
            store = "in memory, lost on exit"
        case "sqlite", _, path:
            store = path or str(find_store_file(path, os.environ))
        case kind, _, _:
            store = kind
    pages = f"API reference: {base_url}/docs" + (
        f", web UI: {base_url}/ui" if serves_ui(settings) else ""
    )
    simulated = f", simulating vLLM {VLLM_VERSION}" if is_simulated(settings) else ""
    return [
        f"Serving {', '.join(slot.name for slot in models.slots)} on {address}{context}{simulated}",
        f"Try: {' '.join(curl)} {base_url}{route} -H 'Content-Type: application/json' -d '{body}'",
        f"Stored responses, files and batches: {store}. {pages}",
    ]


def serves_ui(settings: Settings) -> bool:
    """Whether the page at /ui is served; by default on a loopback address only."""
    return (
        settings.uds is None and is_loopback(settings.host) if settings.ui is None else settings.ui
    )


def is_simulated(settings: Settings) -> bool:
    return settings.model.partition(":")[0] == "sim"


@dataclass(frozen=True, slots=True)
class ShutdownConfig:
    """Durations of a graceful shutdown, in seconds.

    timeout: how long running requests may continue.
    grace: minimum time for which the server stays reachable but not ready, so that a
        load balancer notices before the port closes.
    """

    timeout: float = 8.0
    grace: float = 0.0


class LongLived:
    """Base class of connections that carry many responses, such as WebSockets.

    `shutdown` closes the connection after the responses in progress.
    """


log = logging.getLogger(__name__)

POLL_INTERVAL = 0.1
"""Seconds between two checks for running work during shutdown; the same as uvicorn's.
"""


@dataclass(frozen=True, slots=True)
class AssembledServer:
    """A configured server that is not running yet."""

    settings: Settings
    models: Models
    application: Application


ModelsBuilder = Callable[[Settings, Clock], Models]


def run(
    settings: Settings,
    print_line: Callable[[str], None],
    build: ModelsBuilder | None = None,
    read_settings: Callable[[], Settings] | None = None,
) -> int:
    """Serve until a signal stops the server, and return the exit code.

    print_line: prints a line of the greeting.
    build: builds the models from the settings; None means `build_models_in_background`.
    read_settings: reads the settings again for a reload; None if that is not possible.

    Raises: SettingsError for a configuration that cannot be served.
    """
    configured_settings = settings
    settings, inherited, secret = prepare_process(settings)
    tls = build_tls_context(settings)
    server_settings = _expand_instances(settings)
    server_ports = ServerPorts(
        [] if inherited else [ServerPort(item, tls) for item in server_settings if item.uds is None]
    )
    controllers = [
        ServerPortController(server_port, server_ports) for server_port in server_ports.ports
    ] or [None]
    assembled_servers = [
        assemble_server(item, secret, ports, build)
        for item, ports in zip(server_settings, controllers, strict=True)
    ]
    listeners = inherited or [server_port.listen() for server_port in server_ports.ports]
    socket_file = None
    if settings.uds is not None and not inherited:
        socket_file = SocketFile(settings.uds, int(settings.uds_mode, 8))
        listeners.append(socket_file.listener)
    ports: list[int | None] = [server_port.port for server_port in server_ports.ports] or [
        settings.port if settings.uds is None else None
    ]
    app = assembled_servers[0].application
    if settings.instances.items:
        from dragoman_sim.instances import PortDispatcher  # noqa: PLC0415 - as below

        app = PortDispatcher(
            {port: item.application for port, item in zip(ports, assembled_servers, strict=True)}
        )
    shutdown_config = ShutdownConfig(settings.shutdown_timeout, settings.shutdown_grace)
    first = assembled_servers[0]
    server = Server(
        build_uvicorn_config(app, settings, tls),
        *(item.models for item in assembled_servers),
        shutdown_config=shutdown_config,
        server_ports=server_ports,
        reloader=Reloader(
            configured_settings, first.application, first.models, SystemClock(), tls, read_settings
        ),
        notifier=Notifier(os.environ),
    )
    for item in assembled_servers:
        item.models.on_start_failure = server.stop_after_failure
    install_signal_handlers(server, server.handle_reload)
    print_greetings(assembled_servers, ports, print_line)
    enable_collector()
    try:
        server.run(sockets=listeners)
    finally:
        if socket_file is not None:
            socket_file.remove()
    if server.failure is not None:
        raise SettingsError(server.failure)
    return 0


def print_greetings(
    assembled_servers: Sequence[AssembledServer],
    ports: Sequence[int | None],
    print_line: Callable[[str], None],
) -> None:
    """Print the first line of the greeting, with the address, for each server, and the
    other lines once.
    """
    greetings = [
        build_greeting(item.settings, item.models, port)
        for item, port in zip(assembled_servers, ports, strict=True)
    ]
    for line in (*(lines[0] for lines in greetings), *greetings[0][1:]):
        print_line(line)


def enable_collector() -> None:
    """Enable and tune the garbage collector for serving; the caller may have disabled
    it during startup.
    """
    # Startup objects live until exit. Collections skip frozen objects, which also keeps
    # their memory pages shared with forked processes: a collection writes to every
    # object.
    gc.freeze()
    # A request creates hundreds of objects that live until its end. With the default
    # threshold of 700, collections of the youngest generation would find nearly all
    # alive, and promote objects that are about to be freed.
    gc.set_threshold(10_000, 20, 20)
    gc.enable()


def prepare_process(settings: Settings) -> tuple[Settings, list[socket.socket], bytes]:
    """Configure logging, check the settings, and take over the sockets of systemd's
    socket activation.

    Returns: the settings with the address of inherited sockets, these sockets, and the
        secret key.

    Raises: SettingsError.
    """
    configure_logging(settings)
    if settings.log_level == "info":
        # httpx2 logs every request that it sends, such as those for media.
        logging.getLogger("httpx2").setLevel(logging.WARNING)
    warn_unsupported(settings)
    inherited = inherit_sockets(os.environ)
    if inherited:
        settings = adopt_address(settings, inherited[0])
    # One key for all servers of the process: a load balancer may send a conversation's
    # next turn to another one, which must decrypt its reasoning.
    return settings, inherited, load_secret_key(settings, os.environ) or secrets.token_bytes(32)


def adopt_address(settings: Settings, listener: socket.socket) -> Settings:
    """Return the settings with the address of an inherited socket in place of the
    configured one.

    Raises:
        SettingsError: the address is reachable from other machines, and there is no API
            key.
    """
    if settings.instances.items:
        raise SettingsError(
            "instances: each needs its own port, which socket activation does not provide"
        )
    address = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return msgspec.structs.replace(settings, uds=str(address))
    adopted = msgspec.structs.replace(settings, uds=None, host=address[0], port=address[1])
    check_exposure(adopted, "LISTEN_FDS")
    return adopted


def _expand_instances(settings: Settings) -> list[Settings]:
    """Return the settings of each server in this process."""
    if not settings.instances.items:
        return [settings]
    from dragoman_sim.instances import expand_instances  # noqa: PLC0415 - it imports parts of the simulator

    try:
        return expand_instances(settings)
    except ValueError as error:
        raise SettingsError(f"instances: {error}") from error


def assemble_server(
    settings: Settings,
    secret: bytes,
    port_controller: PortController | None = None,
    build: ModelsBuilder | None = None,
    metrics_exchange: MetricsExchange | None = None,
    ids: IdGenerator | None = None,
) -> AssembledServer:
    """Build the models, the store and the application.

    port_controller: controls the ports of a simulated server.
    build: see `run`.
    metrics_exchange, ids: see `create_app`.

    Raises: SettingsError.
    """
    models = (build or build_models_in_background)(settings, SystemClock())
    store = build_store(settings, os.environ)
    if store is not None:
        # Checked before listening, so that an unusable store is reported at startup.
        asyncio.run(check_store(store))
    limits_store = build_limits_store(settings, os.environ)
    if limits_store is not None:
        asyncio.run(check_limits_store(limits_store))
    application = build_application(
        settings,
        models,
        secret,
        store,
        port_controller,
        metrics_exchange,
        ids=ids,
        limits_store=limits_store,
    )
    return AssembledServer(settings, models, application)


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
) -> Application:
    """Build the application from the settings.

    metrics_exchange, ids, requires_lifespan: see `create_app`.

    Raises: SettingsError.
    """
    return create_app(
        models,
        options=build_serving_options(settings),
        ids=ids,
        secret=secret,
        store=store,
        media=MediaResolver(MediaOptions(settings.media_urls, settings.media_hosts)),
        request_log=None
        if settings.request_log is None
        else open_request_log(settings.request_log),
        port_controller=port_controller if is_simulated(settings) else None,
        puller=HubPuller(settings),
        telemetry=build_telemetry(settings, os.environ),
        tenants=None if settings.keys_file is None else load_tenants(settings.keys_file),
        counters=build_counters(limits_store),
        metrics_exchange=metrics_exchange,
        requires_lifespan=requires_lifespan,
    )


def open_request_log(path: str) -> RequestLog:
    """Open the request log before serving, so that a wrong path is reported at startup.

    Raises:
        SettingsError: the file cannot be written.
    """
    try:
        return RequestLog(Path(path))
    except OSError as error:
        raise SettingsError(f"--request-log: {path} cannot be written: {error.strerror}") from error


SignalHandler = Callable[[int, FrameType | None], None]


def _ignore_hangup(_signal: int, _frame: FrameType | None) -> None:
    log.warning("SIGHUP ignored: there is nothing to reload")


class SignalTarget(Protocol):
    """A server that is stopped by signals."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None: ...


def install_signal_handlers(
    server: SignalTarget, on_hangup: SignalHandler = _ignore_hangup
) -> None:
    """Install handlers that shut down gracefully with exit code 0, even for signals
    before uvicorn listens.

    SIGHUP shuts down too if standard input is a terminal, since it means that the
    terminal was closed. Otherwise it comes from a service manager or `kill -HUP`, and
    reloads. Under nohup it is ignored.
    """
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, server.handle_exit)
    if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, server.handle_exit if os.isatty(0) else on_hangup)


class Server(uvicorn.Server):
    """A uvicorn server with graceful shutdown.

    During the shutdown readiness fails and new requests get a retryable error, while
    running requests continue. If they exceed the timeout, they end with their dialect's
    terminal error instead of a closed connection.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        *models: Models,
        shutdown_config: ShutdownConfig | None = None,
        server_ports: ServerPorts | None = None,
        reloader: Reloader | None = None,
        notifier: Notifier | None = None,
    ) -> None:
        """Create the server.

        server_ports: ports whose sockets come first among those passed to `run`, in the
            same order.
        """
        super().__init__(config)
        self._reloader = reloader
        self._notifier = notifier or Notifier({})
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reload_requested = asyncio.Event()
        self._service_task: asyncio.Task[None] | None = None
        self._models = models
        self._shutdown_config = shutdown_config or ShutdownConfig()
        self._server_ports = server_ports or ServerPorts(())
        self.failure: str | None = None
        """The reason for which a model could not be loaded at startup; the server stops
        then.
        """

    def stop_after_failure(self, name: str, error: BaseException) -> None:
        self.failure = f"cannot serve {name}: {format_error(error)}"
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature is uvicorn's
        """First signal: graceful shutdown. Second: stop without waiting. Third: exit
        immediately without cleanup.

        Does not record the signal: uvicorn re-raises recorded signals at exit, which
        would look like a failure.
        """
        if self.force_exit:
            os._exit(1)
        self.force_exit = self.should_exit
        self.should_exit = True

    def handle_reload(self, _sig: int, _frame: FrameType | None) -> None:
        """Handle a signal that requests a reload; during the startup, the reload is
        deferred until the server runs.
        """
        if self._loop is None:
            self._reload_requested.set()
        else:
            # Setting the event alone would not wake a loop that waits for I/O.
            self._loop.call_soon_threadsafe(self._reload_requested.set)

    async def _serve_service_manager(self) -> None:
        """Reload on request, and send keepalive messages to the service manager's
        watchdog.
        """
        while True:
            try:
                async with asyncio.timeout(self._notifier.watchdog_interval):
                    await self._reload_requested.wait()
            except TimeoutError:
                self._notifier.notify_alive()
                continue
            self._reload_requested.clear()
            self._notifier.notify_reloading()
            if self._reloader is not None:
                await self._reloader.reload()
            self._notifier.notify_ready()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self.started:
            self._notifier.notify_ready()
            self._service_task = asyncio.create_task(self._serve_service_manager())
        # Other sockets, such as a Unix socket, come after those of the ports.
        for port, server in zip(self._server_ports.ports, self.servers, strict=False):
            port.attach(server, self._build_protocol, self.server_state.connections)

    def _build_protocol(self) -> asyncio.Protocol:
        """Create the protocol of an accepted connection, as uvicorn does."""
        protocol_class = cast("Callable[..., asyncio.Protocol]", self.config.http_protocol_class)
        return protocol_class(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._notifier.notify_stopping()
        if self._service_task is not None:
            self._service_task.cancel()
        # Closed before the drain: from now on readiness fails, and new requests get a
        # retryable error.
        for models in self._models:
            models.close()
        stop_task = asyncio.create_task(self._stop_models_on_timeout())
        read_clock = asyncio.get_running_loop().time
        # The server waits only for requests that are running now: later ones get an
        # error at once.
        started_at = read_clock()
        running = tuple(self.server_state.tasks)
        # Other connections get `Connection: close` with their next response. Closing
        # them now would lose requests that clients have already sent.
        for connection in tuple(self.server_state.connections):
            if isinstance(connection, LongLived):
                connection.shutdown()
        if self._has_work(running):
            log.info(
                "shutting down: waiting up to %g s for running requests; press Ctrl-C again to "
                "stop now",
                self._shutdown_config.timeout,
            )
        while not self.force_exit:
            has_waited = read_clock() - started_at >= self._shutdown_config.grace
            if has_waited and (stop_task.done() or not self._has_work(running)):
                break
            await asyncio.sleep(POLL_INTERVAL)
        # Each port keeps a duplicate of its socket: while it is open, clients could
        # connect, but would never be served.
        self._server_ports.close()
        await super().shutdown(sockets)
        stop_task.cancel()

    def _has_work(self, running: Sequence[asyncio.Task[None]]) -> bool:
        """Whether client requests or background work are still running."""
        states = (
            engine.health()
            for models in self._models
            for model in models
            for engine in model.engines
        )
        return not all(task.done() for task in running) or any(
            state.running or state.waiting for state in states
        )

    async def _stop_models_on_timeout(self) -> None:
        await asyncio.sleep(self._shutdown_config.timeout)
        await asyncio.gather(*(models.stop() for models in self._models))


def build_uvicorn_config(
    app: ASGIApp, settings: Settings, tls: ssl.SSLContext | None = None
) -> uvicorn.Config:
    """Configure uvicorn, without its access log, which this server writes itself, and
    without the Server header.

    At log level info uvicorn is limited to warnings, since its startup message repeats
    the greeting.
    """
    return uvicorn.Config(
        app,
        uds=settings.uds,
        http=cast(
            "type[asyncio.Protocol]",
            Http11ProtocolFactory(
                HttpLimits(
                    connections=settings.max_connections,
                    per_address=settings.max_connections_per_address,
                )
            ),
        ),
        ws=cast("type[asyncio.Protocol]", build_websocket_protocol),
        ws_max_size=settings.max_body_bytes,
        ssl_context_factory=None if tls is None else lambda _config, _default: tls,
        access_log=False,
        log_level="warning" if settings.log_level == "info" else settings.log_level,
        log_config=None,
        server_header=False,
        # The client address behind a proxy is not used.
        proxy_headers=False,
        # Seconds. Requests have already ended by then; this bounds the rest of
        # uvicorn's shutdown.
        timeout_graceful_shutdown=2,
    )


def build_websocket_protocol(
    config: uvicorn.Config, server_state: ServerState, app_state: dict[str, Any]
) -> asyncio.Protocol:
    """Create the protocol of a WebSocket. The import is deferred, since most servers
    never see a WebSocket.
    """
    from .websocket import WebSocket  # noqa: PLC0415

    return WebSocket(config, server_state, app_state)


def build_serving_options(settings: Settings) -> ServingOptions:
    """Build the serving options from the settings. Raises SettingsError for an invalid
    origin.
    """
    try:
        cors = CorsPolicy(settings.allowed_origins)
    except ValueError as error:
        raise SettingsError(f"--allowed-origins: {error}") from error
    unchanged: dict[str, Any] = {
        name: getattr(settings, name) for name in ServingSettings.__struct_fields__
    }
    return ServingOptions(
        **unchanged,
        # The API profile as configured, else `vllm` for the simulator and `openai` for
        # other engines.
        profile=Profile(settings.api_profile or ("vllm" if is_simulated(settings) else "openai")),
        bind=None if settings.uds is not None else settings.host,
        cors=cors,
        timeouts=StreamTimeouts(keepalive=settings.keepalive_interval),
        ui=serves_ui(settings),
    )
