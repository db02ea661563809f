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
_DIGEST_SIZE = 16
_MAX_IN_FLIGHT = 256 << 20
"""Bytes that wait to be written. What does not fit waits in the pool, and is lost if it goes from there."""


def compute_fingerprint(files: Iterable[Path], *settings: str) -> str:
    """What decides on keys and values: the model's files, by name, size and time of change, and how it is computed."""
    digest = blake2b("\n".join(settings).encode(), digest_size=16)
    for file in sorted(files):
        info = file.stat()
        digest.update(f"\n{file.name} {info.st_size} {info.st_mtime_ns}".encode())
    return digest.hexdigest()


class BlockFiles:
    """directory: made where it is not there, for this user alone, since a prompt can be guessed from its keys.

    most: bytes of all files; those that were used longest ago go first. Several processes may share a directory: each
    keeps to its own bound, and a file that another took away is only not found. Used by one thread; `contains` by any.
    """

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self._directory, self._max_bytes = directory, max_bytes
        self._sizes: OrderedDict[bytes, int] = OrderedDict()
        self._total = 0
        self._pending: OrderedDict[bytes, int] = OrderedDict()
        self._writer: ThreadPoolExecutor | None = None
        self._lock = Lock()
        """Over the sizes, which the writer's thread changes too, and what is in flight."""
        self._in_flight = 0
        self._generation = 0

    def open(self) -> None:
        """Look at what is there. Raises OSError."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        entries = [(entry.stat(), entry) for entry in os.scandir(self._directory) if entry.name.endswith(_SUFFIX)]
        self._sizes.clear()
        self._pending.clear()
        for info, entry in sorted(entries, key=lambda pair: pair[0].st_mtime_ns):
            with suppress(ValueError):
                self._sizes[bytes.fromhex(entry.name.removesuffix(_SUFFIX))] = info.st_size
        self._total = sum(self._sizes.values())
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="kv-writer")

    def close(self) -> None:
        """Waits for what is being written."""
        if self._writer:
            self._writer.shutdown()

    def contains(self, block_hash: bytes) -> bool:
        return block_hash in self._sizes

    def load(self, hashes: Sequence[bytes]) -> list[bytes]:
        """The contents of the longest prefix of these blocks that is here.

        What follows one that is gone, or is not as it was, is doubted too: it will be written again.
        """
        loaded: list[bytes] = []
        for block_hash in takewhile(self.contains, hashes):
            contents = self._read(block_hash)
            if contents is None:
                for stale_hash in hashes[len(loaded) :]:
                    self._unregister(stale_hash)
                break
            loaded.append(contents)
        return loaded

    def enqueue(self, block_hash: bytes, block: int) -> None:
        """That block of the pool is worth a file, once it is computed: `spill` writes it."""
        if block_hash not in self._sizes:
            self._pending[block_hash] = block

    def offload(self, find: Callable[[bytes], int | None], save: Callable[[int], bytes], max_blocks: int) -> bool:
        """Write some of what waits, at most so many blocks; True if more could be written now.

        find: the block that has this name still. save: its contents.
        """
        while self._pending and max_blocks and self._in_flight < _MAX_IN_FLIGHT:
            block_hash, block = self._pending.popitem(last=False)
            if find(block_hash) == block:
                self._submit_write(block_hash, save(block))
                max_blocks -= 1
        return bool(self._pending) and self._in_flight < _MAX_IN_FLIGHT

    def clear(self) -> None:
        """Nothing of what was computed so far is found any more."""
        self._pending.clear()
        with self._lock:
            hashes, self._total = list(self._sizes), 0
            self._sizes.clear()
            self._generation += 1
        if self._writer:
            self._writer.submit(self._delete, hashes)

    def _submit_write(self, block_hash: bytes, contents: bytes) -> None:
        if self._writer:
            with self._lock:
                self._in_flight += len(contents)
            self._writer.submit(self._write_file, block_hash, contents, self._generation)

    def _write_file(self, block_hash: bytes, contents: bytes, generation: int) -> None:
        path = self._build_path(block_hash)
        temporary = path.with_name(f".{secrets.token_hex(8)}")
        try:
            # Whole or not at all, also for another process that looks at the same time.
            temporary.write_bytes(_compute_digest(block_hash, contents) + contents)
            temporary.replace(path)
        except OSError as error:
            log.warning("the KV cache is not saved to disk: %s", error)
            temporary.unlink(missing_ok=True)
        else:
            self._delete(self._register(block_hash, _DIGEST_SIZE + len(contents), generation))
        with self._lock:
            self._in_flight -= len(contents)

    def _register(self, block_hash: bytes, size: int, generation: int) -> list[bytes]:
        """It can be found from now on. What has to go for it: itself, if all was forgotten while it was written."""
        evicted: list[bytes] = []
        with self._lock:
            if generation != self._generation:
                return [block_hash]
            self._total += size - self._sizes.pop(block_hash, 0)
            self._sizes[block_hash] = size
            while self._total > self._max_bytes:
                oldest, freed = self._sizes.popitem(last=False)
                self._total -= freed
                evicted.append(oldest)
        return evicted

    def _read(self, block_hash: bytes) -> bytes | None:
        path = self._build_path(block_hash)
        try:
            data = path.read_bytes()
            os.utime(path)
        except OSError:
            return None
        digest, contents = data[:_DIGEST_SIZE], data[_DIGEST_SIZE:]
        if digest != _compute_digest(block_hash, contents):
            return None
        with self._lock:
            if block_hash in self._sizes:
                self._sizes.move_to_end(block_hash)
        return contents

    def _unregister(self, block_hash: bytes) -> None:
        with self._lock:
            self._total -= self._sizes.pop(block_hash, 0)

    def _delete(self, hashes: Iterable[bytes]) -> None:
        for block_hash in hashes:
            with suppress(OSError):
                self._build_path(block_hash).unlink()

    def _build_path(self, block_hash: bytes) -> Path:
        return self._directory / (block_hash.hex() + _SUFFIX)


def _compute_digest(block_hash: bytes, contents: bytes) -> bytes:
    return blake2b(contents, digest_size=_DIGEST_SIZE, key=block_hash).digest()
