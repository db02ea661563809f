"""The ASGI application, built by `build_asgi_app`. It has no global state."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.types import Receive, Scope, Send

from .._version import VERSION
from ..core.errors import NotFound, NotStarted
from ..core.model_download import ModelPuller
from ..core.trusted_proxies import TrustedProxies
from ..dialects.error_envelope import ErrorEnvelope
from ..dialects.field_errors import abbreviate
from ..dialects.interfaces import ReaderOptions
from ..dialects.registry import BY_CLIENT
from ..dialects.sealing import VerificationMode
from ..http.asgi_extensions import find_direct_response, find_on_disconnect
from ..isolation.fair_limiter import FairLimiter
from ..pipeline.model_registry import Models
from ..pipeline.recent_prompts import RecentPrompts
from ..pipeline.request_metrics import ModelMetrics
from ..store import MemoryStore, Store
from ..tenants import Counters, LocalCounters, Tenant
from ..tools.interface import ToolServers
from .access_policy import AccessPolicy
from .auth import Access, Keyring
from .body_memory import BodyMemoryBudget
from .call_reading import build_options_finder
from .clock import Clock, IdGenerator, RandomIdGenerator, SystemClock
from .crypto import Sealer
from .disconnect import ClientGone, with_disconnect_events
from .endpoint import Endpoint
from .handler_result import JsonResponse
from .host_header import build_allowed_hosts
from .http_metrics import HttpMetrics
from .http_request import HttpRequest
from .internal_client import InternalClient
from .key_reloader import KeyReloader, KeysExchange
from .lifespan import build_lifespan, run_cleanup, serve_lifespan
from .media import MediaOptions, MediaResolver
from .merged_metrics import MetricsExchange
from .model_downloads import ModelDownloads
from .port_faults import PortController
from .recent_requests import RecentRequests
from .request_log import RequestLog
from .responder import ResponseOutcome
from .route import Handler, Operation, Route
from .routes import batches, message_batches
from .routes.responses.background import BackgroundRuns
from .routes.responses.resumption import Resumption
from .routes.responses.websocket import ResponsesWebSocket
from .routes.table import Features, build_routes
from .service import GenerationServices, Service
from .serving_options import ServingOptions
from .stream_keepalive import StreamMonitor
from .tenancy import Tenancy
from .tracing import Telemetry
from .usage_ledger import UsageLedger

if TYPE_CHECKING:
    from starlette.routing import Route as PathPattern

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class Router:
    """Maps a path to its endpoint: literal paths by lookup, others by the first
    matching pattern.
    """

    def __init__(self, endpoints: Sequence[Endpoint], fallback: Endpoint) -> None:
        # Literal paths precede patterns: /v1/chat/completions/render is not a
        # completion with the id `render`.
        self._endpoints = sorted(endpoints, key=lambda endpoint: "{" in endpoint.route.path)
        self._exact = {
            endpoint.route.path: endpoint
            for endpoint in self._endpoints
            if "{" not in endpoint.route.path
        }
        self._fallback = fallback

    @cached_property
    def _patterns(self) -> list[tuple[PathPattern, Endpoint]]:
        # When first needed, since most requests have literal paths, and to compile all
        # patterns takes half the time to build the application.
        from starlette.routing import Route  # noqa: PLC0415

        return [
            (Route(endpoint.route.path, endpoint.respond), endpoint) for endpoint in self._endpoints
        ]

    def find_endpoint(self, scope: Scope) -> Endpoint:
        """Return the endpoint, and set the scope's `path_params`."""
        exact = self._exact.get(scope["path"])
        if exact is not None:
            return exact
        for pattern, endpoint in self._patterns:
            match, child_scope = pattern.matches(scope)
            if match.value:  # not `Match.NONE`; the endpoint checks the method
                scope["path_params"] = child_scope["path_params"]
                return endpoint
        return self._fallback


class FallbackEndpoint(Endpoint):
    """Answers unknown paths, in the error envelope of the nearest route above, or else
    `BY_CLIENT`.

    So a client that appends something to its dialect's path, such as
    /v1/messages/unknown, can parse the error.
    """

    def __init__(
        self,
        access: Access,
        handler: Handler,
        routes: Sequence[Route],
        service: Service,
        policy: AccessPolicy,
        http_metrics: HttpMetrics,
    ) -> None:
        operation = Operation(handler, "Other", "Answer unknown paths", ())
        super().__init__(
            Route("*", access, BY_CLIENT, dict.fromkeys(METHODS, operation)),
            service,
            policy,
            http_metrics,
        )
        self._envelopes: Mapping[str, ErrorEnvelope] = {
            **{route.root: route.envelope for route in routes if route.root is not None},
            **{route.path: route.envelope for route in routes},
        }

    def find_envelope(self, path: str) -> ErrorEnvelope:
        while path not in self._envelopes:
            path = path.rpartition("/")[0]
            # Every path is below "/", so its route does not tell the client's dialect.
            if len(path) < 2:
                return BY_CLIENT
        return self._envelopes[path]


def build_not_found_handler(routes: Sequence[Route]) -> Handler:
    """Build the handler of unknown paths."""
    # Only /v1: these are the paths that clients build from a base URL.
    known_paths = [
        route.path for route in routes if route.path.startswith("/v1/") and "{" not in route.path
    ]

    async def raise_not_found(http: HttpRequest) -> JsonResponse:
        # A wrong base URL lacks `/v1`, repeats it, or contains a whole route.
        path = http.path.rstrip("/")
        tails = {route.removeprefix("/v1"): route for route in known_paths}
        suggestion = next(
            (
                route
                for tail, route in tails.items()
                if path == tail
                or path.endswith(route)
                or (path.endswith(tail) and path.removesuffix(tail) in known_paths)
            ),
            None,
        )
        hint = (
            "See the documentation for the available routes."
            if suggestion is None
            else f"Did you mean {suggestion}?"
        )
        raise NotFound(f"No such route: {abbreviate(http.path)}. {hint}")

    return raise_not_found


async def raise_not_started(_: HttpRequest) -> JsonResponse:
    """Handle all paths while the application's lifespan does not run."""
    raise NotStarted(
        "This application has not been started: its lifespan does not run. A mounted application "
        "needs "
        "`lifespan=app.lifespan` in the application that it is mounted in."
    )


def build_asgi_app(
    models: Models,
    *,
    options: ServingOptions | None = None,
    clock: Clock | None = None,
    ids: IdGenerator | None = None,
    secret: bytes | None = None,
    store: Store | None = None,
    media: MediaResolver | None = None,
    request_log: RequestLog | None = None,
    port_controller: PortController | None = None,
    puller: ModelPuller | None = None,
    tenants: Mapping[str, Tenant] | None = None,
    counters: Counters | None = None,
    telemetry: Telemetry | None = None,
    tool_servers: ToolServers | None = None,
    metrics_exchange: MetricsExchange | None = None,
    keys_file: Path | None = None,
    keys_exchange: KeysExchange | None = None,
    requires_lifespan: bool = False,
) -> Application:
    """Create the ASGI application. Its lifespan starts and stops the engines and opens
    the store.

    secret: encrypts and signs reasoning; None generates one for the lifetime of this
        process.
    store: None stores nothing.
    media: None fetches nothing from URLs.
    request_log: closed with the lifespan.
    port_controller: opens and closes the port of a simulated server.
    puller: downloads models, for /models, /models/pull and /api/pull; None rejects such
        requests.
    tenants: named keys, in addition to those of `options`; None if there is no file of
        keys.
    counters: count the use of the keys' limits; None counts in this process.
    telemetry: traces and metrics for OpenTelemetry; closed with the lifespan.
    tool_servers: the servers whose tools this server calls; closed with the lifespan.
    metrics_exchange: adds the other workers of the server to `/metrics`; None if there
        are none.
    keys_file: the file of `tenants`, which is read again when it changes.
    keys_exchange: lets the other workers of the server read the keys again; None if
        there are none.
    requires_lifespan: requests get a 500 unless the lifespan runs; if false, the caller
        may start the engines itself.
    """
    options = options or ServingOptions()
    clock = clock or SystemClock()
    keyring = Keyring(options.api_key, options.admin_api_key, tenants, now=clock.now)
    background = None
    if store is not None:
        store.share(lambda: keyring.owners)
        background = BackgroundRuns(store, options.max_background, lambda: keyring.owners)
    features = Features(
        background=background,
        recent_prompts=RecentPrompts() if options.explain else None,
        port_controller=port_controller,
        puller=puller,
        downloads=None if puller is None else ModelDownloads(puller),
        ui=options.ui,
        metrics_exchange=metrics_exchange,
        keys=None if keys_file is None else KeyReloader(keys_file, keyring),
        keys_exchange=keys_exchange,
    )
    reader_options = ReaderOptions(
        profile=options.profile,
        default_model=models.default,
        drop_nonces=options.drop_agent_nonces,
        tokens_as_ids=options.return_tokens_as_token_ids,
        hosted_tools=options.hosted_tools,
    )
    sealer = Sealer(
        secret or secrets.token_bytes(32), VerificationMode(options.reasoning_verification)
    )
    generation = GenerationServices(
        reader_options=reader_options,
        find_reader_options=build_options_finder(reader_options, sealer),
        fingerprint=f"dragoman-{VERSION}",
        media=media or MediaResolver(MediaOptions()),
        meters=ModelMetrics(models, clock.monotonic),
        request_log=request_log,
        recent_prompts=features.recent_prompts,
        recent_requests=RecentRequests() if options.ui else None,
    )
    ledger = UsageLedger(store or MemoryStore(now=clock.now), clock.now)
    service = Service(
        models=models,
        clock=clock,
        ids=ids or RandomIdGenerator(),
        options=options,
        generation=generation,
        stream_monitor=StreamMonitor(options.timeouts),
        body_budget=BodyMemoryBudget(options.max_inflight_body_bytes, lambda: keyring.owners),
        tenancy=Tenancy(
            keyring, counters or LocalCounters(clock.monotonic), ledger, features.key_metrics, clock
        ),
        store=store,
        telemetry=telemetry,
        tool_servers=tool_servers,
    )
    return _build_application(service, features, HttpMetrics(), requires_lifespan=requires_lifespan)


def _build_application(
    service: Service, features: Features, http_metrics: HttpMetrics, *, requires_lifespan: bool
) -> Application:
    """Build the endpoints of the routes, the WebSocket, the batch workers and the
    lifespan.
    """
    options = service.options
    policy = AccessPolicy(
        service.tenancy.keyring,
        build_allowed_hosts(
            options.bind,
            options.allowed_hosts,
            requires_key=not service.tenancy.keyring.is_open,
        ),
        options.cors,
    )
    routes = [
        route
        for group in build_routes(features, service.generation.meters, http_metrics).values()
        for route in group
    ]
    router = Router(
        [Endpoint(route, service, policy, http_metrics) for route in routes],
        # Unknown paths require a key too, so that they reveal nothing to
        # unauthenticated clients.
        FallbackEndpoint(
            Access.USER, build_not_found_handler(routes), routes, service, policy, http_metrics
        ),
    )
    websocket = ResponsesWebSocket(service, policy, features.conversation_locks)
    not_started = FallbackEndpoint(
        Access.PUBLIC, raise_not_started, routes, service, policy, http_metrics
    )
    if service.store is not None and features.background is not None:
        features.background.resume = Resumption(
            service, service.store, features.background, features.conversation_locks
        )
    client = InternalClient(service, routes)
    slots = FairLimiter(options.batch_concurrency)
    # Both kinds of batches share the slots: `batch_concurrency` limits all work that no
    # client waits for.
    workers = (
        run_cleanup,
        batches.build_worker(service, client, slots, features.new_batches),
        message_batches.build_worker(service, client, slots, features.new_message_batches),
    )
    lifespan = build_lifespan(
        service, features.background, features.downloads, features.keys, workers
    )
    return Application(
        router,
        websocket,
        lifespan,
        not_started if requires_lifespan else None,
        service.tenancy.keyring,
        features.keys,
        TrustedProxies(options.forwarded_allow_ips),
    )


def _apply_forwarding(scope: Scope, proxies: TrustedProxies) -> Scope:
    """Return the scope with the client and the scheme that a trusted proxy names."""
    peer = scope.get("client")
    headers = scope["headers"]
    scheme = proxies.find_scheme(peer, headers, kind=scope["type"])
    return {
        **scope,
        "client": proxies.find_client(peer, headers),
        "scheme": scheme or scope.get("scheme", "http"),
    }


class Application:
    """An ASGI application, which `dragoman.create_app` builds."""

    def __init__(
        self,
        router: Router,
        websocket: ResponsesWebSocket,
        lifespan_factory: Callable[[object], AbstractAsyncContextManager[object]],
        not_started: Endpoint | None = None,
        keyring: Keyring | None = None,
        keys: KeyReloader | None = None,
        proxies: TrustedProxies | None = None,
    ) -> None:
        """Combine the parts of an application.

        Args:
            router: serves the HTTP routes.
            websocket: serves the only path that accepts WebSockets.
            lifespan_factory: builds the context that is open while the application
                runs.
            not_started: answers all requests while the lifespan does not run; None if
                the caller may start the engines itself.
            keyring: the accepted keys, which may change while the application runs.
            keys: reads the keys file again; None without one.
            proxies: those whose headers name the client; None if there are none.
        """
        self.keyring = keyring or Keyring()
        self.keys = keys
        self._proxies = proxies or None
        self._router = router
        self._websocket = websocket
        self._lifespan_factory = lifespan_factory
        self._not_started = not_started
        self._is_started = False

    @asynccontextmanager
    async def lifespan(self, _app: object = None) -> AsyncGenerator[None]:
        """Start the engines and the store, and stop them at the end:
        `Starlette(lifespan=app.lifespan)`.

        For an application that is mounted in another, since servers send lifespan
        events to the outer one only.

        Args:
            _app: the outer application; ignored.

        Raises:
            RuntimeError: the lifespan is already running.
        """
        if self._is_started:
            raise RuntimeError(
                "the lifespan of this application is already running; start it once, in the outer "
                "application"
            )
        self._is_started = True
        try:
            async with self._lifespan_factory(self):
                yield
        finally:
            self._is_started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await serve_lifespan(self.lifespan(), receive, send)
            return
        if self.keys is not None:
            await self.keys.refresh()
        if self._proxies is not None:
            scope = _apply_forwarding(scope, self._proxies)
        # The path of a mounted application includes the prefix (`root_path` in ASGI
        # 3.0); the routes do not.
        if scope.get("root_path"):
            root = scope["root_path"].rstrip("/")
            path = scope["path"]
            relative = (
                path.removeprefix(root) if path.startswith(f"{root}/") or path == root else path
            )
            scope = {**scope, "path": relative or "/", "root_path": ""}
        if scope["type"] == "websocket":
            if self._not_started is not None and not self._is_started:
                # 1011 is "internal error", 1008 "policy violation" (RFC 6455, 7.4.1).
                await send({"type": "websocket.close", "code": 1011})
            elif scope["path"] == self._websocket.path:
                await self._websocket(scope, receive, send)
            else:
                await send({"type": "websocket.close", "code": 1008})
        elif (on_disconnect := find_on_disconnect(scope)) is None:
            await with_disconnect_events(self, scope, receive, send)
        else:
            not_started = None if self._is_started else self._not_started
            endpoint = not_started or self._router.find_endpoint(scope)
            method = scope["method"]
            http = endpoint.open_request(scope, receive, on_disconnect)
            record = http.record
            direct = find_direct_response(scope, send)
            try:
                response = await endpoint.respond(http, method)
                # Without these references a running stream does not keep its request in
                # memory.
                del http, scope, receive
                outcome = await response(on_disconnect, send, direct)
            except ClientGone:
                outcome = ResponseOutcome(cancelled=True)
            endpoint.record_outcome(record, method, outcome)
