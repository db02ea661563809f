"""OpenAI's batches: the requests of a file, worked off behind everybody else's, whatever becomes of this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import aclosing
from functools import partial

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..core.errors import Conflict, NotFound
from ..dialects.batches import (
    BadLine,
    Batch,
    BatchError,
    Counts,
    Errors,
    File,
    Status,
    Usage,
    answer_in,
    read_batch_order,
    read_line,
    result_line,
    unexecuted_line,
    usage_of,
)
from ..dialects.body import echo
from ..dialects.pages import read_paging
from ..store import NOBODY, Append, Change, Delete, Entry, Item, Key, Put, Record, Refused, Replace, Store, StoreFull
from . import file_store, files
from .answer import Answer
from .auth import Access
from .endpoint import Handler, Http, Whole
from .generate import refuse_unknown
from .jobs import Held, Jobs, Task
from .perform import Performed, Performer
from .service import Service
from .stored import list_records, store_of

BATCH = "batch"
ENDPOINTS = ("/v1/responses", "/v1/chat/completions", "/v1/embeddings", "/v1/completions")
WRITING = "writing"
MAX_LINES = 50_000
MAX_ERRORS = 100
_WINDOW = 24 * 3600
_FILES_TTL = 30 * 86400
_ENDED = frozenset({"failed", "completed", "expired", "cancelled"})


def routes(handlers: Mapping[str, Handler]) -> Mapping[str, tuple[Access, Mapping[str, Handler]]]:
    """handlers: of the routes that a batch can ask."""
    return {
        "/v1/batches": (Access.USER, {"GET": list_batches, "POST": creation(handlers)}),
        "/v1/batches/{batch}": (Access.USER, {"GET": show}),
        "/v1/batches/{batch}/cancel": (Access.USER, {"POST": cancel}),
    }


def chore(perform: Performer, room: asyncio.Semaphore) -> Callable[[Service, Store], Coroutine[None, None, None]]:
    """Works off what batches there are."""

    async def run(service: Service, store: Store) -> None:
        jobs = Jobs(service, store, perform, BATCH, room)
        await jobs.run(partial(work, service, store))

    return run


def creation(handlers: Mapping[str, Handler]) -> Handler:
    """handlers: of the routes that a batch can ask."""

    async def create(http: Http) -> Whole | Answer:
        store = store_of(http)
        order = read_batch_order(await http.json(), [path for path in ENDPOINTS if path in handlers])
        refuse_unknown(order.unknown, strict=http.service.options.strict)
        if await file_store.find(store, http.caller.owner, order.input_file_id) is None:
            raise files.no_such_file(order.input_file_id)
        created = int(http.service.clock.now())
        batch = Batch(
            id=http.service.ids.new("batch_"),
            completion_window=order.completion_window,
            created_at=created,
            endpoint=order.endpoint,
            input_file_id=order.input_file_id,
            expires_at=created + _WINDOW,
            metadata=order.metadata,
            output_expires_after=order.output_expires_after,
        )
        body = msgspec.json.encode(batch)
        await store.commit(Put(Key(http.caller.owner, BATCH, batch.id), created, body, "validating", run=NOBODY))
        http.service.new_work.set()
        unknown = tuple(f"{name} is ignored: unknown field" for name in order.unknown)
        return Whole(body, warnings=unknown)

    return create


async def show(http: Http) -> Whole | Answer:
    return Whole((await _record(http)).body)


async def list_batches(http: Http) -> Whole | Answer:
    asked = read_paging(http.query, descending=True)
    return Whole(await list_records(store_of(http), http.caller.owner, BATCH, asked))


async def cancel(http: Http) -> Whole | Answer:
    """What is done stays; what runs is stopped. Cancelling twice is cancelling once."""
    while True:
        record = await _record(http)
        if record.state in ("cancelling", "cancelled"):
            return Whole(record.body)
        if record.state in (*_ENDED, "finalizing"):
            raise Conflict(f"Cannot cancel a batch with status '{record.state}'.")
        now = int(http.service.clock.now())
        body = msgspec.json.encode(replace(_batch(record), status="cancelling", cancelling_at=now))
        # Not its version: that changes with every result. What was counted meanwhile is counted again at the end.
        change = Replace(record.key, "cancelling", body, record.run, states=frozenset({record.state}))
        try:
            await store_of(http).commit(change)
        except Refused:
            continue
        return Whole(body)


async def _record(http: Http) -> Record:
    id = http.path_params["batch"]
    record = await store_of(http).get(Key(http.caller.owner, BATCH, id))
    if record is None:
        raise NotFound(f"No batch found with id {echo(id)}.", param="id")
    return record


def _batch(record: Record) -> Batch:
    return msgspec.json.decode(record.body, type=Batch)


async def work(service: Service, store: Store, record: Record, jobs: Jobs) -> None:
    """A batch from whatever state it is in to its end. Raises Refused if another process has it."""
    job = _Job(service, store, record)
    try:
        if job.batch.status == "validating":
            await job.validate()
        if job.batch.status == "in_progress":
            await jobs.do(job)
    except* StoreFull as full:
        await job.fail(_whole_file(StoreFull.code, str(full.exceptions[0])))
    if job.batch.status not in _ENDED:
        await job.finish()


class _Job:
    """A batch in work."""

    def __init__(self, service: Service, store: Store, record: Record) -> None:
        self._service, self._store, self._key = service, store, record.key
        self._held = Held(store, record)
        self._writing = asyncio.Lock()
        self.batch = _batch(record)

    @property
    def id(self) -> str:
        return self._key.id

    @property
    def owner(self) -> str:
        return self._key.owner

    async def validate(self) -> None:
        """In progress, if every line is a request; failed if not; as it is if it was cancelled meanwhile."""
        found = await _validated(self._lines(), self.batch.endpoint, self._service.options.max_body_bytes)
        if found.errors:
            await self.fail(*found.errors)
            return
        output, errors = self._file("output"), self._file("errors")
        begun = replace(
            self.batch,
            status="in_progress",
            in_progress_at=self._now(),
            request_counts=Counts(total=found.total),
            model=found.model,
            output_file_id=output.id,
            error_file_id=errors.id,
        )
        files_of_it = (files.putting(self.owner, file, WRITING) for file in (output, errors))
        await self._change(begun, *files_of_it)

    async def tasks(self) -> AsyncGenerator[Task]:
        done = await self._done()
        async for _, data in self._lines():
            line = read_line(data, self.batch.endpoint)
            if line.custom_id not in done:
                yield Task(line.custom_id, self.batch.endpoint, line.body)

    async def keep(self, task: Task, answer: Performed) -> None:
        """The line and the count, at once. Raises Refused where the batch is no longer in progress, or not ours."""
        well = answer.status < 400
        line = result_line(self._service.ids.new("batch_req_"), task.id, answer.status, answer.id, answer.body)
        async with self._writing:
            counts, usage = self.batch.request_counts, self.batch.usage
            counts = replace(counts, completed=counts.completed + well, failed=counts.failed + (not well))
            if well:
                usage = (usage or Usage()).plus(usage_of(answer.body))
            now = replace(self.batch, request_counts=counts, usage=usage)
            target = self.batch.output_file_id if well else self.batch.error_file_id
            await self._commit(now, self._append(target, Item(line, task.id)))

    async def goes_on(self) -> bool:
        record = await self._store.get(self._key)
        return record is not None and record.state == "in_progress" and self._now() < self.batch.expires_at

    async def finish(self) -> None:
        """What is done becomes files; of what is not done it is said why."""
        await self._reload()
        counts = self.batch.request_counts
        is_done = counts.completed + counts.failed >= counts.total
        if self.batch.status == "in_progress" and not is_done:
            if self._now() < self.batch.expires_at:
                await self._end("failed", errors=Errors((_whole_file("invalid_file", "The input file was deleted."),)))
                return
            await self._tell_the_rest()
            await self._end("expired", expired_at=self._now())
        elif self.batch.status == "cancelling":
            await self._count_again()
            await self._end("cancelled", cancelled_at=self._now())
        else:
            await self._change(replace(self.batch, status="finalizing", finalizing_at=self._now()))
            await self._end("completed", completed_at=self._now())

    async def fail(self, *errors: BatchError) -> None:
        await self._reload()
        await self._end("failed", errors=Errors(errors))

    async def _end(self, status: Status, **times: object) -> None:
        if status == "failed":
            times["failed_at"] = self._now()
        output = await self._finished(self.batch.output_file_id)
        errors = await self._finished(self.batch.error_file_id)
        ended = replace(self.batch, status=status, output_file_id=output, error_file_id=errors, **times)
        await self._commit(ended, done=True)

    async def _finished(self, id: str | None) -> str | None:
        """The file, now seen by its owner; none where nothing was written to it."""
        record = None if id is None else await self._store.get(Key(self.owner, file_store.FILE, id))
        if record is None or record.state != WRITING:
            return None if record is None else id
        size = 0
        async for piece in file_store.pieces(self._store, record.key):
            size += len(piece)
        if not size:
            await self._store.commit(Delete(record.key))
            return None
        file = replace(msgspec.json.decode(record.body, type=File), bytes=size)
        await self._store.commit(Replace(record.key, file_store.PROCESSED, msgspec.json.encode(file)))
        return id

    async def _tell_the_rest(self) -> None:
        why = "This request could not be executed before the completion window expired."
        async with aclosing(self.tasks()) as left:
            async for task in left:
                line = unexecuted_line(self._service.ids.new("batch_req_"), task.id, "batch_expired", why)
                counts = self.batch.request_counts
                now = replace(self.batch, request_counts=replace(counts, failed=counts.failed + 1))
                append = self._append(self.batch.error_file_id, Item(line, task.id))
                await self._commit(now, append)

    async def _done(self) -> set[str]:
        """Ids of the requests that have a result."""
        both = (self.batch.output_file_id, self.batch.error_file_id)
        return {entry.id for id in both async for entry in self._results(id) if entry.id is not None}

    async def _count_again(self) -> None:
        well, badly, usage = 0, 0, Usage()
        async for entry in self._results(self.batch.output_file_id):
            well, usage = well + 1, usage.plus(usage_of(answer_in(entry.body)))
        async for _ in self._results(self.batch.error_file_id):
            badly += 1
        counts = replace(self.batch.request_counts, completed=well, failed=badly)
        self.batch = replace(self.batch, request_counts=counts, usage=usage if well else None)

    async def _results(self, file: str | None) -> AsyncGenerator[Entry]:
        after: int | None = None
        while file is not None:
            key = Key(self.owner, file_store.FILE, file)
            entries = await self._store.entries(key, file_store.CONTENT, after=after, limit=100)
            for entry in entries:
                yield entry
            if not entries:
                return
            after = entries[-1].position

    def _lines(self) -> AsyncGenerator[tuple[int, bytes]]:
        return file_store.lines(self._store, Key(self.owner, file_store.FILE, self.batch.input_file_id))

    def _append(self, file: str | None, item: Item) -> Append:
        assert file is not None, "the files of a batch in progress cannot be deleted"
        return Append(Key(self.owner, file_store.FILE, file), file_store.CONTENT, (item,))

    def _file(self, what: str) -> File:
        created, expiry = self._now(), self.batch.output_expires_after
        return File(
            id=self._service.ids.new("file-"),
            bytes=0,
            created_at=created,
            filename=f"{self.batch.id}_{what}.jsonl",
            purpose="batch_output",
            expires_at=created + (_FILES_TTL if expiry is None else expiry.seconds),
        )

    async def _change(self, batch: Batch, *more: Change) -> None:
        """Still ours afterwards. Where it was cancelled meanwhile it is that, and nothing is changed."""
        try:
            await self._commit(batch, *more)
        except Refused:
            await self._reload()
            if self.batch.status != "cancelling":
                raise

    async def _commit(self, batch: Batch, *more: Change, done: bool = False) -> None:
        await self._held.commit(batch.status, msgspec.json.encode(batch), *more, done=done)
        self.batch = batch

    async def _reload(self) -> None:
        await self._held.reload()
        self.batch = _batch(self._held.record)

    def _now(self) -> int:
        return int(self._service.clock.now())


class _Found(Struct, frozen=True):
    """What a validation found."""

    total: int
    model: str | None
    errors: tuple[BatchError, ...]


async def _validated(lines: AsyncGenerator[tuple[int, bytes]], endpoint: str, longest: int) -> _Found:
    """longest: bytes that a line may have."""
    errors: list[BatchError] = []
    model: str | None = None
    seen: set[str] = set()
    async for number, data in lines:
        try:
            if len(data) > longest:
                raise BadLine("line_too_long", f"This line has {len(data)} bytes; {longest} are allowed.")
            line = read_line(data, endpoint)
            if line.custom_id in seen:
                raise BadLine(
                    "duplicate_custom_id", f"`custom_id` {echo(line.custom_id)} was used before.", "custom_id"
                )
        except BadLine as bad:
            errors.append(BatchError(code=bad.code, message=bad.message, line=number, param=bad.param))
        else:
            model = model or line.model
            seen.add(line.custom_id)
        if len(seen) > MAX_LINES:
            errors.append(_whole_file("too_many_tasks", f"A batch has at most {MAX_LINES} requests."))
        if len(errors) >= MAX_ERRORS or len(seen) > MAX_LINES:
            break
    if not seen and not errors:
        errors.append(_whole_file("empty_file", "The input file has no request, or was deleted."))
    return _Found(len(seen), model, tuple(errors))


def _whole_file(code: str | None, message: str) -> BatchError:
    return BatchError(code=code or "invalid_file", message=message)
