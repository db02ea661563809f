"""The routers that Ray asks for the replica of each request."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from .load_estimates import ENDED, LOAD, LoadEstimates
from .replica_ranking import rank_replicas
from .routing_key import RoutingKey, find_key

ray_router: Any = import_module("ray.serve.request_router")


class AffinityRouter(ray_router.RequestRouter):
    """A request router for Ray Serve that ranks replicas with `rank_replicas`."""

    def initialize_state(self, **_: Any) -> None:  # noqa: ANN401 - Ray's signature
        self._loads = LoadEstimates()

    async def choose_replicas(
        self,
        candidate_replicas: Sequence[Any],
        pending_request: Any = None,  # noqa: ANN401 - Ray's PendingRequest
    ) -> list[list[Any]]:
        """Return groups of replicas, best first: one replica per group, or two if the
        request has no key.
        """
        key = None
        if pending_request is not None:
            # Without backoff, Ray calls this method in a busy loop while all replicas
            # are full.
            pending_request.routing_context.should_backoff = True
            # The key that IngressRouter found, or the session header that Ray's proxy
            # saw.
            argument = pending_request.args[0] if pending_request.args else None
            is_key = isinstance(argument, RoutingKey)
            key = argument if is_key else find_key(b"", pending_request.metadata.session_id)
        replicas = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        for name, replica in replicas.items():
            self._loads.report(
                name, replica.routing_stats.get(LOAD, 0), replica.routing_stats.get(ENDED, 0)
            )
        ranked = rank_replicas(key, self._loads.estimate(list(replicas)))
        if ranked and pending_request is not None:
            self._loads.note_sent(ranked[0])
        width = 2 if key is None else 1
        return [
            [replicas[name] for name in ranked[index : index + width]]
            for index in range(0, len(ranked), width)
        ]


class IngressRouter:
    """The class of the router's deployment, which serves a RoutingApplication."""

    def __init__(self, replicas: Any, routing: str) -> None:  # noqa: ANN401 - Ray has no types
        self._application = RoutingApplication(replicas, routing)

    async def __serve_build_asgi_app__(self) -> ASGIApp:
        return self._application


class RoutingApplication:
    """The ASGI application that HAProxy asks for the replica of each request.

    It uses no framework, because every request waits for its answer.

    replicas: Ray's handle of the replicas' deployment.
    routing: as in RaySettings.
    """

    def __init__(self, replicas: Any, routing: str) -> None:  # noqa: ANN401 - Ray has no types
        self._replicas = replicas
        self._routing = routing
        self._session_header = (
            os.environ.get("RAY_SERVE_SESSION_ID_HEADER_KEY", "x-session-id").lower().encode()
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            for event in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{event}.complete"})
            return
        status = 404
        answer = b"{}"
        if scope["type"] == "http" and scope["path"] == "/internal/route":
            session = next(
                (value for name, value in scope["headers"] if name == self._session_header), b""
            )
            body = bytearray()
            has_more = self._routing != "session"
            while has_more:
                message = await receive()
                body += message.get("body", b"")
                # A disconnect message has no `more_body`, so it ends the loop too.
                has_more = message.get("more_body", False)
            key = find_key(
                bytes(body), session.decode("latin-1"), by_model=self._routing == "model"
            )
            arguments = () if key is None else (key,)
            # No slot is reserved, because the request itself goes through HAProxy.
            async with self._replicas.choose_replica(*arguments, _reserve=False) as selection:
                replica = selection._replica
                host, port = replica.backend_http_endpoint
                backend = {
                    "host": host,
                    "port": port,
                    "replica_id": replica.replica_id.to_full_id_str(),
                }
            status = 200
            answer = msgspec.json.encode(backend)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(answer)).encode()),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})
