"""The application factory. All state belongs to its arguments; there are no globals."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from .. import __version__
from ..dialects.anthropic import map_anthropic_status, render_anthropic_error
from ..dialects.anthropic.files import is_anthropic_request
from ..dialects.base import Profile, ReaderOptions
from ..dialects.completions import read_completions
from ..dialects.errors import render_openai_error
from ..dialects.responses import render_responses_error
from ..http.disconnect import find_on_disconnect
from ..pipeline.metrics import ModelMetrics
from ..pipeline.models import Models
from ..pipeline.recent_prompts import RecentPrompts
from ..store import Store
from . import anthropic_files, batches, message_batches, weights
from .auth import Access, Keyring
from .body import BodyMemoryBudget, ClientGone
from .clock import Clock, IdGenerator, RandomIdGenerator, SystemClock
from .crypto import Sealer
from .disconnect import with_disconnect_events
from .endpoint import (
    Endpoint,
    EnvelopeResolver,
    ErrorEnvelope,
    Handler,
    build_not_found_endpoint,
    build_not_started_endpoint,
)
from .explain import build_routes as explain_routes
from .generate import build_generation_handler
from .host import build_allowed_hosts
from .http_metrics import HttpMetrics
from .internal_client import InternalClient
from .keepalive import StreamMonitor
from .lifespan import build_lifespan, run_cleanup, serve_lifespan
from .media import MediaOptions, MediaResolver
from .metrics import build_metrics_handler
from .port_faults.routes import build_routes as port_routes
from .port_faults.spec import PortController
from .request_log import RequestLog
from .responses import conversations, create, stored
from .responses.background import BackgroundRuns
from .responses.compact import compact
from .responses.input_tokens import count_input_tokens
from .responses.websocket import ResponsesWebSocket
from .routes import admin, chat, embeddings, messages, models
from .service import Service, ServingOptions
from .sglang import build_routes as sglang_routes
from .streaming import ResponseOutcome
from .tgi import ENVELOPE as TGI_ENVELOPE
from .tgi import TGI_ONLY_PATHS as TGI_ROUTES
from .tgi import build_routes as tgi_routes
from .vllm import build_routes as vllm_routes

RouteTable = Mapping[str, tuple[Access, Mapping[str, Handler]]]


def build_routes(meters: ModelMetrics, http_metrics: HttpMetrics) -> RouteTable:
    """All routes: the required access and the handlers by method. The type makes the access mandatory for every
    route.
    """
    public, user = Access.PUBLIC, Access.USER
    table: RouteTable = {
        **_build_chat_routes(user),
        "/v1/completions": (user, {"POST": build_generation_handler(read_completions)}),
        **_build_responses_routes(user),
        "/v1/messages": (user, {"POST": messages.create}),
        "/v1/messages/count_tokens": (user, {"POST": models.count_tokens}),
        **embeddings.build_routes(),
        **vllm_routes(),
        **sglang_routes(),
        **tgi_routes(),
        **explain_routes(),
        "/": (user, {"GET": models.show_index, **tgi_routes()["/"][1]}),
        "/v1/models": (user, {"GET": models.list_models}),
        "/v1/models/{model:path}": (user, {"GET": models.show_model}),
        "/tokenize": (user, {"POST": models.tokenize}),
        "/detokenize": (user, {"POST": models.detokenize}),
        "/health": (public, {"GET": models.check_health}),
        "/healthz": (public, {"GET": models.check_health}),
        "/readyz": (public, {"GET": models.check_health}),
        "/livez": (public, {"GET": models.live}),
        "/ping": (public, {"GET": models.check_health, "POST": models.check_health}),
        "/version": (public, {"GET": models.show_version}),
        **anthropic_files.build_routes(),
        **message_batches.build_routes(),
        **admin.build_routes(),
        **port_routes(),
        **weights.build_routes(),
        "/metrics": (public, {"GET": build_metrics_handler(meters, http_metrics)}),
    }
    return {**table, **batches.build_routes(_find_post_handlers(table))}


def _find_post_handlers(table: RouteTable) -> Mapping[str, Handler]:
    """The handlers that a batch job can call."""
    return {path: handlers["POST"] for path, (_, handlers) in table.items() if "POST" in handlers}


def create_app(
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
    requires_lifespan: bool = False,
) -> Application:
    """Create the ASGI application. Its lifespan starts and stops the engines and opens the store.

    secret: encrypts and signs reasoning; None generates one that lasts as long as this process.
    store: None stores nothing. media: None fetches nothing from URLs. request_log: closed with the lifespan.
    port_controller: opens and closes the port of a simulated server.
    requires_lifespan: requests get a 503 unless its lifespan runs; otherwise the caller may start the engines.
    """
    options = options or ServingOptions()
    background = None if store is None else BackgroundRuns(store, options.max_background)
    clock = clock or SystemClock()
    service = Service(
        models=models,
        clock=clock,
        ids=ids or RandomIdGenerator(),
        options=options,
        keyring=Keyring(options.api_keys, options.admin_keys),
        allowed_hosts=build_allowed_hosts(options.bind, options.allowed_hosts),
        reader_options=ReaderOptions(
            profile=options.profile, default_model=models.default, drop_nonces=options.drop_nonces
        ),
        sealer=Sealer(secret or secrets.token_bytes(32), options.reasoning_verification),
        fingerprint=f"dragoman-{__version__}",
        meters=ModelMetrics(models, clock.monotonic),
        http_metrics=HttpMetrics(),
        stream_monitor=StreamMonitor(options.timeouts),
        media=media or MediaResolver(MediaOptions()),
        body_budget=BodyMemoryBudget(options.max_inflight_body_bytes),
        store=store,
        background=background,
        recent_prompts=RecentPrompts() if options.explain else None,
        request_log=request_log,
        port_controller=port_controller,
    )

    resolve_envelope = _build_envelope_resolver(options.profile)
    table = build_routes(service.meters, service.http_metrics)
    internal_client, batch_slots = (
        InternalClient(service, _find_post_handlers(table), resolve_envelope),
        asyncio.Semaphore(options.batch_concurrency),
    )
    # Literal paths precede those with parameters: /v1/chat/completions/render is not the completion `render`.
    paths = sorted(table, key=lambda path: "{" in path)
    endpoints = [Endpoint(path, *table[path], service, resolve_envelope) for path in paths]
    workers = (
        run_cleanup,
        batches.build_worker(internal_client, batch_slots),
        message_batches.build_worker(internal_client, batch_slots),
    )
    fallback = build_not_found_endpoint(
        service, resolve_envelope, [path for path in paths if path.startswith("/v1/") and "{" not in path]
    )
    websockets = {"/v1/responses": ResponsesWebSocket(service, resolve_envelope)}
    not_started = build_not_started_endpoint(service, resolve_envelope) if requires_lifespan else None
    return Application(Router(endpoints, fallback), websockets, build_lifespan(service, workers), not_started)


_OPENAI_PATHS = ("/v1/chat", "/v1/completions", "/v1/responses", "/v1/conversations", "/v1/embeddings", "/v1/batches")


def _build_envelope_resolver(profile: Profile) -> EnvelopeResolver:
    """Choose the error format by path (below /v1/messages even a 404 is Anthropic's), or else by the headers."""
    openai = ErrorEnvelope(lambda error, _: render_openai_error(error, profile), lambda error: error.status)
    responses = ErrorEnvelope(lambda error, _: render_responses_error(error, profile), lambda error: error.status)
    anthropic = ErrorEnvelope(render_anthropic_error, map_anthropic_status)

    def resolve(path: str, headers: Mapping[str, str]) -> ErrorEnvelope:
        if path.startswith("/v1/messages") or (is_anthropic_request(headers) and not path.startswith(_OPENAI_PATHS)):
            return anthropic
        if path in TGI_ROUTES:
            return TGI_ENVELOPE
        return responses if path.startswith("/v1/responses") else openai

    return resolve


def _build_chat_routes(user: Access) -> RouteTable:
    completion = "/v1/chat/completions/{id}"
    return {
        "/v1/chat/completions": (user, {"POST": chat.create, "GET": chat.list_all}),
        completion: (
            user,
            {"GET": chat.show, "POST": chat.update, "DELETE": chat.delete},
        ),
        f"{completion}/messages": (user, {"GET": chat.list_messages}),
    }


def _build_responses_routes(user: Access) -> RouteTable:
    """Routes of the Responses and Conversations APIs."""
    response, conversation = "/v1/responses/{id}", "/v1/conversations/{id}"
    return {
        "/v1/responses": (user, {"POST": create.create}),
        "/v1/responses/input_tokens": (user, {"POST": count_input_tokens}),
        "/v1/responses/compact": (user, {"POST": compact}),
        response: (user, {"GET": stored.show, "DELETE": stored.delete}),
        f"{response}/cancel": (user, {"POST": stored.cancel}),
        f"{response}/input_items": (user, {"GET": stored.list_input}),
        "/v1/conversations": (user, {"POST": conversations.create}),
        conversation: (
            user,
            {"GET": conversations.show, "POST": conversations.update, "DELETE": conversations.delete},
        ),
        f"{conversation}/items": (user, {"GET": conversations.list_items, "POST": conversations.add_items}),
        f"{conversation}/items/{{item}}": (
            user,
            {"GET": conversations.show_item, "DELETE": conversations.delete_item},
        ),
    }


class Router:
    """Maps a path to its endpoint: literal paths by lookup, others by the first matching pattern."""

    def __init__(self, endpoints: Sequence[Endpoint], fallback: Endpoint) -> None:
        self._exact = {endpoint.path: endpoint for endpoint in endpoints if "{" not in endpoint.path}
        self._routes = [(Route(endpoint.path, endpoint.handle), endpoint) for endpoint in endpoints]
        self._fallback = fallback

    def find_endpoint(self, scope: Scope) -> Endpoint:
        """Return the endpoint, and set the scope's `path_params`."""
        exact = self._exact.get(scope["path"])
        if exact is not None:
            return exact
        for route, endpoint in self._routes:
            match, child_scope = route.matches(scope)
            if match is not Match.NONE:  # the endpoint checks the method
                scope["path_params"] = child_scope["path_params"]
                return endpoint
        return self._fallback


class Application:
    """An ASGI application.

    websockets: by path; a WebSocket on any other is refused. lifespan_factory: makes what begins and ends with it.
    not_started: answers all requests while the lifespan does not run; None where others may start the engines.
    """

    def __init__(
        self,
        router: Router,
        websockets: Mapping[str, ResponsesWebSocket],
        lifespan_factory: Callable[[object], AbstractAsyncContextManager[object]],
        not_started: Endpoint | None = None,
    ) -> None:
        self._router, self._websockets, self._lifespan_factory = router, websockets, lifespan_factory
        self._not_started, self._is_started = not_started, False

    @asynccontextmanager
    async def lifespan(self, _app: object = None) -> AsyncGenerator[None]:
        """Start the engines and the store, and stop them at the end: `Starlette(lifespan=app.lifespan)`.

        For an application that is mounted in another, since no server tells a mounted one when to start. _app: the
        application that it is mounted in. Raises RuntimeError where it runs already.
        """
        if self._is_started:
            raise RuntimeError("the lifespan of this application runs already: start it once, in the outer application")
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
        if scope.get("root_path"):
            scope = _strip_root_path(scope)
        if scope["type"] == "websocket":
            await self._handle_websocket(scope, receive, send)
        elif (on_disconnect := find_on_disconnect(scope)) is None:
            await with_disconnect_events(self, scope, receive, send)
        else:
            lifecycle = self._find_endpoint(scope).open_request(scope, receive, on_disconnect)
            # A running stream holds no reference to its request, so that its memory stays small.
            del scope, receive
            try:
                outcome = await (await lifecycle.respond())(on_disconnect, send)
            except ClientGone:
                outcome = ResponseOutcome(cancelled=True)
            lifecycle.finish(outcome)

    def _find_endpoint(self, scope: Scope) -> Endpoint:
        if self._not_started is not None and not self._is_started:
            return self._not_started
        return self._router.find_endpoint(scope)

    async def _handle_websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._not_started is not None and not self._is_started:
            await send({"type": "websocket.close", "code": 1013})
        elif scope["path"] in self._websockets:
            await self._websockets[scope["path"]](scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})


def _strip_root_path(scope: Scope) -> Scope:
    """The scope of an application that is mounted below a prefix, as if it were not: routes are without the prefix."""
    root, path = scope["root_path"].rstrip("/"), scope["path"]
    relative = path.removeprefix(root) if path.startswith(f"{root}/") or path == root else path
    return {**scope, "path": relative or "/", "root_path": ""}
