"""Anthropic's Message Batches API: requests run at the lowest priority and survive a
restart of the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial

import msgspec
from msgspec.structs import replace

from ...core.errors import NotFound, RequestError
from ...dialects.anthropic.batches import (
    MessageBatch,
    MessageBatchCounts,
    count_result,
    encode_missing_result,
    encode_result,
    format_timestamp,
    read_cursor_query,
    read_message_batch,
    render_batch_list,
    render_deleted_batch,
)
from ...dialects.body import abbreviate
from ...store import (
    Append,
    CommitConflict,
    Delete,
    Item,
    Key,
    Put,
    Record,
    Replace,
    SeriesEntry,
    Store,
    UNCLAIMED_RUN,
)
from ..auth import Access
from ..endpoint import ANTHROPIC, HttpRequest, JsonResponse, Route
from ..generate import reject_unknown_fields, run_in_thread_if_large
from ..internal_client import InternalClient, InternalResponse
from ..jobs import JobRunner, JobTask, RecordLease
from ..lifespan import BackgroundWorker
from ..service import Service
from ..store_access import list_newest_first, require_store
from ..streaming import RawFraming, ReplayResponder, Responder

MESSAGE_BATCH_KIND = "message_batch"
REQUESTS = "requests"
RESULTS = "results"
# Anthropic's limits: 24 hours to process a batch, and 29 days for its results.
_COMPLETION_WINDOW = 24 * 3600
_RETENTION = 29 * 86400
_PATH = "/v1/messages/batches"
JSON_LINES = (b"content-type", b"application/x-jsonl")


def build_routes(new_batches: asyncio.Event) -> Sequence[Route]:
    """Build the routes.

    new_batches: set when a batch has been stored.
    """
    user = Access.USER
    return (
        Route(_PATH, user, ANTHROPIC, {"GET": list_batches, "POST": partial(create, new_batches)}),
        Route(f"{_PATH}/{{batch}}", user, ANTHROPIC, {"GET": show, "DELETE": delete}),
        Route(f"{_PATH}/{{batch}}/cancel", user, ANTHROPIC, {"POST": cancel}),
        Route(f"{_PATH}/{{batch}}/results", user, ANTHROPIC, {"GET": show_results}),
    )


def build_worker(
    service: Service, client: InternalClient, slots: asyncio.Semaphore, new_batches: asyncio.Event
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
        expires_at=format_timestamp(now + _COMPLETION_WINDOW),
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
            replace(_decode_batch(record), processing_status="canceling", cancel_initiated_at=now)
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
        (entry.body async for entry in _iterate_entries(require_store(http), record.key, RESULTS)),
        RawFraming(),
        http.build_response_start(http.build_headers(JSON_LINES)),
        http.service.stream_monitor,
    )


async def _iterate_entries(store: Store, key: Key, series: str) -> AsyncGenerator[SeriesEntry]:
    cursor: int | None = None
    while entries := await store.load_entries(key, series, after=cursor, limit=50):
        for entry in entries:
            yield entry
        cursor = entries[-1].position


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


def _decode_batch(record: Record) -> MessageBatch:
    return msgspec.json.decode(record.body, type=MessageBatch)


async def process_batch(service: Service, store: Store, record: Record, jobs: JobRunner) -> None:
    """Process a batch to its end.

    Raises:
        CommitConflict: another process has taken over the batch.
    """
    job = _MessageBatchJob(service, store, record)
    # A batch that was cancelled while no process ran it only needs its final state.
    if record.state == "in_progress":
        await jobs.run_job(job)
    await job.finish()


class _MessageBatchJob:
    """A message batch in progress."""

    def __init__(self, service: Service, store: Store, record: Record) -> None:
        self._service = service
        self._store = store
        self._lease = RecordLease(store, record)
        self._write_lock = asyncio.Lock()

    @property
    def id(self) -> str:
        return self._lease.key.id

    @property
    def owner(self) -> str:
        return self._lease.key.owner

    async def pending_tasks(self) -> AsyncGenerator[JobTask]:
        key = self._lease.key
        # Requests with a result are not run again after a restart.
        done_ids = {entry.id async for entry in _iterate_entries(self._store, key, RESULTS)}
        async for entry in _iterate_entries(self._store, key, REQUESTS):
            if entry.id is not None and entry.id not in done_ids:
                # The same handler as for clients, so that batches support the same
                # features.
                yield JobTask(entry.id, "/v1/messages", entry.body)

    async def store_result(self, task: JobTask, response: InternalResponse) -> None:
        # Results arrive concurrently, and each commit expects the version that the
        # previous one wrote.
        async with self._write_lock:
            await self._append_result(
                task.id, encode_result(task.id, response.status, response.body)
            )

    async def can_continue(self) -> bool:
        record = await self._store.get(self._lease.key)
        end = self._lease.record.created + _COMPLETION_WINDOW
        return (
            record is not None and record.state == "in_progress" and self._service.clock.now() < end
        )

    async def finish(self) -> None:
        """End the batch: requests that did not run get a result `canceled` or
        `expired`.
        """
        # A cancellation changes the record without the lease, and with it the version
        # that commits expect.
        await self._lease.reload()
        is_canceled = self._lease.record.state == "canceling"
        async with aclosing(self.pending_tasks()) as remaining:
            async for task in remaining:
                await self._append_result(
                    task.id, encode_missing_result(task.id, canceled=is_canceled)
                )
        counts = MessageBatchCounts()
        # Counted from the stored results, because those survive a restart.
        async for entry in _iterate_entries(self._store, self._lease.key, RESULTS):
            counts = count_result(counts, entry.body)
        batch = replace(
            _decode_batch(self._lease.record),
            processing_status="ended",
            request_counts=counts,
            ended_at=format_timestamp(self._service.clock.now()),
            results_url=f"{_PATH}/{self._lease.key.id}/results",
        )
        await self._lease.commit("ended", msgspec.json.encode(batch), release=True)

    async def _append_result(self, id: str, line: bytes) -> None:
        record = self._lease.record
        await self._lease.commit(
            record.state, record.body, Append(record.key, RESULTS, (Item(line, id),))
        )
