"""Uploaded files as the store has them: a file is a record, its content a series of pieces. Knows no HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec
from msgspec import Struct

from ..dialects.batches import FileObject
from ..store import CommitConflict, Delete, Key, Record, Store

FILE_KIND = "file"
CONTENT_SERIES = "content"
UPLOADING, PROCESSED = "uploading", "processed"


class OwnerFiles(Struct, frozen=True):
    """The files of one owner, which a request may name. store: None on a server that keeps nothing."""

    store: Store | None
    owner: str

    async def find(self, id: str) -> FileObject | None:
        """None for one that is not there, or not whole yet."""
        return None if self.store is None else await find_file(self.store, self.owner, id)

    async def content(self, id: str) -> bytes:
        """Of one that was found."""
        if self.store is None:
            return b""
        return b"".join([chunk async for chunk in read_chunks(self.store, Key(self.owner, FILE_KIND, id))])


async def read_chunks(store: Store, key: Key, batch_size: int = 16) -> AsyncGenerator[bytes]:
    """The content, a little at a time."""
    cursor: int | None = None
    while entries := await store.entries(key, CONTENT_SERIES, after=cursor, limit=batch_size):
        yield b"".join(entry.body for entry in entries)
        cursor = entries[-1].position


async def read_lines(store: Store, key: Key) -> AsyncGenerator[tuple[int, bytes]]:
    """The lines that are not blank, with their numbers from 1."""
    number, rest = 0, b""
    # What is done with the lines of one piece is done in one go.
    async for chunk in read_chunks(store, key, batch_size=1):
        *complete_lines, rest = (rest + chunk).split(b"\n")
        for line in complete_lines:
            number += 1
            if line.strip():
                yield number, line
    if rest.strip():
        yield number + 1, rest


async def delete_abandoned_uploads(store: Store) -> None:
    """Remove what died while it was uploaded."""
    for record in await store.list_abandoned(FILE_KIND):
        try:
            await store.commit(Delete(record.key, states=frozenset({UPLOADING})))
        except CommitConflict:
            # Another process was faster.
            continue


async def find_file(store: Store, owner: str, id: str) -> FileObject | None:
    """None for one that is not there, or not whole yet."""
    record = await store.get(Key(owner, FILE_KIND, id))
    return None if record is None or not is_complete(record) else msgspec.json.decode(record.body, type=FileObject)


def is_complete(record: Record) -> bool:
    return record.state == PROCESSED
