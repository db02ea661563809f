"""Routing: finds the endpoint for a path, and answers paths that no route declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from starlette.routing import Match
from starlette.routing import Route as PathPattern
from starlette.types import Scope

from ..core.errors import NotFound, Overloaded
from ..dialects.body import abbreviate
from .auth import Access, AccessPolicy
from .endpoint import Endpoint, Handler, HttpRequest, JsonResponse, Route
from .envelopes import BY_CLIENT, OLLAMA, ErrorEnvelope
from .http_metrics import HttpMetrics
from .service import Service

PREFIXES: Mapping[str, ErrorEnvelope] = {"/api": OLLAMA, "/api/v1": BY_CLIENT}
"""The envelopes of unknown paths below these prefixes. `/api/v1` is a wrong base URL of OpenAI's clients."""
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class Router:
    """Maps a path to its endpoint: literal paths by lookup, others by the first matching pattern."""

    def __init__(self, endpoints: Sequence[Endpoint], fallback: Endpoint) -> None:
        # Literal paths precede patterns: /v1/chat/completions/render is not the completion `render`.
        endpoints = sorted(endpoints, key=lambda endpoint: "{" in endpoint.route.path)
        self._exact = {endpoint.route.path: endpoint for endpoint in endpoints if "{" not in endpoint.route.path}
        self._patterns = [(PathPattern(endpoint.route.path, endpoint.handle), endpoint) for endpoint in endpoints]
        self._fallback = fallback

    def find_endpoint(self, scope: Scope) -> Endpoint:
        """Return the endpoint, and set the scope's `path_params`."""
        exact = self._exact.get(scope["path"])
        if exact is not None:
            return exact
        for pattern, endpoint in self._patterns:
            match, child_scope = pattern.matches(scope)
            if match is not Match.NONE:  # the endpoint checks the method
                scope["path_params"] = child_scope["path_params"]
                return endpoint
        return self._fallback


class FallbackEndpoint(Endpoint):
    """Answers paths that no route declares, in the envelope of the nearest route above, or else `BY_CLIENT`.

    A client that appends something to its dialect's path, such as /v1/messages/unknown, can so parse the error.
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
        super().__init__(Route("*", access, BY_CLIENT, dict.fromkeys(METHODS, handler)), service, policy, http_metrics)
        self._envelopes: Mapping[str, ErrorEnvelope] = {
            **PREFIXES,
            **{route.path: route.envelope for route in routes},
        }

    def find_envelope(self, path: str) -> ErrorEnvelope:
        while path not in self._envelopes:
            path = path.rpartition("/")[0]
            # "/" is above every path and says nothing about the client's dialect.
            if len(path) < 2:
                return BY_CLIENT
        return self._envelopes[path]


def build_not_found_handler(routes: Sequence[Route]) -> Handler:
    """Build the handler of unknown paths."""
    # Only /v1: these are the paths that clients build from a base URL.
    known_paths = [route.path for route in routes if route.path.startswith("/v1/") and "{" not in route.path]

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
            "See the documentation for the available routes." if suggestion is None else f"Did you mean {suggestion}?"
        )
        raise NotFound(f"No such route: {abbreviate(http.path)}. {hint}")

    return raise_not_found


async def raise_not_started(_: HttpRequest) -> JsonResponse:
    """The handler of all paths while the application's lifespan does not run."""
    raise Overloaded(
        "This application has not been started: its lifespan does not run. A mounted application needs "
        "`lifespan=app.lifespan` in the application that it is mounted in.",
        code="not_started",
    )
