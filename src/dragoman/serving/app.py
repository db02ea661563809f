"""The application factory. All state hangs off its arguments; nothing is global."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from .. import __version__
from ..dialects.anthropic import anthropic_error, anthropic_status
from ..dialects.anthropic.files import names_anthropic
from ..dialects.base import Profile, ReaderOptions
from ..dialects.completions import read_completions
from ..dialects.errors import openai_error
from ..dialects.responses import responses_error
from ..http.leaving import watch_of
from ..pipeline.meter import Meters
from ..pipeline.models import Models
from ..pipeline.recent import RecentPrompts
from ..store import Store
from . import (
    anthropic_files,
    batches,
    message_batches,
    reading,
    steering,
    stored_chat,
    threads,
    utility,
    weights,
)
from .answer import Outcome
from .auth import Access, Keyring
from .body import Budget, ClientGone
from .clock import Clock, Ids, RandomIds, SystemClock
from .endpoint import Endpoint, Envelope, EnvelopeOf, Handler, not_found
from .explain import routes as explain_routes
from .generate import generation
from .host import allowed_hosts
from .http_meter import HttpMeter
from .leaving import telling
from .lifespan import clean, lifespan, live_by
from .listening import Listening
from .media import Media, MediaOptions
from .metrics import metrics
from .patience import Lookout
from .perform import Performer
from .ports import routes as port_routes
from .request_log import RequestLog
from .responses import conversations, create, stored
from .responses.background import Background
from .responses.compact import compact
from .responses.count import count_input_tokens
from .responses.socket import ResponsesSocket
from .seals import Seals
from .service import Service, ServingOptions
from .sglang import routes as sglang_routes
from .tgi import ENVELOPE as TGI_ENVELOPE
from .tgi import ROUTES as TGI_ROUTES
from .tgi import routes as tgi_routes
from .turns import Turns
from .vllm import routes as vllm_routes

Table = Mapping[str, tuple[Access, Mapping[str, Handler]]]


def routes(meters: Meters, http_meter: HttpMeter) -> Table:
    """Every route: who may use it, and its handlers by method. A route cannot be written without its access."""
    public, user = Access.PUBLIC, Access.USER
    table: Table = {
        **_chat(user),
        "/v1/completions": (user, {"POST": generation(read_completions)}),
        **_responses(user),
        "/v1/messages": (user, {"POST": threads.create}),
        "/v1/messages/count_tokens": (user, {"POST": utility.count_tokens}),
        **reading.routes(),
        **vllm_routes(),
        **sglang_routes(),
        **tgi_routes(),
        **explain_routes(),
        "/": (user, {"GET": utility.front, **tgi_routes()["/"][1]}),
        "/v1/models": (user, {"GET": utility.list_models}),
        "/v1/models/{model:path}": (user, {"GET": utility.show_model}),
        "/tokenize": (user, {"POST": utility.tokenize}),
        "/detokenize": (user, {"POST": utility.detokenize}),
        "/health": (public, {"GET": utility.health}),
        "/healthz": (public, {"GET": utility.health}),
        "/readyz": (public, {"GET": utility.health}),
        "/livez": (public, {"GET": utility.live}),
        "/ping": (public, {"GET": utility.health, "POST": utility.health}),
        "/version": (public, {"GET": utility.version}),
        **anthropic_files.routes(),
        **message_batches.routes(),
        **steering.routes(),
        **port_routes(),
        **weights.routes(),
        "/metrics": (public, {"GET": metrics(meters, http_meter)}),
    }
    return {**table, **batches.routes(_posts(table))}


def _posts(table: Table) -> Mapping[str, Handler]:
    """What a job can ask."""
    return {path: handlers["POST"] for path, (_, handlers) in table.items() if "POST" in handlers}


def create_app(
    models: Models,
    *,
    options: ServingOptions | None = None,
    clock: Clock | None = None,
    ids: Ids | None = None,
    secret: bytes | None = None,
    store: Store | None = None,
    media: Media | None = None,
    request_log: RequestLog | None = None,
    ports: Listening | None = None,
) -> Application:
    """An ASGI application that serves these models. Its lifespan starts and stops their engines and opens the store.

    secret: what thoughts are sealed and signed with; None makes one that nobody has after this process.
    store: None is a server that keeps nothing. media: None fetches nothing from URLs.
    request_log: closed with the application's lifespan. ports: of a server that can be told to stop listening.
    """
    options = options or ServingOptions()
    background = None if store is None else Background(store, options.max_background)
    clock = clock or SystemClock()
    service = Service(
        models=models,
        clock=clock,
        ids=ids or RandomIds(),
        options=options,
        keyring=Keyring(options.api_keys, options.admin_keys),
        allowed_hosts=allowed_hosts(options.bind, options.allowed_hosts),
        reading=ReaderOptions(profile=options.profile, default_model=models.default, drop_nonces=options.drop_nonces),
        seals=Seals(secret or secrets.token_bytes(32), options.reasoning_check),
        fingerprint=f"dragoman-{__version__}",
        meters=Meters(models, clock.monotonic),
        http_meter=HttpMeter(),
        lookout=Lookout(options.patience),
        media=media or Media(MediaOptions()),
        bodies=Budget(options.max_inflight_body_bytes),
        store=store,
        background=background,
        recent=RecentPrompts() if options.explain else None,
        request_log=request_log,
        listening=ports,
    )

    envelope = _envelopes(options.profile)
    table = routes(service.meters, service.http_meter)
    perform, room = Performer(service, _posts(table), envelope), asyncio.Semaphore(options.batch_concurrency)
    # A path that is written out goes before one with a name in it: /v1/chat/completions/render is no completion.
    paths = sorted(table, key=lambda path: "{" in path)
    endpoints = [Endpoint(path, *table[path], service, envelope) for path in paths]
    chores = (clean, batches.chore(perform, room), message_batches.chore(perform, room))
    other = not_found(service, envelope, [path for path in paths if path.startswith("/v1/") and "{" not in path])
    sockets = {"/v1/responses": ResponsesSocket(service, envelope)}
    return Application(Paths(endpoints, other), sockets, lifespan(service, chores))


_OPENAI = ("/v1/chat", "/v1/completions", "/v1/responses", "/v1/conversations", "/v1/embeddings", "/v1/batches")


def _envelopes(profile: Profile) -> EnvelopeOf:
    """The path decides whose error it is, a 404 beneath /v1/messages is Anthropic's; where it does not, the headers."""
    openai = Envelope(lambda error, _: openai_error(error, profile), lambda error: error.status)
    responses = Envelope(lambda error, _: responses_error(error, profile), lambda error: error.status)
    anthropic = Envelope(anthropic_error, anthropic_status)

    def of(path: str, headers: Mapping[str, str]) -> Envelope:
        if path.startswith("/v1/messages") or (names_anthropic(headers) and not path.startswith(_OPENAI)):
            return anthropic
        if path in TGI_ROUTES:
            return TGI_ENVELOPE
        return responses if path.startswith("/v1/responses") else openai

    return of


def _chat(user: Access) -> Table:
    completion = "/v1/chat/completions/{id}"
    return {
        "/v1/chat/completions": (user, {"POST": stored_chat.create, "GET": stored_chat.list_all}),
        completion: (
            user,
            {"GET": stored_chat.show, "POST": stored_chat.update, "DELETE": stored_chat.delete},
        ),
        f"{completion}/messages": (user, {"GET": stored_chat.list_messages}),
    }


def _responses(user: Access) -> Table:
    """Responses, and the conversations that they can be part of."""
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


class Paths:
    """Which endpoint a path means. Of several the first; one that is written out needs no look at the others."""

    def __init__(self, endpoints: Sequence[Endpoint], other: Endpoint) -> None:
        self._exact = {endpoint.path: endpoint for endpoint in endpoints if "{" not in endpoint.path}
        self._routes = [(Route(endpoint.path, endpoint.handle), endpoint) for endpoint in endpoints]
        self._other = other

    def find(self, scope: Scope) -> Endpoint:
        """What stands in its place in a path with names goes into the scope."""
        exact = self._exact.get(scope["path"])
        if exact is not None:
            return exact
        for route, endpoint in self._routes:
            match, found = route.matches(scope)
            if match is not Match.NONE:  # the endpoint itself looks at the method
                scope["path_params"] = found["path_params"]
                return endpoint
        return self._other


class Application:
    """sockets: by path; a WebSocket on any other is refused. life: what begins and ends with the application."""

    def __init__(
        self,
        paths: Paths,
        sockets: Mapping[str, ResponsesSocket],
        life: Callable[[object], AbstractAsyncContextManager[object]],
    ) -> None:
        self._paths, self._sockets, self._life = paths, sockets, life
        self._turns = Turns()

    def alive(self) -> AbstractAsyncContextManager[object]:
        """Its lifespan, for one that is served beside others."""
        return self._life(self)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await live_by(self.alive(), receive, send)
        elif scope["type"] == "websocket":
            await self._socket(scope, receive, send)
        elif (watch := watch_of(scope)) is None:
            await telling(self, scope, receive, send)
        else:
            visit = self._paths.find(scope).visit(scope, receive, watch)
            # For as long as a stream runs nothing is kept but what is needed then.
            del scope, receive
            await self._turns.take()
            try:
                outcome = await (await visit.answer())(watch, send)
            except ClientGone:
                outcome = Outcome(cancelled=True)
            visit.over(outcome)

    async def _socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in self._sockets:
            await self._sockets[scope["path"]](scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})
