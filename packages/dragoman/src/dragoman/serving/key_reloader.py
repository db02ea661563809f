"""Re-reading of the keys file while the server runs: when it changes, and on request."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from ..isolation.daemon_thread import run_in_daemon_thread
from ..tenants import KeyFileError, Tenant, describe_key_file_error, parse_key_file
from .auth import Keyring

log = logging.getLogger(__name__)

POLL_INTERVAL = 0.5
"""Seconds between two reads. A change is used when two reads have seen it, so a revoked
key is rejected after a second.
"""

CHECK_INTERVAL = 0.25
"""Seconds between two checks of the file's metadata that requests cause."""

CHECK_TIMEOUT = 1.0
"""Seconds for which requests wait for such a check: a network file system that hangs
must not stop the server.
"""

RELOAD_TIMEOUT = 3.0
"""Seconds for which a reload waits for the file. A worker that has not answered after
five is replaced, which would help nothing here.
"""

SETTLE_TIME = 0.25
"""Seconds after which a file that no one has written to is whole."""


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


class _Stamp(Struct, frozen=True):
    """Metadata that differs after a change of the file, but for rare cases, which the
    polls find.
    """

    mtime_ns: int
    ctime_ns: int
    size: int
    inode: int
    device: int


class KeyReloader:
    """Reads the keys file again. An invalid one is not used: the former keys stay.

    The content is compared, not the time of the last change: that has a resolution of
    seconds on some file systems, is cached by NFS clients, and is kept by some tools.
    Opening the file revalidates the cache of an NFS client, and follows the links that
    Kubernetes replaces when a Secret changes.

    Requests look at its metadata too, since a process that was stopped or has a loaded
    event loop polls late, and must not accept a revoked key meanwhile.

    path: the file.
    keyring: gets its keys.
    now: Unix time in seconds, as the file's modification times are.
    monotonic: seconds that only grow.
    check_timeout: seconds for which requests wait for the file.
    reload_timeout: seconds for which `reload` waits for it.
    """

    def __init__(
        self,
        path: Path,
        keyring: Keyring,
        *,
        now: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        check_timeout: float = CHECK_TIMEOUT,
        reload_timeout: float = RELOAD_TIMEOUT,
    ) -> None:
        self.path = path
        self._keyring = keyring
        self._now = now
        self._monotonic = monotonic
        self._check_timeout = check_timeout
        self._reload_timeout = reload_timeout
        self._checked = float("-inf")
        """When a request has looked at the file's metadata last."""
        self._check: asyncio.Task[None] | None = None
        """The check that requests wait for."""
        self._is_hung = False
        """Whether requests no longer wait for it."""
        self._stamp: _Stamp | None = None
        """Metadata of the file when its content was last used because of a request."""
        self._lock = asyncio.Lock()
        """Held while the file is read: an earlier state must not be used later."""
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
        tasks = [task for task in (self._task, self._check) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def reload(self, path: Path | None = None) -> None:
        """Read the file, and use its keys.

        path: another file, which is used from now on if it is valid.

        Raises:
            KeyFileError: it cannot be read in time, or is invalid.
        """
        path = path or self.path
        try:
            # A poll that hangs holds the lock.
            async with asyncio.timeout(self._reload_timeout) as deadline, self._lock:
                state = await self._read(path)
                # A state that is recorded as used must be used.
                deadline.reschedule(None)
                if path == self.path:
                    self._used = state.digest
                await self._use(path, state)
                self._used = state.digest
                self.path = path
        except TimeoutError:
            raise KeyFileError(
                f"{path} cannot be read: its file system does not respond within "
                f"{self._reload_timeout:g} seconds"
            ) from None

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

    async def refresh(self) -> None:
        """Use the keys of a file that has changed, before a request is decided.

        A file that is just being written is left to the next call, and one that cannot
        be read to `poll`. If the file system does not respond within `check_timeout`, the
        former keys decide, as they do for a file that is missing: whoever can read it no
        more must not lose the service.
        """
        now = self._monotonic()
        if now - self._checked < CHECK_INTERVAL:
            return
        if self._check is None:
            self._check = asyncio.create_task(self._check_file(now))
            self._check.add_done_callback(self._on_checked)
        if self._is_hung:
            return
        # All requests wait for the same check, so that none passes before it has ended.
        _, pending = await asyncio.wait((self._check,), timeout=self._check_timeout)
        if pending and not self._is_hung:
            self._is_hung = True
            log.error(
                "%s cannot be checked: its file system does not respond; the former keys stay "
                "valid, revoked ones too",
                self.path,
            )

    async def _check_file(self, now: float) -> None:
        stamp = await run_in_daemon_thread(lambda: _read_stamp(self.path))
        # A time in the future is that of another clock, and tells nothing.
        if (
            stamp is not None
            and stamp != self._stamp
            and not 0 <= self._now() - stamp.mtime_ns / 1e9 < SETTLE_TIME
        ):
            async with self._lock:
                state = await self._read(self.path)
                if state.digest != self._used:
                    await self._use_changed(state)
                self._stamp = stamp
        self._checked = now

    def _on_checked(self, check: asyncio.Task[None]) -> None:
        self._check = None
        if self._is_hung:
            self._is_hung = False
            log.warning("%s can be checked again", self.path)
        if not check.cancelled() and (error := check.exception()) is not None:
            log.error("%s could not be checked for changes", self.path, exc_info=error)

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
        # Not the threads of the loop, which downloads may occupy, and which are joined at
        # exit.
        return await run_in_daemon_thread(lambda: _read_state(path))

    async def _use(self, path: Path, state: _FileState) -> bool:
        """Use the keys of the file, and return whether they have changed. Raises
        KeyFileError.
        """
        tenants = await run_in_daemon_thread(lambda: _parse_state(path, state))
        has_changed = tenants != self._keyring.named_tenants
        self._keyring.replace_tenants(tenants)
        return has_changed


def _read_stamp(path: Path) -> _Stamp | None:
    """Return the file's metadata; None if there are none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return _Stamp(
        status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino, status.st_dev
    )


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
