"""OpenAI's Batch API: the requests of a file run at the lowest priority, durably."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import msgspec
from msgspec.structs import replace

from ...core.errors import Conflict, NotFound
from ...dialects.field_errors import abbreviate
from ...dialects.openai_batches import BatchBody, BatchObject, read_batch_request
from ...dialects.openai_errors import OPENAI_ERRORS
from ...dialects.pagination import read_page_query
from ...isolation.fair_limiter import FairLimiter
from ...store import UNCLAIMED_RUN, CommitConflict, Key, Put, Record, Replace, Store
from .. import file_store
from ..api_description import OBJECT_PAGE, PAGE, response
from ..client_warnings import reject_unknown_fields
from ..durable_jobs import JobRunner
from ..handler_result import JsonResponse
from ..http_request import HttpRequest
from ..internal_client import InternalClient
from ..lifespan import BackgroundWorker
from ..openai_batch_job import FINAL_STATES, decode_batch, process_batch
from ..record_pages import list_records, require_store
from ..requested_file import build_no_such_file_error
from ..responder import Responder
from ..route import RequestCost, Route, RouteGroup
from ..service import Service

BATCH = "batch"
BATCH_ENDPOINTS = ("/v1/responses", "/v1/chat/completions", "/v1/embeddings", "/v1/completions")
_COMPLETION_WINDOW = 24 * 3600


def build_routes(new_batches: asyncio.Event) -> Sequence[Route]:
    """Build the routes.

    new_batches: set when a batch has been stored.
    """
    routes = RouteGroup("Batches", OPENAI_ERRORS)
    routes.add("GET", "/v1/batches", list_batches, "List batches", OBJECT_PAGE, query=PAGE)
    routes.add(
        "POST",
        "/v1/batches",
        partial(create, new_batches),
        "Create a batch",
        response(BatchObject),
        bodies=(BatchBody,),
    )
    routes.add("GET", "/v1/batches/{batch}", show, "Retrieve a batch", response(BatchObject))
    routes.add(
        "POST",
        "/v1/batches/{batch}/cancel",
        cancel,
        "Cancel a batch",
        response(BatchObject),
        cost=RequestCost.READ,
    )
    return routes.build()


def build_worker(
    service: Service, client: InternalClient, slots: FairLimiter, new_batches: asyncio.Event
) -> BackgroundWorker:
    """Build the worker that processes batches.

    slots: limits the concurrent requests of all batches.
    new_batches: as in `build_routes`.
    """

    async def run(store: Store) -> None:
        jobs = JobRunner(service, store, client, BATCH, slots, new_batches)
        await jobs.run(partial(process_batch, service, store))

    return run


async def create(new_batches: asyncio.Event, http: HttpRequest) -> JsonResponse | Responder:
    store = require_store(http)
    batch_request = read_batch_request(await http.read_json(), BATCH_ENDPOINTS)
    reject_unknown_fields(batch_request.unknown, strict=http.service.options.strict)
    if await file_store.find_file(store, http.caller.owner, batch_request.input_file_id) is None:
        raise build_no_such_file_error(batch_request.input_file_id)
    created = int(http.service.clock.now())
    batch = BatchObject(
        id=http.service.ids.new("batch_"),
        completion_window=batch_request.completion_window,
        created_at=created,
        endpoint=batch_request.endpoint,
        input_file_id=batch_request.input_file_id,
        expires_at=created + _COMPLETION_WINDOW,
        metadata=batch_request.metadata,
        output_expires_after=batch_request.output_expires_after,
    )
    body = msgspec.json.encode(batch)
    # Unclaimed: any process with this store may run the batch, and another one takes
    #     over if that process dies.
    await store.commit(
        Put(Key(http.caller.owner, BATCH, batch.id), created, body, "validating", run=UNCLAIMED_RUN)
    )
    new_batches.set()
    warnings = tuple(f"{name} is ignored: unknown field" for name in batch_request.unknown)
    return JsonResponse(body, warnings=warnings)


async def show(http: HttpRequest) -> JsonResponse | Responder:
    return JsonResponse((await _load_record(http)).body)


async def list_batches(http: HttpRequest) -> JsonResponse | Responder:
    paging = read_page_query(http.query, descending=True)
    return JsonResponse(await list_records(require_store(http), http.caller.owner, BATCH, paging))


async def cancel(http: HttpRequest) -> JsonResponse | Responder:
    """Cancel a batch: running requests are aborted, results are retained. Idempotent."""
    while True:
        record = await _load_record(http)
        if record.state in ("cancelling", "cancelled"):
            return JsonResponse(record.body)
        if record.state in (*FINAL_STATES, "finalizing"):
            raise Conflict(f"Cannot cancel a batch with status '{record.state}'.")
        now = int(http.service.clock.now())
        body = msgspec.json.encode(
            replace(decode_batch(record), status="cancelling", cancelling_at=now)
        )
        # Conditional on the state, not on the version, which changes with every result.
        # The counts in this body may be outdated; the batch job counts again when it
        # finishes.
        change = Replace(
            record.key, "cancelling", body, record.run, states=frozenset({record.state})
        )
        try:
            await require_store(http).commit(change)
        except CommitConflict:
            continue
        return JsonResponse(body)


async def _load_record(http: HttpRequest) -> Record:
    id = http.path_params["batch"]
    record = await require_store(http).get(Key(http.caller.owner, BATCH, id))
    if record is None:
        raise NotFound(f"No batch found with id {abbreviate(id)}.", param="id")
    return record
