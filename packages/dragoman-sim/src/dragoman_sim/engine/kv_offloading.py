"""KV offloading of one scheduler, which decides what is stored and loaded in which
step.

The rules are those of vLLM 0.33's native offloading (OffloadingConnector) for full
attention: every step stores the chunks that its sequences complete; a waiting sequence
loads those that follow its prefix in the device's cache.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import chain, takewhile

from msgspec import Struct

from dragoman.core.histogram import Histogram

from .host_cache import HostCache, HostCacheUse
from .sequence import SimulatedSequence


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


TRANSFER_BUCKETS = (1e6, 5e6, 10e6, 20e6, 40e6, 60e6, 80e6, 100e6, 150e6, 200e6)
"""Buckets of vLLM's histograms of transfer sizes, in bytes."""


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
