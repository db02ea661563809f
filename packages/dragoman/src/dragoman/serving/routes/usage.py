"""Usage of all keys, for administrators, as OpenAI's organization usage API."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Literal

from msgspec import Meta

from ...core.errors import NotFound
from ...dialects.openai_errors import OPENAI_ERRORS
from ...dialects.usage_report import UsagePage, UsageRow, read_usage_query, render_usage
from ..api_description import Query, response
from ..auth import Access
from ..handler_result import JsonResponse
from ..http_request import HttpRequest
from ..route import Route, RouteGroup
from ..tenancy import COMPLETIONS, EMBEDDINGS, TRANSCRIPTIONS

_USAGE = (
    Query("start_time", Annotated[int, Meta(ge=0)], "Unix seconds; required."),
    Query("end_time", Annotated[int, Meta(ge=0)], "Unix seconds."),
    Query("limit", Annotated[int, Meta(ge=1, le=168)], "Maximum number of buckets per page."),
    Query("bucket_width", Literal["1h", "1d"], "The length of a bucket."),
    Query(
        "group_by",
        Literal["api_key_id", "model", "batch"],
        "Group by this field; repeatable.",
        is_list=True,
    ),
    Query("api_key_ids", str, "Only these keys.", is_list=True),
    Query("models", str, "Only these models.", is_list=True),
    Query("batch", Literal["true", "false"], "Only batch requests, or none of them."),
    Query("page", str, "`next_page` of the previous page."),
)


def build_routes() -> Sequence[Route]:
    routes = RouteGroup("Administration", OPENAI_ERRORS, Access.ADMIN)
    for kind in (COMPLETIONS, EMBEDDINGS, TRANSCRIPTIONS):
        routes.add(
            "GET",
            f"/v1/organization/usage/{kind}",
            partial(show_usage, kind),
            f"Show the usage of {kind} by key, model and time",
            response(UsagePage),
            query=_USAGE,
        )
    return routes.build()


async def show_usage(kind: str, http: HttpRequest) -> JsonResponse:
    """Return a page of time buckets.

    Raises:
        NotFound: the server has no API keys, so it does not count usage.
    """
    if http.service.tenancy.keyring.is_open:
        raise NotFound(
            "Usage is counted by API key, and this server has none.", code="unsupported_endpoint"
        )
    query = read_usage_query(http.query.multi_items(), http.service.clock.now())
    rows = [
        UsageRow(
            hour,
            key.owner,
            key.name,
            key.model,
            key.is_batch,
            counts.requests,
            counts.input,
            counts.cached,
            counts.output,
        )
        for hour, usage in await http.service.tenancy.ledger.load_hours(query.start, query.page_end)
        for key, counts in sorted(usage.items(), key=lambda item: item[0])
        if key.kind == kind
    ]
    return JsonResponse(render_usage(query, rows, kind))
