"""Routes of stored responses: retrieve, stream, list input items, cancel, delete."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ....core.errors import RequestError, Unsupported
from ....dialects.field_errors import abbreviate, check_one_of, invalid_value, parse_digits
from ....dialects.pagination import paginate, read_page_query
from ....dialects.responses.errors import RESPONSES_ERRORS
from ....dialects.responses.event_schemas import RESPONSE_EVENTS
from ....dialects.responses.input_items import read_item_id
from ....dialects.responses.reader import INCLUDABLE
from ....dialects.responses.response_schemas import DeletedResponse, ResponseObject
from ....dialects.responses.stored_response import read_stored_response
from ....store import CommitConflict, Delete, Key, Record
from ...api_description import EVENTS, OBJECT_PAGE, PAGE, Query, response
from ...handler_result import JsonResponse
from ...http_request import HttpRequest
from ...responder import Responder
from ...route import RequestCost, Route, RouteGroup
from .background import BackgroundRuns
from .create import build_replay
from .history import RESPONSE_KIND, build_no_such_response_error


def build_routes(background: BackgroundRuns | None) -> Sequence[Route]:
    path = "/v1/responses/{id}"
    routes = RouteGroup("Responses", RESPONSES_ERRORS)
    routes.add(
        "GET",
        path,
        partial(show, background),
        "Retrieve a stored response, or resume its stream",
        response(ResponseObject),
        response(*RESPONSE_EVENTS, media=EVENTS),
        query=(
            Query(
                "stream",
                Literal["true", "false"],
                "Stream the events of a background response.",
            ),
            Query(
                "starting_after",
                Annotated[int, Meta(ge=0)],
                "Only events after this sequence number.",
            ),
            Query(
                "include",
                str,
                "Accepted; a stored response is returned as it is.",
                is_list=True,
            ),
        ),
    )
    routes.add(
        "DELETE",
        path,
        partial(delete, background),
        "Delete a stored response",
        response(DeletedResponse),
    )
    routes.add(
        "POST",
        f"{path}/cancel",
        partial(cancel, background),
        "Cancel a background response",
        response(ResponseObject),
        cost=RequestCost.READ,
    )
    routes.add(
        "GET",
        f"{path}/input_items",
        list_input,
        "List the input of a stored response",
        OBJECT_PAGE,
        query=PAGE,
    )
    return routes.build()


async def show(background: BackgroundRuns | None, http: HttpRequest) -> JsonResponse | Responder:
    record = await _load_record(http)
    warnings = _check_include(http)
    starting_after: int | None = None
    if (text := http.query.get("starting_after")) is not None:
        starting_after = parse_digits(text, 9)
        if starting_after is None:
            raise invalid_value(
                "starting_after", f"expected an integer from 0 to 999999999, got {abbreviate(text)}"
            )
    if _read_flag(http, "include_obfuscation"):
        raise Unsupported(
            "'include_obfuscation' is not supported here: events are not padded.",
            param="include_obfuscation",
        )
    if _read_flag(http, "stream"):
        if background is None or not read_stored_response(record.body).summarize().background:
            raise RequestError(
                "This response cannot be streamed because it was not created with background=true.",
                param="stream",
            )
        return build_replay(
            http, background, record.key, -1 if starting_after is None else starting_after, warnings
        )
    if starting_after is not None:
        raise invalid_value("starting_after", "it needs 'stream' to be true")
    # The same bytes as in the last event of the stream, so that the stored response
    # equals the original.
    return JsonResponse(bytes(read_stored_response(record.body).object), warnings=warnings)


async def list_input(http: HttpRequest) -> JsonResponse | Responder:
    paging = read_page_query(http.query, descending=True)
    warnings = _check_include(http)
    items = map(bytes, read_stored_response((await _load_record(http)).body).input)
    return JsonResponse(
        paginate([(read_item_id(item), item) for item in items], paging), warnings=warnings
    )


async def cancel(background: BackgroundRuns | None, http: HttpRequest) -> JsonResponse | Responder:
    """Cancel a background response. Idempotent; no effect on an ended response."""
    record = await _load_record(http)
    if background is None or not read_stored_response(record.body).summarize().background:
        raise RequestError("Cannot cancel a synchronous response.")
    updated = await background.cancel(record)
    if updated is None:
        raise build_no_such_response_error(record.key.id)
    return JsonResponse(bytes(read_stored_response(updated.body).object))


async def delete(background: BackgroundRuns | None, http: HttpRequest) -> JsonResponse | Responder:
    """Delete the response and stop its run. Of concurrent deletions one succeeds."""
    key = _build_key(http)
    store = http.service.store
    try:
        if store is None:
            raise build_no_such_response_error(key.id)
        await store.commit(Delete(key))
    except CommitConflict:
        raise build_no_such_response_error(key.id) from None
    if background is not None:
        await background.discard(key)
    return JsonResponse(msgspec.json.encode({"id": key.id, "object": "response", "deleted": True}))


def _build_key(http: HttpRequest) -> Key:
    return Key(http.caller.owner, RESPONSE_KIND, http.path_params["id"])


async def _load_record(http: HttpRequest) -> Record:
    key = _build_key(http)
    store = http.service.store
    record = None if store is None else await store.get(key)
    if record is None:
        raise build_no_such_response_error(key.id)
    return record


def _read_flag(http: HttpRequest, name: str) -> bool:
    return check_one_of(http.query.get(name) or "false", ("true", "false"), name) == "true"


def _check_include(http: HttpRequest) -> tuple[str, ...]:
    """Return warnings for unsupported values of `include`. Supported values have no
    effect on a stored object.
    """
    names = [
        value for _, value in http.query.select(lambda name: name.partition("[")[0] == "include")
    ]
    return tuple(
        f"include: {abbreviate(name)} is not supported" for name in names if name not in INCLUDABLE
    )
