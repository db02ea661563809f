"""Processing of an OpenAI batch, from its input file to its result files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from msgspec.structs import replace

from ..dialects.field_errors import abbreviate
from ..dialects.openai_batch_lines import (
    InvalidBatchLine,
    encode_result_line,
    encode_unexecuted_line,
    read_answer,
    read_line,
)
from ..dialects.openai_batches import (
    BatchCounts,
    BatchError,
    BatchErrors,
    BatchObject,
    BatchStatus,
    BatchUsage,
    read_usage,
)
from ..dialects.openai_files import FileObject
from ..store import (
    Append,
    Change,
    CommitConflict,
    Delete,
    Item,
    Key,
    Record,
    Replace,
    SeriesEntry,
    Store,
    StoreFull,
)
from . import file_store
from .durable_jobs import JobRunner, JobTask
from .file_store import build_put
from .internal_client import InternalResponse
from .record_lease import RecordLease
from .service import Service

WRITING_STATE = "writing"
"""The state of a result file while its batch runs; in this state the owner cannot see
it.
"""
FINAL_STATES = frozenset({"failed", "completed", "expired", "cancelled"})
MAX_LINES = 50_000
MAX_ERRORS = 100
_FILES_TTL = 30 * 86400
"""Seconds for which result files are kept by default."""


def decode_batch(record: Record) -> BatchObject:
    return msgspec.json.decode(record.body, type=BatchObject)


async def process_batch(service: Service, store: Store, record: Record, jobs: JobRunner) -> None:
    """Process a batch from its current state to its end.

    Raises:
        CommitConflict: another process has taken over the batch.
    """
    job = _BatchJob(service, store, record)
    try:
        if job.batch.status == "validating":
            await job.validate()
        if job.batch.status == "in_progress":
            await jobs.run_job(job)
    # Results that cannot be stored are lost, so the batch ends; those stored so far are
    # published.
    except* StoreFull as error_group:
        await job.fail(_build_file_error(StoreFull.code, str(error_group.exceptions[0])))
    if job.batch.status not in FINAL_STATES:
        await job.finish()


class _BatchJob:
    """A batch in progress."""

    def __init__(self, service: Service, store: Store, record: Record) -> None:
        self._service = service
        self._store = store
        self._key = record.key
        self._lease = RecordLease(store, record)
        self._write_lock = asyncio.Lock()
        self.batch = decode_batch(record)

    @property
    def id(self) -> str:
        return self._key.id

    @property
    def owner(self) -> str:
        return self._key.owner

    async def validate(self) -> None:
        """Validate the input file: the batch becomes `in_progress`, or `failed` if a
        line is invalid.

        A concurrent cancellation takes precedence.
        """
        max_line_bytes = self._service.options.max_body_bytes
        errors: list[BatchError] = []
        model: str | None = None
        custom_ids: set[str] = set()
        async for number, data in self._read_lines():
            try:
                if len(data) > max_line_bytes:
                    message = f"This line has {len(data)} bytes; {max_line_bytes} are allowed."
                    raise InvalidBatchLine("line_too_long", message)
                line = read_line(data, self.batch.endpoint)
                if line.custom_id in custom_ids:
                    message = f"`custom_id` {abbreviate(line.custom_id)} was used before."
                    raise InvalidBatchLine("duplicate_custom_id", message, "custom_id")
            except InvalidBatchLine as error:
                errors.append(
                    BatchError(
                        code=error.code, message=error.message, line=number, param=error.param
                    )
                )
            else:
                # A batch names one model, but its lines may name several.
                model = model or line.model
                custom_ids.add(line.custom_id)
            if len(custom_ids) > MAX_LINES:
                errors.append(
                    _build_file_error(
                        "too_many_tasks", f"A batch has at most {MAX_LINES} requests."
                    )
                )
            # The batch fails in any case, so reading the rest would only cost time.
            if len(errors) >= MAX_ERRORS or len(custom_ids) > MAX_LINES:
                break
        if not custom_ids and not errors:
            errors.append(
                _build_file_error("empty_file", "The input file has no request, or was deleted.")
            )
        if errors:
            await self.fail(*errors)
            return
        output_file = self._build_file("output")
        error_file = self._build_file("errors")
        started = replace(
            self.batch,
            status="in_progress",
            in_progress_at=self._now(),
            request_counts=BatchCounts(total=len(custom_ids)),
            model=model,
            output_file_id=output_file.id,
            error_file_id=error_file.id,
        )
        # The result files exist from the start, so that each result and the counts are
        # stored in one commit.
        file_puts = (
            build_put(self.owner, file, WRITING_STATE) for file in (output_file, error_file)
        )
        await self._save_unless_cancelled(started, *file_puts)

    async def pending_tasks(self) -> AsyncGenerator[JobTask]:
        # Requests with a result in either file are not run again after a restart.
        files = (self.batch.output_file_id, self.batch.error_file_id)
        done_ids = {entry.id for file in files async for entry in self._load_results(file)}
        async for _, data in self._read_lines():
            line = read_line(data, self.batch.endpoint)
            if line.custom_id not in done_ids:
                yield JobTask(line.custom_id, self.batch.endpoint, line.body)

    async def store_result(self, task: JobTask, response: InternalResponse) -> None:
        """Store the result line and the counts in one commit.

        Raises:
            CommitConflict: the batch is no longer in progress, or another process owns
                it.
        """
        has_succeeded = response.status < 400
        line = encode_result_line(
            self._service.ids.new("batch_req_"),
            task.id,
            response.status,
            response.id,
            response.body,
        )
        # Results arrive concurrently, and each commit expects the version that the
        # previous one wrote.
        async with self._write_lock:
            counts = self.batch.request_counts
            usage = self.batch.usage
            counts = replace(
                counts,
                completed=counts.completed + has_succeeded,
                failed=counts.failed + (not has_succeeded),
            )
            if has_succeeded:
                usage = (usage or BatchUsage()).add(read_usage(response.body))
            updated = replace(self.batch, request_counts=counts, usage=usage)
            target = self.batch.output_file_id if has_succeeded else self.batch.error_file_id
            await self._save(updated, self._build_append(target, Item(line, task.id)))

    async def can_continue(self) -> bool:
        record = await self._store.get(self._key)
        return (
            record is not None
            and record.state == "in_progress"
            and self._now() < self.batch.expires_at
        )

    async def finish(self) -> None:
        """Publish the result files and set the final status; requests that did not run
        get an error line.
        """
        # A client may have cancelled the batch meanwhile, so the stored status decides.
        await self._reload()
        counts = self.batch.request_counts
        is_done = counts.completed + counts.failed >= counts.total
        if self.batch.status == "in_progress" and not is_done:
            if self._now() < self.batch.expires_at:
                await self._finalize(
                    "failed",
                    errors=BatchErrors(
                        (_build_file_error("invalid_file", "The input file was deleted."),)
                    ),
                )
                return
            reason = "This request could not be executed before the completion window expired."
            async with aclosing(self.pending_tasks()) as remaining:
                async for task in remaining:
                    line = encode_unexecuted_line(
                        self._service.ids.new("batch_req_"), task.id, "batch_expired", reason
                    )
                    counts = self.batch.request_counts
                    updated = replace(
                        self.batch, request_counts=replace(counts, failed=counts.failed + 1)
                    )
                    await self._save(
                        updated, self._build_append(self.batch.error_file_id, Item(line, task.id))
                    )
            await self._finalize("expired", expired_at=self._now())
        elif self.batch.status == "cancelling":
            # The cancellation may have overwritten the latest counts, see
            # `routes.batches.cancel`.
            completed = 0
            failed = 0
            usage = BatchUsage()
            async for entry in self._load_results(self.batch.output_file_id):
                completed = completed + 1
                usage = usage.add(read_usage(read_answer(entry.body)))
            async for _ in self._load_results(self.batch.error_file_id):
                failed += 1
            counts = replace(counts, completed=completed, failed=failed)
            self.batch = replace(
                self.batch, request_counts=counts, usage=usage if completed else None
            )
            await self._finalize("cancelled", cancelled_at=self._now())
        else:
            await self._save_unless_cancelled(
                replace(self.batch, status="finalizing", finalizing_at=self._now())
            )
            await self._finalize("completed", completed_at=self._now())

    async def fail(self, *errors: BatchError) -> None:
        await self._reload()
        await self._finalize("failed", errors=BatchErrors(errors))

    async def _finalize(self, status: BatchStatus, **times: object) -> None:
        if status == "failed":
            times["failed_at"] = self._now()
        # Published before the final state: a client that sees `completed` finds the
        # files.
        output = await self._publish_file(self.batch.output_file_id)
        errors = await self._publish_file(self.batch.error_file_id)
        final_batch = replace(
            self.batch, status=status, output_file_id=output, error_file_id=errors, **times
        )
        await self._save(final_batch, release=True)

    async def _publish_file(self, id: str | None) -> str | None:
        """Make the file visible to its owner and return its id; delete it and return
        None if it is empty.
        """
        record = (
            None if id is None else await self._store.get(Key(self.owner, file_store.FILE_KIND, id))
        )
        if record is None or record.state != WRITING_STATE:
            return None if record is None else id
        size = 0
        async for chunk in file_store.read_chunks(self._store, record.key):
            size += len(chunk)
        # OpenAI omits an empty file from the batch.
        if not size:
            await self._store.commit(Delete(record.key))
            return None
        # Its lifetime begins now: a batch can run for longer than its results are to be
        # kept.
        created = self._now()
        file = replace(
            msgspec.json.decode(record.body, type=FileObject),
            bytes=size,
            created_at=created,
            expires_at=created + self._file_ttl,
        )
        body = msgspec.json.encode(file)
        await self._store.commit(
            Replace(record.key, file_store.PROCESSED, body, expires=file.expires_at)
        )
        return id

    async def _load_results(self, file: str | None) -> AsyncGenerator[SeriesEntry]:
        cursor: int | None = None
        # 100 at a time: a result file can be larger than the memory.
        while file is not None:
            key = Key(self.owner, file_store.FILE_KIND, file)
            entries = await self._store.load_entries(
                key, file_store.CONTENT_SERIES, after=cursor, limit=100
            )
            for entry in entries:
                yield entry
            if not entries:
                return
            cursor = entries[-1].position

    def _read_lines(self) -> AsyncGenerator[tuple[int, bytes]]:
        return file_store.read_lines(
            self._store, Key(self.owner, file_store.FILE_KIND, self.batch.input_file_id)
        )

    def _build_append(self, file: str | None, item: Item) -> Append:
        assert file is not None, "the files of a batch in progress cannot be deleted"
        return Append(
            Key(self.owner, file_store.FILE_KIND, file), file_store.CONTENT_SERIES, (item,)
        )

    def _build_file(self, role: str) -> FileObject:
        return FileObject(
            id=self._service.ids.new("file-"),
            bytes=0,
            created_at=self._now(),
            filename=f"{self.batch.id}_{role}.jsonl",
            purpose="batch_output",
            # Of the unpublished file: later than the end of the batch. `_publish_file`
            # sets the final expiry.
            expires_at=self.batch.expires_at + self._file_ttl,
        )

    @property
    def _file_ttl(self) -> int:
        """Seconds for which result files are kept."""
        expiry = self.batch.output_expires_after
        return _FILES_TTL if expiry is None else expiry.seconds

    async def _save_unless_cancelled(self, batch: BatchObject, *changes: Change) -> None:
        """Save the batch, unless it was cancelled meanwhile; then reload it. The lease
        remains valid.
        """
        try:
            await self._save(batch, *changes)
        except CommitConflict:
            await self._reload()
            if self.batch.status != "cancelling":
                raise

    async def _save(self, batch: BatchObject, *changes: Change, release: bool = False) -> None:
        await self._lease.commit(
            batch.status, msgspec.json.encode(batch), *changes, release=release
        )
        self.batch = batch

    async def _reload(self) -> None:
        await self._lease.reload()
        self.batch = decode_batch(self._lease.record)

    def _now(self) -> int:
        return int(self._service.clock.now())


def _build_file_error(code: str | None, message: str) -> BatchError:
    return BatchError(code=code or "invalid_file", message=message)
