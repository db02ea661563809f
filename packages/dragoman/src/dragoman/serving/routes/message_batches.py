"""Anthropic's Message Batches API: requests run at the lowest priority, durably."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import msgspec
from msgspec.structs import replace

from ...core.errors import NotFound, RequestError
from ...dialects.anthropic.batch_results import MessageBatchResult
from ...dialects.anthropic.errors import ANTHROPIC_ERRORS
from ...dialects.anthropic.message_batches import (
    MessageBatch,
    MessageBatchBody,
    MessageBatchCounts,
    MessageBatchPage,
    format_timestamp,
    read_message_batch,
    render_batch_list,
    render_deleted_batch,
)
from ...dialects.anthropic.pagination import read_cursor_query
from ...dialects.anthropic.response_schemas import DeletedMessageBatch
from ...dialects.field_errors import abbreviate
from ...isolation.fair_limiter import FairLimiter
from ...store import (
    UNCLAIMED_RUN,
    Append,
    CommitConflict,
    Delete,
    Item,
    Key,
    Put,
    Record,
    Replace,
    Store,
)
from ..api_description import CURSOR, STORED_LINES, response
from ..call_reading import run_in_thread_if_large
from ..client_warnings import reject_unknown_fields
from ..durable_jobs import JobRunner
from ..handler_result import JsonResponse
from ..http_request import HttpRequest
from ..internal_client import InternalClient
from ..lifespan import BackgroundWorker
from ..message_batch_job import (
    COMPLETION_WINDOW,
    MESSAGE_BATCHES_PATH,
    REQUESTS,
    RESULTS,
    decode_message_batch,
    iterate_entries,
    process_batch,
)
from ..record_pages import list_newest_first, require_store
from ..replay_responder import ReplayResponder
from ..responder import RawFraming, Responder
from ..route import RequestCost, Route, RouteGroup
from ..service import Service

MESSAGE_BATCH_KIND = "message_batch"
_RETENTION = 29 * 86400
JSON_LINES = (b"content-type", b"application/x-jsonl")


def build_routes(new_batches: asyncio.Event) -> Sequence[Route]:
    """Build the routes.

    new_batches: set when a batch has been stored.
    """
    routes = RouteGroup("Message batches", ANTHROPIC_ERRORS)
    routes.add(
        "GET",
        MESSAGE_BATCHES_PATH,
        list_batches,
        "List message batches",
        response(MessageBatchPage),
        query=CURSOR,
    )
    routes.add(
        "POST",
        MESSAGE_BATCHES_PATH,
        partial(create, new_batches),
        "Create a message batch",
        response(MessageBatch),
        bodies=(MessageBatchBody,),
    )
    routes.add(
        "GET",
        f"{MESSAGE_BATCHES_PATH}/{{batch}}",
        show,
        "Retrieve a message batch",
        response(MessageBatch),
    )
    routes.add(
        "DELETE",
        f"{MESSAGE_BATCHES_PATH}/{{batch}}",
        delete,
        "Delete a message batch",
        response(DeletedMessageBatch),
    )
    routes.add(
        "POST",
        f"{MESSAGE_BATCHES_PATH}/{{batch}}/cancel",
        cancel,
        "Cancel a message batch",
        response(MessageBatch),
        cost=RequestCost.READ,
    )
    routes.add(
        "GET",
        f"{MESSAGE_BATCHES_PATH}/{{batch}}/results",
        show_results,
        "Read the results, one a line",
        response(MessageBatchResult, media=STORED_LINES),
    )
    return routes.build()


def build_worker(
    service: Service, client: InternalClient, slots: FairLimiter, new_batches: asyncio.Event
) -> BackgroundWorker:
    """Build the worker that processes message batches.

    slots: limits the concurrent requests of all batches.
    new_batches: as in `build_routes`.
    """

    async def run(store: Store) -> None:
        jobs = JobRunner(service, store, client, MESSAGE_BATCH_KIND, slots, new_batches)
        await jobs.run(partial(process_batch, service, store))

    return run


async def create(new_batches: asyncio.Event, http: HttpRequest) -> JsonResponse | Responder:
    store = require_store(http)
    requests, unknown = await run_in_thread_if_large(read_message_batch, await http.read_json())
    reject_unknown_fields(unknown, strict=http.service.options.strict)
    now = int(http.service.clock.now())
    batch = MessageBatch(
        id=http.service.ids.new("msgbatch_"),
        request_counts=MessageBatchCounts(processing=len(requests)),
        created_at=format_timestamp(now),
        expires_at=format_timestamp(now + COMPLETION_WINDOW),
    )
    key = Key(http.caller.owner, MESSAGE_BATCH_KIND, batch.id)
    body = msgspec.json.encode(batch)
    items = tuple(Item(request.params, request.custom_id) for request in requests)
    # Unclaimed: any process with this store may run the batch, and another one takes
    #     over if that process dies.
    put = Put(key, now, body, "in_progress", run=UNCLAIMED_RUN, expires=now + _RETENTION)
    await store.commit(put, Append(key, REQUESTS, items))
    new_batches.set()
    return JsonResponse(
        body, warnings=tuple(f"{name} is ignored: unknown field" for name in unknown)
    )


async def show(http: HttpRequest) -> JsonResponse | Responder:
    return JsonResponse((await _load_record(http)).body)


async def list_batches(http: HttpRequest) -> JsonResponse | Responder:
    listing = read_cursor_query(
        *(http.query.get(name) for name in ("limit", "after_id", "before_id"))
    )
    records, has_more = await list_newest_first(
        require_store(http), http.caller.owner, MESSAGE_BATCH_KIND, listing
    )
    return JsonResponse(
        render_batch_list([(record.key.id, record.body) for record in records], has_more=has_more)
    )


async def cancel(http: HttpRequest) -> JsonResponse | Responder:
    """Cancel a batch: running requests are aborted, results are retained. Idempotent;
    no effect on an ended batch.
    """
    while True:
        record = await _load_record(http)
        if record.state != "in_progress":
            return JsonResponse(record.body)
        now = format_timestamp(http.service.clock.now())
        body = msgspec.json.encode(
            replace(
                decode_message_batch(record), processing_status="canceling", cancel_initiated_at=now
            )
        )
        try:
            # Conditional on the state, not on the version, which changes with every
            # result.
            change = Replace(
                record.key, "canceling", body, record.run, states=frozenset({"in_progress"})
            )
            await require_store(http).commit(change)
        except CommitConflict:
            continue
        return JsonResponse(body)


async def delete(http: HttpRequest) -> JsonResponse | Responder:
    key = _build_key(http)
    try:
        await require_store(http).commit(Delete(key, states=frozenset({"ended"})))
    except CommitConflict as error:
        if error.found_state is None:
            raise _build_not_found_error(key.id) from None
        # The record exists, so the conflict is with its state: the batch has not ended.
        raise RequestError(
            "A message batch can be deleted only after it has ended; cancel it first."
        ) from None
    return JsonResponse(render_deleted_batch(key.id))


async def show_results(http: HttpRequest) -> JsonResponse | Responder:
    record = await _load_record(http)
    if record.state != "ended":
        raise RequestError(
            "This message batch has no results yet; they are available after it has ended."
        )
    return ReplayResponder(
        (entry.body async for entry in iterate_entries(require_store(http), record.key, RESULTS)),
        RawFraming(),
        http.build_response_start(http.build_headers(JSON_LINES)),
        http.service.stream_monitor,
    )


def _build_key(http: HttpRequest) -> Key:
    return Key(http.caller.owner, MESSAGE_BATCH_KIND, http.path_params["batch"])


async def _load_record(http: HttpRequest) -> Record:
    key = _build_key(http)
    record = await require_store(http).get(key)
    if record is None:
        raise _build_not_found_error(key.id)
    return record


def _build_not_found_error(id: str) -> NotFound:
    return NotFound(f"There is no message batch {abbreviate(id)}.")
