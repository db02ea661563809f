"""Uploaded files as the store has them: a file is a record, its content a series of pieces. Knows no HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec
from msgspec import Struct

from ..dialects.batches import File
from ..store import Delete, Key, Record, Refused, Store

FILE = "file"
CONTENT = "content"
UPLOADING, PROCESSED = "uploading", "processed"


class Owned(Struct, frozen=True):
    """The files of one owner, which a request may name. store: None on a server that keeps nothing."""

    store: Store | None
    owner: str

    async def find(self, id: str) -> File | None:
        """None for one that is not there, or not whole yet."""
        return None if self.store is None else await find(self.store, self.owner, id)

    async def content(self, id: str) -> bytes:
        """Of one that was found."""
        if self.store is None:
            return b""
        return b"".join([piece async for piece in pieces(self.store, Key(self.owner, FILE, id))])


async def pieces(store: Store, key: Key, at_a_time: int = 16) -> AsyncGenerator[bytes]:
    """The content, a little at a time."""
    after: int | None = None
    while entries := await store.entries(key, CONTENT, after=after, limit=at_a_time):
        yield b"".join(entry.body for entry in entries)
        after = entries[-1].position


async def lines(store: Store, key: Key) -> AsyncGenerator[tuple[int, bytes]]:
    """The lines that are not blank, with their numbers from 1."""
    number, rest = 0, b""
    # What is done with the lines of one piece is done in one go.
    async for piece in pieces(store, key, at_a_time=1):
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            number += 1
            if line.strip():
                yield number, line
    if rest.strip():
        yield number + 1, rest


async def clear(store: Store) -> None:
    """Remove what died while it was uploaded."""
    for record in await store.lapsed(FILE):
        try:
            await store.commit(Delete(record.key, states=frozenset({UPLOADING})))
        except Refused:
            # Another process was faster.
            continue


async def find(store: Store, owner: str, id: str) -> File | None:
    """None for one that is not there, or not whole yet."""
    record = await store.get(Key(owner, FILE, id))
    return None if record is None or not is_whole(record) else msgspec.json.decode(record.body, type=File)


def is_whole(record: Record) -> bool:
    return record.state == PROCESSED
