"""Re-reading of the keys file while the server runs: when it changes, and on request."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from ..tenants import KeyFileError, Tenant, describe_key_file_error, parse_key_file
from .auth import Keyring

log = logging.getLogger(__name__)

POLL_INTERVAL = 0.5
"""Seconds between two reads. A change is used when two reads have seen it, so a revoked
key is rejected after a second.
"""


class KeysReport(Struct, frozen=True):
    """The result of reading the keys again in all processes of a server.

    processes: number of the processes that use the file's keys now.
    problem: the reason why the file cannot be used; None if it was used.
    late: names of the processes that have not responded.
    """

    processes: int = 0
    problem: str | None = None
    late: tuple[str, ...] = ()


class KeysExchange(Protocol):
    """Connects the workers of a server, so that one request reaches all."""

    async def reload_keys(self) -> KeysReport:
        """Let all workers read the keys again.

        Raises:
            ConnectionError: the other workers cannot be reached.
        """
        ...


class _FileState(Struct, frozen=True):
    """What a read of the file has returned.

    digest: identifies it; for an error, its text.
    """

    content: bytes | OSError
    digest: bytes
    is_deleted: bool = False
    """Whether no folder has the file any more. A file that is mounted by itself is then
    what it was before another one replaced it.
    """


class KeyReloader:
    """Reads the keys file again. An invalid one is not used: the former keys stay.

    The content is compared, not the time of the last change: that has a resolution of
    seconds on some file systems, is cached by NFS clients, and is kept by some tools.
    Opening the file revalidates the cache of an NFS client, and follows the links that
    Kubernetes replaces when a Secret changes.

    path: the file.
    keyring: gets its keys.
    """

    def __init__(self, path: Path, keyring: Keyring) -> None:
        self.path = path
        self._keyring = keyring
        self._lock = asyncio.Lock()
        """Held while the file is read: an earlier state must not be used later."""
        # Not the threads of the loop, which downloads may occupy.
        self._executor = ThreadPoolExecutor(1, "keys-file")
        self._used: bytes | None = None
        """Digest of the state that was used or reported last."""
        self._seen: bytes | None = None
        """Digest of the state at the last poll."""
        self._has_warned = False
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        # The file was read before the models were loaded, which may have taken minutes.
        async with self._lock:
            await self._use_changed(await self._read(self.path))
        self._task = asyncio.create_task(self._watch())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        self._executor.shutdown(wait=False)

    async def reload(self, path: Path | None = None) -> None:
        """Read the file, and use its keys.

        path: another file, which is used from now on if it is valid.

        Raises:
            KeyFileError: it cannot be read, or is invalid.
        """
        async with self._lock:
            path = path or self.path
            state = await self._read(path)
            if path == self.path:
                self._used = state.digest
            await self._use(path, state)
            self._used = state.digest
            self.path = path

    async def poll(self) -> None:
        """Read the file, and use its keys if they have changed.

        A state is used when two polls have seen it: an editor may be writing the file,
        and half of it can be valid. An error is logged once.
        """
        async with self._lock:
            state = await self._read(self.path)
            if state.is_deleted and not self._has_warned:
                self._has_warned = True
                log.error(
                    "%s was deleted or replaced outside of this container, which still sees the "
                    "former file: mount its folder instead of the file",
                    self.path,
                )
            is_stable = state.digest == self._seen
            self._seen = state.digest
            if is_stable and state.digest != self._used:
                await self._use_changed(state)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(POLL_INTERVAL)
            try:
                await self.poll()
            except Exception:
                # A watch that ended would let revoked keys in, and nothing would tell.
                log.exception("the keys file could not be checked for changes")

    async def _use_changed(self, state: _FileState) -> None:
        """Use the keys of the file. An error is logged."""
        self._used = state.digest
        try:
            if await self._use(self.path, state):
                log.info("keys reloaded: %s has changed", self.path)
        except KeyFileError as error:
            log.error("keys not reloaded, the former ones stay valid: %s", error)

    async def _read(self, path: Path) -> _FileState:
        return await asyncio.get_running_loop().run_in_executor(self._executor, _read_state, path)

    async def _use(self, path: Path, state: _FileState) -> bool:
        """Use the keys of the file, and return whether they have changed. Raises
        KeyFileError.
        """
        tenants = await asyncio.get_running_loop().run_in_executor(
            self._executor, _parse_state, path, state
        )
        has_changed = tenants != self._keyring.named_tenants
        self._keyring.replace_tenants(tenants)
        return has_changed


def _read_state(path: Path) -> _FileState:
    try:
        with path.open("rb") as file:
            is_deleted = os.fstat(file.fileno()).st_nlink == 0
            content = file.read()
    except OSError as error:
        return _FileState(error, str(error).encode())
    return _FileState(content, hashlib.sha256(content).digest(), is_deleted)


def _parse_state(path: Path, state: _FileState) -> Mapping[str, Tenant]:
    if isinstance(state.content, OSError):
        raise KeyFileError(describe_key_file_error(path, state.content))
    return parse_key_file(path, state.content)
