"""Routing of requests to replicas: Ray's request router with our ranking, and the deployment that HAProxy asks.

HAProxy sends requests to replicas itself. It asks `IngressRouter` for the replica of each POST request, with the
beginning of its body. Ray's proxy in Python shows a router no body, and only its session header is looked at there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from .affinity import LoadEstimates, RoutingKey, find_key, rank_replicas

ray_router: Any = import_module("ray.serve.request_router")

LOAD, ENDED = "load", "ended"
"""What a replica reports to the routers: requests that run or wait, and all that have ended since its start."""


class AffinityRouter(ray_router.RequestRouter):
    """A request router of Ray's that ranks replicas by `rank_replicas`."""

    def initialize_state(self, **_: Any) -> None:  # noqa: ANN401 - Ray's signature
        self._loads = LoadEstimates()

    async def choose_replicas(
        self,
        candidate_replicas: Sequence[Any],
        pending_request: Any = None,  # noqa: ANN401 - Ray's PendingRequest
    ) -> list[list[Any]]:
        """Return the replicas in ranks of one, best first; without a key the two least loaded are one rank."""
        if pending_request is not None:
            # Otherwise Ray calls this again at once while all replicas are full.
            pending_request.routing_context.should_backoff = True
        key = _get_key(pending_request)
        replicas = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        for name, replica in replicas.items():
            self._loads.report(name, replica.routing_stats.get(LOAD, 0), replica.routing_stats.get(ENDED, 0))
        ranked = rank_replicas(key, self._loads.estimate(list(replicas)))
        if ranked and pending_request is not None:
            self._loads.note_sent(ranked[0])
        width = 2 if key is None else 1
        return [[replicas[name] for name in ranked[index : index + width]] for index in range(0, len(ranked), width)]


def _get_key(pending_request: Any) -> RoutingKey | None:  # noqa: ANN401 - Ray's PendingRequest, or None
    """The key that IngressRouter found, or the session header that Ray's proxy saw."""
    if pending_request is None:
        return None
    argument = pending_request.args[0] if pending_request.args else None
    if isinstance(argument, RoutingKey):
        return argument
    session: str = pending_request.metadata.session_id
    return find_key(b"", session)


class IngressRouter:
    """The deployment's class."""

    def __init__(self, replicas: Any, routing: str) -> None:  # noqa: ANN401 - Ray's DeploymentHandle
        self._application = RoutingApplication(replicas, routing)

    async def __serve_build_asgi_app__(self) -> ASGIApp:
        return self._application


class RoutingApplication:
    """Answers HAProxy's question for the replica of a request. No framework: each request waits for the answer.

    replicas: Ray's handle of their deployment. routing: as in RaySettings.
    """

    def __init__(self, replicas: Any, routing: str) -> None:  # noqa: ANN401 - Ray has no types
        self._replicas, self._routing = replicas, routing
        self._session_header = os.environ.get("RAY_SERVE_SESSION_ID_HEADER_KEY", "x-session-id").lower().encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            for event in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{event}.complete"})
            return
        status, answer = 404, b"{}"
        if scope["type"] == "http" and scope["path"] == "/internal/route":
            session = next((value for name, value in scope["headers"] if name == self._session_header), b"")
            body = b"" if self._routing == "session" else await _read_body(receive)
            key = find_key(body, session.decode("latin-1"), by_model=self._routing == "model")
            status, answer = 200, await self._choose(key)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    async def _choose(self, key: RoutingKey | None) -> bytes:
        arguments = () if key is None else (key,)
        # The request itself goes through HAProxy: no slot is reserved for it.
        async with self._replicas.choose_replica(*arguments, _reserve=False) as selection:
            replica = selection._replica
            host, port = replica.backend_http_endpoint
            return msgspec.json.encode({"host": host, "port": port, "replica_id": replica.replica_id.to_full_id_str()})


async def _read_body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    is_complete = False
    while not is_complete:
        message = await receive()
        parts.append(message.get("body", b""))
        # A disconnection has no more either.
        is_complete = not message.get("more_body", False)
    return b"".join(parts)
