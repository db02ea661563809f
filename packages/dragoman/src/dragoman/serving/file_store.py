"""Storage of files, independent of HTTP: a file is a record of the store, its content a
series of chunks.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec
from msgspec import Struct

from ..dialects.openai_files import FileObject
from ..store import CommitConflict, Delete, Key, Put, Record, Store

FILE_KIND = "file"
CONTENT_SERIES = "content"
UPLOADING = "uploading"
PROCESSED = "processed"


class OwnerFiles(Struct, frozen=True):
    """The files that an owner's request can refer to.

    store: None if storage is disabled.
    """

    store: Store | None
    owner: str

    async def find(self, id: str) -> FileObject | None:
        """Return the file, or None if it is missing or incomplete."""
        return None if self.store is None else await find_file(self.store, self.owner, id)

    async def content(self, id: str) -> bytes:
        """Return the content of an existing file."""
        if self.store is None:
            return b""
        return b"".join(
            [chunk async for chunk in read_chunks(self.store, Key(self.owner, FILE_KIND, id))]
        )


async def read_chunks(store: Store, key: Key, batch_size: int = 16) -> AsyncGenerator[bytes]:
    """Iterate over the content, `batch_size` chunks at a time."""
    cursor: int | None = None
    # The cursor is a position, which stays valid if chunks are added meanwhile.
    while entries := await store.load_entries(key, CONTENT_SERIES, after=cursor, limit=batch_size):
        yield b"".join(entry.body for entry in entries)
        cursor = entries[-1].position


async def read_lines(store: Store, key: Key) -> AsyncGenerator[tuple[int, bytes]]:
    """Iterate over the non-blank lines with their numbers, from 1."""
    number = 0
    partial_line = b""
    # One chunk at a time, since the lines of a chunk are processed without yielding to
    # the event loop.
    async for chunk in read_chunks(store, key, batch_size=1):
        # A line can span chunks.
        *complete_lines, partial_line = (partial_line + chunk).split(b"\n")
        for line in complete_lines:
            number += 1
            if line.strip():
                yield number, line
    if partial_line.strip():
        yield number + 1, partial_line


async def delete_abandoned_uploads(store: Store) -> None:
    """Delete incomplete uploads of processes that have ended."""
    for record in await store.list_abandoned(FILE_KIND):
        try:
            await store.commit(Delete(record.key, states=frozenset({UPLOADING})))
        except CommitConflict:
            # Another process has deleted it.
            continue


async def find_file(store: Store, owner: str, id: str) -> FileObject | None:
    """Return the file, or None if it is missing or incomplete."""
    record = await store.get(Key(owner, FILE_KIND, id))
    return (
        None
        if record is None or not is_complete(record)
        else msgspec.json.decode(record.body, type=FileObject)
    )


def is_complete(record: Record) -> bool:
    return record.state == PROCESSED


def build_put(owner: str, file: FileObject, state: str, run: str | None = None) -> Put:
    """Build the operation that stores a file's record. A file in the state `UPLOADING`
    is hidden.
    """
    body = msgspec.json.encode(file)
    return Put(
        Key(owner, FILE_KIND, file.id),
        file.created_at,
        body,
        state,
        run=run,
        expires=file.expires_at,
        pinned=True,
    )
