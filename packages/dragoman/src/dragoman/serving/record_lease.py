"""The lease of a record of the store that this process has claimed."""

from __future__ import annotations

import msgspec

from ..store import Change, CommitConflict, Delete, Key, Record, Replace, Store


class RecordLease:
    """A record that this process has claimed.

    Every write is conditional on the expected version, so it never overwrites another
    process's change or a client's cancellation.
    """

    def __init__(self, store: Store, record: Record) -> None:
        self._store = store
        self.record = record

    @property
    def key(self) -> Key:
        return self.record.key

    async def commit(
        self, state: str, body: bytes, *changes: Change, release: bool = False
    ) -> None:
        """Write the record with further changes.

        release: end this process's claim on the record.

        Raises:
            CommitConflict: the record has changed.
        """
        run = None if release else self._store.run
        await self._store.commit(
            *changes, Replace(self.key, state, body, run, version=self.record.version)
        )
        # Every Replace increments the version, in all stores, so the record need not be
        # read again.
        version = self.record.version + 1
        self.record = msgspec.structs.replace(
            self.record, state=state, body=body, run=run, version=version
        )

    async def reload(self) -> None:
        """Read the record again. Raises CommitConflict: it was deleted, or another
        process has claimed it.
        """
        record = await self._store.get(self.key)
        if record is None or record.run != self._store.run:
            raise CommitConflict(Delete(self.key), None if record is None else record.state)
        self.record = record
