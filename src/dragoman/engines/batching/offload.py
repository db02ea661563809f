"""Blocks of keys and values in files: prompts that were computed once need not be computed again, not even after a
restart. Knows neither models nor scheduling.

A block is named by the hash of its tokens and of all before them, and lies in a file of that name. Two models make
different things of the same tokens: each has a folder of its own, named by `fingerprint`.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import blake2b
from itertools import takewhile
from pathlib import Path
from threading import Lock

log = logging.getLogger(__name__)

_SUFFIX = ".kv"
_DIGEST = 16
_MOST_IN_FLIGHT = 256 << 20
"""Bytes that wait to be written. What does not fit waits in the pool, and is lost if it goes from there."""


def fingerprint(files: Iterable[Path], *computed: str) -> str:
    """What decides on keys and values: the model's files, by name, size and time of change, and how it is computed."""
    digest = blake2b("\n".join(computed).encode(), digest_size=16)
    for file in sorted(files):
        told = file.stat()
        digest.update(f"\n{file.name} {told.st_size} {told.st_mtime_ns}".encode())
    return digest.hexdigest()


class BlockFiles:
    """directory: made where it is not there, for this user alone, since a prompt can be guessed from its keys.

    most: bytes of all files; those that were used longest ago go first. Several processes may share a directory: each
    keeps to its own bound, and a file that another took away is only not found. Used by one thread; `contains` by any.
    """

    def __init__(self, directory: Path, most: int) -> None:
        self._directory, self._most = directory, most
        self._sizes: OrderedDict[bytes, int] = OrderedDict()
        self._total = 0
        self._pending: OrderedDict[bytes, int] = OrderedDict()
        self._writer: ThreadPoolExecutor | None = None
        self._lock = Lock()
        """Over the sizes, which the writer's thread changes too, and what is in flight."""
        self._in_flight = 0
        self._clearings = 0

    def open(self) -> None:
        """Look at what is there. Raises OSError."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = [(entry.stat(), entry) for entry in os.scandir(self._directory) if entry.name.endswith(_SUFFIX)]
        self._sizes.clear()
        self._pending.clear()
        for told, entry in sorted(found, key=lambda pair: pair[0].st_mtime_ns):
            with suppress(ValueError):
                self._sizes[bytes.fromhex(entry.name.removesuffix(_SUFFIX))] = told.st_size
        self._total = sum(self._sizes.values())
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="kv-writer")

    def close(self) -> None:
        """Waits for what is being written."""
        if self._writer:
            self._writer.shutdown()

    def contains(self, name: bytes) -> bool:
        return name in self._sizes

    def load(self, names: Sequence[bytes]) -> list[bytes]:
        """The contents of the longest prefix of these blocks that is here.

        What follows one that is gone, or is not as it was, is doubted too: it will be written again.
        """
        loaded: list[bytes] = []
        for name in takewhile(self.contains, names):
            contents = self._read(name)
            if contents is None:
                for doubted in names[len(loaded) :]:
                    self._forget(doubted)
                break
            loaded.append(contents)
        return loaded

    def store(self, name: bytes, block: int) -> None:
        """That block of the pool is worth a file, once it is computed: `spill` writes it."""
        if name not in self._sizes:
            self._pending[name] = block

    def spill(self, find: Callable[[bytes], int | None], save: Callable[[int], bytes], most: int) -> bool:
        """Write some of what waits, at most so many blocks; True if more could be written now.

        find: the block that has this name still. save: its contents.
        """
        while self._pending and most and self._in_flight < _MOST_IN_FLIGHT:
            name, block = self._pending.popitem(last=False)
            if find(name) == block:
                self._write(name, save(block))
                most -= 1
        return bool(self._pending) and self._in_flight < _MOST_IN_FLIGHT

    def clear(self) -> None:
        """Nothing of what was computed so far is found any more."""
        self._pending.clear()
        with self._lock:
            names, self._total = list(self._sizes), 0
            self._sizes.clear()
            self._clearings += 1
        if self._writer:
            self._writer.submit(self._delete, names)

    def _write(self, name: bytes, contents: bytes) -> None:
        if self._writer:
            with self._lock:
                self._in_flight += len(contents)
            self._writer.submit(self._put, name, contents, self._clearings)

    def _put(self, name: bytes, contents: bytes, clearings: int) -> None:
        path = self._path(name)
        passing = path.with_name(f".{secrets.token_hex(8)}")
        try:
            # Whole or not at all, also for another process that looks at the same time.
            passing.write_bytes(_digest(name, contents) + contents)
            passing.replace(path)
        except OSError as error:
            log.warning("the KV cache is not saved to disk: %s", error)
            passing.unlink(missing_ok=True)
        else:
            self._delete(self._kept(name, _DIGEST + len(contents), clearings))
        with self._lock:
            self._in_flight -= len(contents)

    def _kept(self, name: bytes, size: int, clearings: int) -> list[bytes]:
        """It can be found from now on. What has to go for it: itself, if all was forgotten while it was written."""
        gone: list[bytes] = []
        with self._lock:
            if clearings != self._clearings:
                return [name]
            self._total += size - self._sizes.pop(name, 0)
            self._sizes[name] = size
            while self._total > self._most:
                oldest, freed = self._sizes.popitem(last=False)
                self._total -= freed
                gone.append(oldest)
        return gone

    def _read(self, name: bytes) -> bytes | None:
        path = self._path(name)
        try:
            data = path.read_bytes()
            os.utime(path)
        except OSError:
            return None
        digest, contents = data[:_DIGEST], data[_DIGEST:]
        if digest != _digest(name, contents):
            return None
        with self._lock:
            if name in self._sizes:
                self._sizes.move_to_end(name)
        return contents

    def _forget(self, name: bytes) -> None:
        with self._lock:
            self._total -= self._sizes.pop(name, 0)

    def _delete(self, names: Iterable[bytes]) -> None:
        for name in names:
            with suppress(OSError):
                self._path(name).unlink()

    def _path(self, name: bytes) -> Path:
        return self._directory / (name.hex() + _SUFFIX)


def _digest(name: bytes, contents: bytes) -> bytes:
    return blake2b(contents, digest_size=_DIGEST, key=name).digest()
