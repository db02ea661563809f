"""KV cache offload to files: computed prompts need not be computed again, not even
after a restart.

A file is named by the block's hash, which covers its tokens and all before them. Two
models have different keys and values for the same tokens, so each model has its own
directory, named by `compute_fingerprint`.
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
"""Limit of bytes in flight to the writer. Further blocks stay in the pool, and are lost
if they are evicted first.
"""


def compute_fingerprint(files: Iterable[Path], *settings: str) -> str:
    """Compute a hash of all that determines keys and values: the model's files (name,
    size, modification time) and the settings of the computation.
    """
    digest = blake2b("\n".join(settings).encode(), digest_size=16)
    for file in sorted(files):
        info = file.stat()
        digest.update(f"\n{file.name} {info.st_size} {info.st_mtime_ns}".encode())
    return digest.hexdigest()


class BlockFiles:
    """Blocks in files of one directory, with LRU eviction.

    directory: created with access for this user only, since a prompt can be inferred
        from its keys.
    max_bytes: limit of all files together; the least recently used are evicted first.

    Several processes may share a directory: each enforces its own limit, and a file
    that another one deleted is a cache miss. Used by one thread; `contains` by any.
    """

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._sizes: OrderedDict[bytes, int] = OrderedDict()
        self._total = 0
        self._pending: OrderedDict[bytes, int] = OrderedDict()
        self._writer: ThreadPoolExecutor | None = None
        self._lock = Lock()
        """Guards the file sizes, which the writer thread also changes, and the bytes in
        flight.
        """
        self._in_flight = 0
        self._generation = 0

    def open(self) -> None:
        """Scan the directory. Raises OSError."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        entries = [
            (entry.stat(), entry)
            for entry in os.scandir(self._directory)
            if entry.name.endswith(_SUFFIX)
        ]
        self._sizes.clear()
        self._pending.clear()
        # The oldest first: the order of the dict is that of eviction.
        for info, entry in sorted(entries, key=lambda pair: pair[0].st_mtime_ns):
            # A file whose name is not a hash is not a cached block.
            with suppress(ValueError):
                self._sizes[bytes.fromhex(entry.name.removesuffix(_SUFFIX))] = info.st_size
        self._total = sum(self._sizes.values())
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="kv-writer")

    def close(self) -> None:
        """Wait for pending writes."""
        if self._writer:
            self._writer.shutdown()

    def contains(self, block_hash: bytes) -> bool:
        return block_hash in self._sizes

    def load(self, hashes: Sequence[bytes]) -> list[bytes]:
        """Read the contents of the longest prefix of these blocks that is present.

        Blocks after a missing or corrupt one are dropped too, and are written again.
        """
        loaded: list[bytes] = []
        for block_hash in takewhile(self.contains, hashes):
            path = self._build_path(block_hash)
            try:
                data = path.read_bytes()
                # A restart orders the files by their times, so that the least recently
                # used is still evicted first.
                os.utime(path)
            except OSError:
                data = b""
            digest = data[:_DIGEST_SIZE]
            contents = data[_DIGEST_SIZE:]
            # A file that is missing, or was cut off by a crash or a full disk: the
            # prompt is computed instead.
            if digest != _compute_digest(block_hash, contents):
                for stale_hash in hashes[len(loaded) :]:
                    with self._lock:
                        self._total -= self._sizes.pop(stale_hash, 0)
                break
            with self._lock:
                if block_hash in self._sizes:
                    self._sizes.move_to_end(block_hash)
            loaded.append(contents)
        return loaded

    def enqueue(self, block_hash: bytes, block: int) -> None:
        """Enqueue a block of the pool; `offload` writes it once it is computed."""
        if block_hash not in self._sizes:
            self._pending[block_hash] = block

    def offload(
        self, find: Callable[[bytes], int | None], save: Callable[[int], bytes], max_blocks: int
    ) -> bool:
        """Write at most `max_blocks` queued blocks. Returns whether more could be
        written now.

        find: returns the block that is cached under a hash, or None.
        save: serializes a block's contents.
        """
        while self._pending and max_blocks and self._in_flight < _MAX_IN_FLIGHT:
            block_hash, block = self._pending.popitem(last=False)
            # If it was evicted meanwhile, the block may hold other tokens.
            if find(block_hash) == block:
                contents = save(block)
                if self._writer:
                    with self._lock:
                        self._in_flight += len(contents)
                    self._writer.submit(self._write_file, block_hash, contents, self._generation)
                max_blocks -= 1
        return bool(self._pending) and self._in_flight < _MAX_IN_FLIGHT

    def clear(self) -> None:
        """Delete all blocks that were written so far."""
        self._pending.clear()
        with self._lock:
            hashes = list(self._sizes)
            self._total = 0
            self._sizes.clear()
            self._generation += 1
        if self._writer:
            self._writer.submit(self._delete, hashes)

    def forget(self, hashes: Iterable[bytes]) -> None:
        """Delete these blocks, whose contents are invalid. Other blocks that are being
        written are not kept either.
        """
        invalid = list(hashes)
        for block_hash in invalid:
            self._pending.pop(block_hash, None)
        with self._lock:
            for block_hash in invalid:
                self._total -= self._sizes.pop(block_hash, 0)
            self._generation += 1
        if self._writer:
            self._writer.submit(self._delete, invalid)

    def _write_file(self, block_hash: bytes, contents: bytes, generation: int) -> None:
        path = self._build_path(block_hash)
        temporary = path.with_name(f".{secrets.token_hex(8)}")
        try:
            # Write and rename, so that a concurrent reader in another process never
            # sees a partial file.
            temporary.write_bytes(_compute_digest(block_hash, contents) + contents)
            temporary.replace(path)
            size = _DIGEST_SIZE + len(contents)
        except OSError as error:
            log.warning("the KV cache is not saved to disk: %s", error)
            temporary.unlink(missing_ok=True)
            size = 0
        evicted: list[bytes] = []
        with self._lock:
            self._in_flight -= len(contents)
            if generation != self._generation:
                # The cache was cleared meanwhile.
                evicted.append(block_hash)
            elif size:
                self._total += size - self._sizes.pop(block_hash, 0)
                self._sizes[block_hash] = size
            while self._total > self._max_bytes:
                oldest, freed = self._sizes.popitem(last=False)
                self._total -= freed
                evicted.append(oldest)
        self._delete(evicted)

    def _delete(self, hashes: Iterable[bytes]) -> None:
        for block_hash in hashes:
            with suppress(OSError):
                self._build_path(block_hash).unlink()

    def _build_path(self, block_hash: bytes) -> Path:
        return self._directory / (block_hash.hex() + _SUFFIX)


def _compute_digest(block_hash: bytes, contents: bytes) -> bytes:
    return blake2b(contents, digest_size=_DIGEST_SIZE, key=block_hash).digest()
