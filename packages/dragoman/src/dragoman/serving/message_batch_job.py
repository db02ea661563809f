"""Processing of an Anthropic message batch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from msgspec.structs import replace

from ..dialects.anthropic.batch_results import count_result, encode_missing_result, encode_result
from ..dialects.anthropic.message_batches import (
    MessageBatch,
    MessageBatchCounts,
    format_timestamp,
)
from ..store import (
    Append,
    Item,
    Key,
    Record,
    SeriesEntry,
    Store,
)
from .durable_jobs import JobRunner, JobTask
from .internal_client import InternalResponse
from .record_lease import RecordLease
from .service import Service

REQUESTS = "requests"


RESULTS = "results"


# Anthropic's limits: 24 hours to process a batch, and 29 days for its results.
COMPLETION_WINDOW = 24 * 3600


MESSAGE_BATCHES_PATH = "/v1/messages/batches"


async def iterate_entries(store: Store, key: Key, series: str) -> AsyncGenerator[SeriesEntry]:
    cursor: int | None = None
    while entries := await store.load_entries(key, series, after=cursor, limit=50):
        for entry in entries:
            yield entry
        cursor = entries[-1].position


def decode_message_batch(record: Record) -> MessageBatch:
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
        done_ids = {entry.id async for entry in iterate_entries(self._store, key, RESULTS)}
        async for entry in iterate_entries(self._store, key, REQUESTS):
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
        end = self._lease.record.created + COMPLETION_WINDOW
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
        async for entry in iterate_entries(self._store, self._lease.key, RESULTS):
            counts = count_result(counts, entry.body)
        batch = replace(
            decode_message_batch(self._lease.record),
            processing_status="ended",
            request_counts=counts,
            ended_at=format_timestamp(self._service.clock.now()),
            results_url=f"{MESSAGE_BATCHES_PATH}/{self._lease.key.id}/results",
        )
        await self._lease.commit("ended", msgspec.json.encode(batch), release=True)

    async def _append_result(self, id: str, line: bytes) -> None:
        record = self._lease.record
        await self._lease.commit(
            record.state, record.body, Append(record.key, RESULTS, (Item(line, id),))
        )
