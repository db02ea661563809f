"""KV offloading: a second tier of the KV cache in host memory, and the link over which
its chunks are transferred.

The rules are those of vLLM 0.33's native offloading (OffloadingConnector) for full
attention: every step stores the chunks that its sequences complete; a waiting sequence
loads those that follow its prefix in the device's cache.

A chunk in host memory is being written, idle, or being read by one or more transfers.
Only idle chunks are evicted, the least recently used first. All chunks that a request
uses share its recency, ordered so that the end of a prefix is evicted before its
beginning; the end of the request makes them the most recent ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import chain, takewhile
from mmap import PAGESIZE

from msgspec import Struct

from dragoman.core.metrics import Histogram
from .sequence import SimulatedSequence

_WRITTEN = -1
"""Stands for the reference count of a chunk whose store has not ended."""


class HostCacheUse:
    """One request's use of the cache.

    positions: index of each of its chunks, by key.
    used: keys of the chunks that it stored, found stored, or loaded.
    rank: recency of all of them until the request ends; 0 before it uses any.
    """

    __slots__ = ("positions", "rank", "used")

    def __init__(self) -> None:
        self.positions: dict[bytes, int] = {}
        self.used: set[bytes] = set()
        self.rank = 0


class HostCache:
    """A cache of `size` chunks, whose keys are hashes of their contents."""

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError("the host's part of the KV cache must hold at least 1 chunk")
        self.size = size
        self.num_idle = self.num_written = 0
        self._counts: dict[bytes, int] = {}
        self._ranks: dict[bytes, tuple[int, int]] = {}
        self._heap: list[tuple[tuple[int, int], bytes]] = []
        """Idle chunks by recency; also outdated entries, which are skipped."""
        self._last_rank = 0

    def __len__(self) -> int:
        """Number of chunks, including those being written."""
        return len(self._counts)

    @property
    def usage(self) -> float:
        """Share of the cache that transfers hold
        (`vllm:kv_offload_cpu_cache_usage_perc`).
        """
        return (len(self._counts) - self.num_idle) / self.size

    @property
    def write_usage(self) -> float:
        """Share of the cache that stores hold."""
        return self.num_written / self.size

    def has(self, key: bytes) -> bool:
        """Whether the cache has the chunk, complete or being written."""
        return key in self._counts

    def is_written(self, key: bytes) -> bool:
        """Whether the chunk's store has not ended."""
        return self._counts.get(key) == _WRITTEN

    def list_chunks(self) -> dict[bytes, int]:
        """List the chunks with the number of transfers that read each; -1 while a chunk
        is being written.
        """
        return dict(self._counts)

    def begin_load(self, keys: Sequence[bytes], use: HostCacheUse) -> None:
        """Hold complete chunks until `end_load`. Raises ValueError for others."""
        for key in keys:
            count = self._counts.get(key, _WRITTEN)
            if count == _WRITTEN:
                raise ValueError("a chunk is read before it is stored")
            self.num_idle -= count == 0
            self._counts[key] = count + 1
        self._record(keys, use)

    def end_load(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self._counts[key] -= 1
            if not self._counts[key]:
                self._add_idle(key)

    def begin_store(self, keys: Sequence[bytes], use: HostCacheUse) -> list[bytes] | None:
        """Reserve room for the chunks that the cache does not have, and return their
        keys.

        Other idle chunks are evicted for them, the least recently used first. Returns
        None, without evicting any, if even all of those were too few.
        """
        missing = [key for key in keys if key not in self._counts]
        self._record([key for key in keys if self._counts.get(key) != _WRITTEN], use)
        protected = frozenset(keys)
        skipped = list[tuple[tuple[int, int], bytes]]()
        num_needed = len(missing) - (self.size - len(self._counts))
        if (
            num_needed > 0
            and self.num_idle - sum(self._counts.get(key) == 0 for key in protected) < num_needed
        ):
            return None
        while num_needed > 0:
            rank, key = entry = heappop(self._heap)
            # Entries of the heap are not removed when a chunk is used again: stale ones
            # are recognized here.
            if self._counts.get(key) != 0 or self._ranks[key] != rank:
                continue
            if key in protected:
                skipped.append(entry)
                continue
            del self._counts[key], self._ranks[key]
            self.num_idle -= 1
            num_needed -= 1
        for entry in skipped:
            heappush(self._heap, entry)
        for key in missing:
            self._counts[key] = _WRITTEN
            self._ranks[key] = (use.rank, -use.positions[key])
        self.num_written += len(missing)
        return missing

    def end_store(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self._counts[key] = 0
            self.num_written -= 1
            self._add_idle(key)

    def finish(self, use: HostCacheUse) -> None:
        """End a request: its chunks become the most recently used ones."""
        # The first chunk is evicted last, since the chunks after it cannot be used
        # without it.
        for key in sorted(use.used, key=use.positions.__getitem__, reverse=True):
            if key in self._counts:
                self._last_rank += 1
                self._set_rank(key, (self._last_rank, 0))
        use.used.clear()

    def _record(self, keys: Sequence[bytes], use: HostCacheUse) -> None:
        """Record the first use of each chunk by a request."""
        new = [key for key in keys if key not in use.used]
        if new and not use.rank:
            self._last_rank += 1
            use.rank = self._last_rank
        for key in new:
            use.used.add(key)
            rank = (use.rank, -use.positions[key])
            if key in self._counts and self._ranks[key] < rank:
                self._set_rank(key, rank)

    def _set_rank(self, key: bytes, rank: tuple[int, int]) -> None:
        self._ranks[key] = rank
        if not self._counts[key]:
            self._push(key)

    def _add_idle(self, key: bytes) -> None:
        self.num_idle += 1
        self._push(key)

    def _push(self, key: bytes) -> None:
        heappush(self._heap, (self._ranks[key], key))
        # Rebuilt when more than half of the entries are outdated: this bounds the heap
        # at an amortized constant cost.
        if len(self._heap) > max(64, 2 * self.num_idle):
            self._heap = [
                (self._ranks[idle], idle) for idle, count in self._counts.items() if not count
            ]
            heapify(self._heap)


# The offloading of one scheduler, which decides what is stored and loaded in which
# step.


class OffloadingConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The host's part of a KV cache.

    num_chunks: its size.
    blocks_per_chunk: number of the device's blocks in each chunk.
    offload_prompt_only: whether only prompts are stored, not outputs; vLLM's default.
    """

    num_chunks: int
    blocks_per_chunk: int = 1
    offload_prompt_only: bool = True

    def __post_init__(self) -> None:
        if self.num_chunks < 1 or self.blocks_per_chunk < 1:
            raise ValueError(
                "the host's part of the KV cache must hold at least 1 chunk of at least 1 block"
            )


class HostTransfer(Struct, frozen=True, gc=False):
    """A transfer between device and host.

    keys: keys of the chunks.
    blocks: the device's blocks.
    """

    id: int
    sequence: SimulatedSequence
    is_store: bool
    keys: list[bytes]
    blocks: list[int]


class StepTransfers(Struct):
    """Transfers that a step begins: loads when it begins, stores when it ends.

    flushed: ids of transfers that must end before the step, because it writes blocks
        that they read.
    """

    loads: list[HostTransfer] = []
    stores: list[HostTransfer] = []
    flushed: set[int] = set()


class OffloadingStats(Struct):
    """Counts since the start. queries, hits: tokens of admitted requests that were
    never preempted.
    """

    queries: int = 0
    hits: int = 0
    num_failed_stores: int = 0


class OffloadedRequest:
    """The offloading state of one request.

    keys: keys of its chunks.
    blocks: its blocks as of its latest step.
    num_blocks: number of `blocks` that earlier steps have recorded.
    next_chunk: index of the first chunk that was not offered to the host.
    transfers: ids of running transfers.
    finished_tokens: number of tokens whose chunks may be stored at its end; None while
        it runs.
    """

    __slots__ = (
        "blocks",
        "finished_tokens",
        "keys",
        "next_chunk",
        "num_blocks",
        "transfers",
        "use",
    )

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.blocks: list[int] = []
        self.num_blocks = self.next_chunk = 0
        self.transfers: set[int] = set()
        self.use = HostCacheUse()
        self.finished_tokens: int | None = None

    def reset(self) -> None:
        """Reset the state that depends on its blocks, before they are allocated again."""
        self.blocks = []
        self.num_blocks = 0
        self.next_chunk = 0


class KvOffloading:
    """The offloading of one scheduler. The scheduler calls `build_transfers` once per
    step.
    """

    def __init__(self, config: OffloadingConfig, block_size: int) -> None:
        self.config = config
        self.stats = OffloadingStats()
        self.cache = HostCache(config.num_chunks)
        self._block_size = block_size
        self._chunk_size = block_size * config.blocks_per_chunk
        self._requests: dict[SimulatedSequence, OffloadedRequest] = {}
        self._transfers: dict[int, HostTransfer] = {}
        self._num_transfers = 0
        self._loading: set[bytes] = set()
        self._fences: dict[int, set[int]] = {}
        """Stores that read a block whose sequence has ended, so that it may be
        allocated again.
        """
        self.finished: list[SimulatedSequence] = []
        """Sequences that ended since the last step."""
        self._loads: list[HostTransfer] = []
        self._allocated: set[int] = set()

    def add(self, sequence: SimulatedSequence) -> None:
        self._requests[sequence] = OffloadedRequest()

    def list_keys(self, sequence: SimulatedSequence) -> list[bytes]:
        """List the keys of the chunks that a sequence has filled."""
        return list(self._requests[sequence].keys)

    def find_loadable(self, sequence: SimulatedSequence, num_cached: int) -> int | None:
        """Count the tokens after the first num_cached ones that can be loaded; None if
        the caller must retry later.

        That is the case while the sequence has transfers, another sequence loads the
        same chunks, or a chunk is still being stored.
        """
        state = self._requests[sequence]
        size = self._chunk_size
        # A waiting sequence holds no blocks; those of an admission before a preemption
        # are void.
        state.reset()
        if state.transfers:
            return None
        num_known = sequence.num_prompt_tokens + sequence.num_output_tokens
        self._extend_keys(state, sequence, num_known)
        begin = num_cached // size
        end = num_known // size
        keys = state.keys[begin:end] if end * size - num_cached >= size else []
        keys = list(takewhile(self.cache.has, keys))
        if any(map(self.cache.is_written, keys)):
            return None
        num_tokens = (begin + len(keys)) * size - num_cached
        # Only whole chunks are loaded.
        if num_tokens < size:
            return 0
        return num_tokens if self._loading.isdisjoint(keys) else None

    def record_admission(
        self, sequence: SimulatedSequence, num_cached: int, num_loaded: int
    ) -> None:
        """Record an admission: its blocks were allocated, and it counts as a query.
        Called for loads as well.
        """
        self._allocated.update(sequence.blocks)
        if not sequence.num_preemptions:
            self.stats.queries += sequence.num_prompt_tokens - num_cached
            self.stats.hits += num_loaded

    def begin_load(self, sequence: SimulatedSequence, num_cached: int, num_tokens: int) -> None:
        """Begin to load num_tokens tokens after the first num_cached ones into the
        sequence's blocks.
        """
        state = self._requests[sequence]
        size = self._chunk_size
        end = num_cached + num_tokens
        keys = state.keys[num_cached // size : -(-end // size)]
        self.cache.begin_load(keys, state.use)
        self._loading.update(keys)
        state.next_chunk = -(-end // size)
        blocks = sequence.blocks[num_cached // self._block_size : end // self._block_size]
        self._loads.append(self._add_transfer(sequence, state, keys, blocks, is_store=False))

    def finish(self, sequence: SimulatedSequence, num_computed: int, *, aborted: bool) -> None:
        """End a sequence; call it before its blocks are freed. The next step stores the
        chunks that it completed last.

        num_computed: its computed tokens.
        aborted: whether it ends before its last token.
        """
        state = self._requests[sequence]
        num_known = sequence.num_prompt_tokens + sequence.num_output_tokens
        # The last sampled token is never computed, so the cache has no keys and values
        # for it.
        state.finished_tokens = (
            min(num_computed, num_known)
            if aborted
            else max(sequence.num_prompt_tokens, num_known - 1)
        )
        self._extend_keys(state, sequence, state.finished_tokens)
        for id in state.transfers:
            transfer = self._transfers[id]
            if transfer.is_store:
                self._add_fences(transfer)
        self.finished.append(sequence)

    def build_transfers(
        self, scheduled: Iterable[SimulatedSequence], preempted: Iterable[SimulatedSequence]
    ) -> StepTransfers:
        """Build the transfers of a step that computes these sequences, whose
        num_computed_tokens include it.
        """
        scheduled = list(scheduled)
        for sequence in scheduled:
            state = self._requests[sequence]
            # The scheduler extends the list in place and replaces it after a
            # preemption: a new list has new blocks.
            if state.blocks is not sequence.blocks:
                state.blocks = sequence.blocks
                state.num_blocks = 0
            self._allocated.update(sequence.blocks[state.num_blocks :])
            state.num_blocks = len(sequence.blocks)
        step = StepTransfers(loads=self._loads)
        begun = {load.id for load in self._loads}
        for sequence in preempted:
            # This step may reallocate its blocks, so stores that read them must end
            # before it.
            step.flushed |= self._requests[sequence].transfers - begun
        for block in self._allocated & self._fences.keys():
            # The block was freed while a store reads it: the step that writes it must
            # wait for that store.
            step.flushed |= self._fences[block]
        for sequence in chain(scheduled, self.finished):
            self._store(sequence, step)
        for sequence in self.finished:
            state = self._requests[sequence]
            self.cache.finish(state.use)
            if not state.transfers:
                del self._requests[sequence]
            else:
                state.reset()
        self._loads = []
        self._allocated = set()
        self.finished = []
        return step

    def complete(self, ids: Iterable[int]) -> list[SimulatedSequence]:
        """Complete transfers. Returns the sequences that were loaded, including those
        that have ended meanwhile.
        """
        loaded: list[SimulatedSequence] = []
        for id in ids:
            transfer = self._transfers.pop(id)
            state = self._requests[transfer.sequence]
            if transfer.is_store:
                self.cache.end_store(transfer.keys)
                for block in transfer.blocks:
                    fences = self._fences.get(block)
                    if fences is not None:
                        fences.discard(transfer.id)
                        if not fences:
                            del self._fences[block]
            else:
                self.cache.end_load(transfer.keys)
                self._loading.difference_update(transfer.keys)
                loaded.append(transfer.sequence)
            state.transfers.remove(id)
            # A sequence in `finished` is still needed: the next step stores its last
            # chunks.
            if (
                state.finished_tokens is not None
                and not state.transfers
                and transfer.sequence not in self.finished
            ):
                del self._requests[transfer.sequence]
        return loaded

    def _store(self, sequence: SimulatedSequence, step: StepTransfers) -> None:
        """Store the chunks that this step, or the end of the sequence, completes."""
        state = self._requests[sequence]
        per_chunk = self.config.blocks_per_chunk
        num_tokens = state.finished_tokens
        if num_tokens is None:
            num_known = sequence.num_prompt_tokens + sequence.num_output_tokens
            num_tokens = min(sequence.num_computed_tokens, num_known)
            self._extend_keys(state, sequence, num_tokens)
        if self.config.offload_prompt_only:
            num_tokens = min(num_tokens, sequence.num_prompt_tokens)
        end = min(num_tokens // self._chunk_size, len(state.blocks) // per_chunk, len(state.keys))
        offered = state.keys[state.next_chunk : end]
        if not offered:
            return
        keys = self.cache.begin_store(offered, state.use)
        # `next_chunk` is unchanged, so the next step offers the same chunks again.
        if keys is None:
            self.stats.num_failed_stores += 1
            return
        begin = state.next_chunk
        state.next_chunk = end
        if not keys:
            return
        stored = set(keys)
        indices = [begin + index for index, key in enumerate(offered) if key in stored]
        blocks = [
            block
            for index in indices
            for block in state.blocks[index * per_chunk : (index + 1) * per_chunk]
        ]
        transfer = self._add_transfer(sequence, state, keys, blocks, is_store=True)
        step.stores.append(transfer)
        # An ended sequence does not protect its blocks: the step may have allocated
        # some of them already.
        if state.finished_tokens is not None:
            self._add_fences(transfer)
            if not self._allocated.isdisjoint(blocks):
                step.flushed.add(transfer.id)

    def _add_transfer(
        self,
        sequence: SimulatedSequence,
        state: OffloadedRequest,
        keys: list[bytes],
        blocks: list[int],
        *,
        is_store: bool,
    ) -> HostTransfer:
        transfer = HostTransfer(self._num_transfers, sequence, is_store, keys, blocks)
        self._num_transfers += 1
        self._transfers[transfer.id] = transfer
        state.transfers.add(transfer.id)
        return transfer

    def _add_fences(self, transfer: HostTransfer) -> None:
        for block in transfer.blocks:
            self._fences.setdefault(block, set()).add(transfer.id)

    def _extend_keys(
        self, state: OffloadedRequest, sequence: SimulatedSequence, num_tokens: int
    ) -> None:
        """Extend the keys to the chunks that the first num_tokens tokens fill."""
        per_chunk = self.config.blocks_per_chunk
        for index in range(len(state.keys), num_tokens // self._chunk_size):
            # Hashes are chained, so the one of a chunk's last block identifies the
            # whole chunk.
            key = sequence.contents.get_block_hash((index + 1) * per_chunk - 1)
            state.keys.append(key)
            state.use.positions[key] = index


# The hardware: the size of the host's cache, and the link over which its chunks are
# transferred.

TRANSFER_BUCKETS = (1e6, 5e6, 10e6, 20e6, 40e6, 60e6, 80e6, 100e6, 150e6, 200e6)
"""Buckets of vLLM's histograms of transfer sizes, in bytes."""


class OffloadingSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of KV offloading for each engine core.

    size: bytes of host memory.
    bytes_per_token: size of a token's keys and values on all devices of an engine.
    bandwidth: bytes per second between one device and the host, in one direction; by
        default about that of PCIe 4.0 x16.
    base_seconds: latency of a transfer, without the time for its bytes.
    """

    size: float
    bytes_per_token: float
    num_devices: int = 1
    blocks_per_chunk: int = 1
    offload_prompt_only: bool = True
    bandwidth: float = 25e9
    base_seconds: float = 0.0002

    def __post_init__(self) -> None:
        for name in ("size", "bytes_per_token", "bandwidth"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"KV offloading: {name} must be more than 0")
        if not 0 <= self.base_seconds < float("inf"):
            raise ValueError("KV offloading: base_seconds must not be negative")
        if self.blocks_per_chunk < 1:
            raise ValueError("KV offloading: blocks_per_chunk must be at least 1")

    def build_config(self, block_size: int) -> OffloadingConfig:
        """Build the scheduler's settings. Raises ValueError if the host memory is
        smaller than one chunk.
        """
        chunk_bytes = self.bytes_per_token * block_size * self.blocks_per_chunk
        num_chunks = int(self.size // (-(-chunk_bytes // PAGESIZE) * PAGESIZE))
        if not num_chunks:
            raise ValueError(
                f"KV offloading: {self.size:.0f} bytes are less than one chunk of {chunk_bytes:.0f}"
            )
        return OffloadingConfig(num_chunks, self.blocks_per_chunk, self.offload_prompt_only)

    def build_link(self, block_size: int, time_scale: float = 1.0) -> HostLink:
        """Build the link, on a clock that runs `time_scale` times as fast."""
        chunk_bytes = self.bytes_per_token * block_size * self.blocks_per_chunk / self.num_devices
        return HostLink(
            chunk_bytes,
            self.bandwidth * time_scale,
            self.base_seconds / time_scale,
            self.num_devices,
        )


class LinkTotals:
    """Totals of one direction since the start, on all devices.

    sizes: histogram of the bytes of each transfer.
    """

    def __init__(self) -> None:
        self.seconds = self.bytes = 0.0
        self.sizes = Histogram(TRANSFER_BUCKETS)
        self.free_at = 0.0
        """The time at which the last transfer of this direction ends."""


class HostLink:
    """The link between the devices of one engine and their host. chunk_bytes: each
    device's part of a chunk.
    """

    def __init__(
        self, chunk_bytes: float, bandwidth: float, base_seconds: float, num_devices: int = 1
    ) -> None:
        self._chunk_bytes = chunk_bytes
        self._bandwidth = bandwidth
        self._base_seconds = base_seconds
        self._num_devices = num_devices
        self.loads = LinkTotals()
        self.stores = LinkTotals()
        self._queue: list[tuple[float, int]] = []
        self._ends: dict[int, float] = {}

    @property
    def next_end(self) -> float | None:
        """The time at which the next transfer ends; None without transfers."""
        return self._queue[0][0] if self._queue else None

    def begin(self, transfer: HostTransfer, at: float) -> float:
        """Begin a transfer now or after the previous one in its direction. Returns the
        time at which it ends.
        """
        # PCIe is full duplex: the directions do not slow each other down.
        totals = self.stores if transfer.is_store else self.loads
        size = len(transfer.keys) * self._chunk_bytes
        seconds = self._base_seconds + size / self._bandwidth
        totals.free_at = end = max(totals.free_at, at) + seconds
        totals.seconds += seconds * self._num_devices
        totals.bytes += size * self._num_devices
        totals.sizes.observe(size, self._num_devices)
        self._ends[transfer.id] = end
        heappush(self._queue, (end, transfer.id))
        return end

    def get_end(self, id: int, default: float) -> float:
        """Return the time at which a transfer ends; the default if it has ended."""
        return self._ends.get(id, default)

    def pop_ended(self, now: float) -> list[int]:
        """Return the ids of the transfers that have ended by now, in order; each once."""
        ended: list[int] = []
        while self._queue and self._queue[0][0] <= now:
            id = heappop(self._queue)[1]
            del self._ends[id]
            ended.append(id)
        return ended
