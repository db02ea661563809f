"""The route `/metrics`, with vLLM's names in Prometheus' formats.

This module only renders the metrics; other modules count.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

from ...dialects.openai_errors import OPENAI_ERRORS
from ...pipeline.request_metrics import ModelMetrics
from ..api_description import TEXT, ApiResponse
from ..auth import Access
from ..handler_result import JsonResponse
from ..http_metrics import HttpMetrics
from ..http_request import HttpRequest
from ..key_metrics import KeyMetrics
from ..merged_metrics import MetricFamily, MetricsExchange
from ..responder import Responder
from ..route import Handler, Route, RouteGroup

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


def build_routes(
    meters: ModelMetrics,
    http_metrics: HttpMetrics,
    key_metrics: KeyMetrics,
    exchange: MetricsExchange | None = None,
) -> Sequence[Route]:
    """Build the route `/metrics`.

    exchange: adds the metrics of the server's other worker processes; None if there are
        none.
    """
    handler = build_metrics_handler(meters, http_metrics, key_metrics, exchange)
    routes = RouteGroup("Server", OPENAI_ERRORS, Access.PUBLIC)
    routes.add(
        "GET",
        "/metrics",
        handler,
        "Read the metrics, in Prometheus' format",
        ApiResponse(media=TEXT),
    )
    return routes.build()


def build_metrics_handler(
    meters: ModelMetrics,
    http_metrics: HttpMetrics,
    key_metrics: KeyMetrics,
    exchange: MetricsExchange | None = None,
) -> Handler:
    """Build the handler of `/metrics`; the Accept header chooses the format. The
    metrics that name keys are for administrators and keys of the role `metrics`.
    """

    # Imported for the first scrape, which is after the server has answered requests.
    @cache
    def load_registry() -> CollectorRegistry:
        from ..metrics_registry import build_server_registry  # noqa: PLC0415

        return build_server_registry(meters, http_metrics, key_metrics)

    def read_own_families() -> Sequence[MetricFamily]:
        from ..metrics_registry import read_families  # noqa: PLC0415 - as above

        return read_families(load_registry())

    if exchange is not None:
        exchange.provide(read_own_families)

    async def handle(http: HttpRequest) -> JsonResponse | Responder:
        from ..metrics_registry import build_registry, encode_metrics  # noqa: PLC0415 - as above

        registry = load_registry()
        if exchange is not None:
            # Without its supervisor a worker shuts down; until then it reports only its
            # own metrics.
            with suppress(ConnectionError):
                registry = build_registry(await exchange.merge())
        # The names of keys, and what they run, are not for strangers.
        caller = http.caller
        content, content_type = encode_metrics(
            registry,
            http.headers.get("accept", ""),
            shows_keys=caller.is_admin or caller.is_monitor or http.service.tenancy.keyring.is_open,
        )
        return JsonResponse(content, content_type=(b"content-type", content_type.encode()))

    return handle
