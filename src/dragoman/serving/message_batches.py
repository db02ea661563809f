"""Anthropic's message batches: worked off behind everybody else's requests, whatever becomes of this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import aclosing
from functools import partial

import msgspec
from msgspec.structs import replace

from ..core.errors import NotFound, RequestError
from ..dialects.anthropic.batches import (
    Counts,
    MessageBatch,
    answered,
    counted,
    deleted,
    listed,
    read_listing,
    read_message_batch,
    timestamp,
    unanswered,
)
from ..dialects.body import echo
from ..store import NOBODY, Append, Delete, Entry, Item, Key, Put, Record, Refused, Replace, Store
from .answer import Answer, ReplayedAnswer
from .auth import Access
from .endpoint import Handler, Http, Whole
from .files import Bare
from .generate import off_the_loop, refuse_unknown
from .jobs import Held, Jobs, Task
from .perform import Performed, Performer
from .service import Service
from .stored import newest_first, store_of

MESSAGE_BATCH = "message_batch"
REQUESTS, RESULTS = "requests", "results"
_WINDOW = 24 * 3600
_KEPT = 29 * 86400
_PATH = "/v1/messages/batches"
JSON_LINES = (b"content-type", b"application/x-jsonl")


def routes() -> Mapping[str, tuple[Access, Mapping[str, Handler]]]:
    return {
        _PATH: (Access.USER, {"GET": list_batches, "POST": create}),
        _PATH + "/{batch}": (Access.USER, {"GET": show, "DELETE": delete}),
        _PATH + "/{batch}/cancel": (Access.USER, {"POST": cancel}),
        _PATH + "/{batch}/results": (Access.USER, {"GET": results}),
    }


def chore(perform: Performer, room: asyncio.Semaphore) -> Callable[[Service, Store], Coroutine[None, None, None]]:
    """Works off what batches there are."""

    async def run(service: Service, store: Store) -> None:
        jobs = Jobs(service, store, perform, MESSAGE_BATCH, room)
        await jobs.run(partial(work, service, store))

    return run


async def create(http: Http) -> Whole | Answer:
    store = store_of(http)
    requests, unknown = await off_the_loop(read_message_batch, await http.json())
    refuse_unknown(unknown, strict=http.service.options.strict)
    now = int(http.service.clock.now())
    batch = MessageBatch(
        id=http.service.ids.new("msgbatch_"),
        request_counts=Counts(processing=len(requests)),
        created_at=timestamp(now),
        expires_at=timestamp(now + _WINDOW),
    )
    key, body = Key(http.caller.owner, MESSAGE_BATCH, batch.id), msgspec.json.encode(batch)
    items = tuple(Item(request.params, request.custom_id) for request in requests)
    put = Put(key, now, body, "in_progress", run=NOBODY, expires=now + _KEPT)
    await store.commit(put, Append(key, REQUESTS, items))
    http.service.new_work.set()
    return Whole(body, warnings=tuple(f"{name} is ignored: unknown field" for name in unknown))


async def show(http: Http) -> Whole | Answer:
    return Whole((await _record(http)).body)


async def list_batches(http: Http) -> Whole | Answer:
    asked = read_listing(*(http.query.get(name) for name in ("limit", "after_id", "before_id")))
    found, has_more = await newest_first(store_of(http), http.caller.owner, MESSAGE_BATCH, asked)
    return Whole(listed([(record.key.id, record.body) for record in found], has_more=has_more))


async def cancel(http: Http) -> Whole | Answer:
    """What is done stays; what runs is stopped. Cancelling twice, or what has ended, changes nothing."""
    while True:
        record = await _record(http)
        if record.state != "in_progress":
            return Whole(record.body)
        now = timestamp(http.service.clock.now())
        body = msgspec.json.encode(replace(_batch(record), processing_status="canceling", cancel_initiated_at=now))
        try:
            # Not its version: that changes with every result.
            change = Replace(record.key, "canceling", body, record.run, states=frozenset({"in_progress"}))
            await store_of(http).commit(change)
        except Refused:
            continue
        return Whole(body)


async def delete(http: Http) -> Whole | Answer:
    key = _key(http)
    try:
        await store_of(http).commit(Delete(key, states=frozenset({"ended"})))
    except Refused as refused:
        if refused.found is None:
            raise _absent(key.id) from None
        raise RequestError("A message batch can be deleted only after it has ended; cancel it first.") from None
    return Whole(deleted(key.id))


async def results(http: Http) -> Whole | Answer:
    record = await _record(http)
    if record.state != "ended":
        raise RequestError("This message batch has no results yet; they are available after it has ended.")
    return ReplayedAnswer(
        _pages(store_of(http), record.key),
        Bare(),
        http.opening(http.head(JSON_LINES)),
        http.service.lookout,
    )


async def _pages(store: Store, key: Key) -> AsyncGenerator[bytes]:
    async for entry in _entries(store, key, RESULTS):
        yield entry.body


async def _entries(store: Store, key: Key, series: str) -> AsyncGenerator[Entry]:
    after: int | None = None
    while entries := await store.entries(key, series, after=after, limit=50):
        for entry in entries:
            yield entry
        after = entries[-1].position


def _key(http: Http) -> Key:
    return Key(http.caller.owner, MESSAGE_BATCH, http.path_params["batch"])


async def _record(http: Http) -> Record:
    key = _key(http)
    record = await store_of(http).get(key)
    if record is None:
        raise _absent(key.id)
    return record


def _absent(id: str) -> NotFound:
    return NotFound(f"There is no message batch {echo(id)}.")


def _batch(record: Record) -> MessageBatch:
    return msgspec.json.decode(record.body, type=MessageBatch)


async def work(service: Service, store: Store, record: Record, jobs: Jobs) -> None:
    """A batch to its end. Raises Refused if another process has it."""
    job = _Job(service, store, record)
    if record.state == "in_progress":
        await jobs.do(job)
    await job.finish()


class _Job:
    """A message batch in work."""

    def __init__(self, service: Service, store: Store, record: Record) -> None:
        self._service, self._store = service, store
        self._held = Held(store, record)
        self._writing = asyncio.Lock()

    @property
    def id(self) -> str:
        return self._held.key.id

    @property
    def owner(self) -> str:
        return self._held.key.owner

    async def tasks(self) -> AsyncGenerator[Task]:
        key = self._held.key
        done = {entry.id async for entry in _entries(self._store, key, RESULTS)}
        async for entry in _entries(self._store, key, REQUESTS):
            if entry.id is not None and entry.id not in done:
                yield Task(entry.id, "/v1/messages", entry.body)

    async def keep(self, task: Task, answer: Performed) -> None:
        async with self._writing:
            await self._add(task.id, answered(task.id, answer.status, answer.body))

    async def goes_on(self) -> bool:
        record = await self._store.get(self._held.key)
        return record is not None and record.state == "in_progress" and self._in_time()

    async def finish(self) -> None:
        """Every request has a result then."""
        await self._held.reload()
        canceled = self._held.record.state == "canceling"
        async with aclosing(self.tasks()) as left:
            async for task in left:
                await self._add(task.id, unanswered(task.id, canceled=canceled))
        counts = Counts()
        async for entry in _entries(self._store, self._held.key, RESULTS):
            counts = counted(counts, entry.body)
        batch = replace(
            _batch(self._held.record),
            processing_status="ended",
            request_counts=counts,
            ended_at=timestamp(self._service.clock.now()),
            results_url=f"{_PATH}/{self._held.key.id}/results",
        )
        await self._held.commit("ended", msgspec.json.encode(batch), done=True)

    async def _add(self, id: str, line: bytes) -> None:
        now = self._held.record
        await self._held.commit(now.state, now.body, Append(now.key, RESULTS, (Item(line, id),)))

    def _in_time(self) -> bool:
        return self._service.clock.now() < self._held.record.created + _WINDOW
