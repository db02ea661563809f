"""KV offloading of an engine in time: the size of the host's cache, and the link over which its chunks move. Pure.

Each direction moves one transfer after the other, as the streams of vLLM's worker do. Stores overlap with computing; a
load delays only the request that waits for it.
"""

from __future__ import annotations

from heapq import heappop, heappush
from mmap import PAGESIZE

from msgspec import Struct

from ...core.metrics import Histogram
from .offloading import HostTransfer, OffloadingConfig

TRANSFER_BUCKETS = (1e6, 5e6, 10e6, 20e6, 40e6, 60e6, 80e6, 100e6, 150e6, 200e6)
"""vLLM's, in bytes."""


class OffloadingSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of KV offloading, of each engine core.

    size: bytes of host memory.
    bandwidth: bytes a second between one device and the host, in one direction. The default is about what PCIe 4.0 x16
        carries.
    base_seconds: latency of a transfer, without its bytes.
    bytes_per_token: of keys and values, on all devices of an engine.
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
        """Build the scheduler's part. Raises ValueError if the host has no room for a chunk."""
        chunk_bytes = self.bytes_per_token * block_size * self.blocks_per_chunk
        num_chunks = int(self.size // (-(-chunk_bytes // PAGESIZE) * PAGESIZE))
        if not num_chunks:
            raise ValueError(f"KV offloading: {self.size:.0f} bytes are less than one chunk of {chunk_bytes:.0f}")
        return OffloadingConfig(num_chunks, self.blocks_per_chunk, self.offload_prompt_only)

    def build_link(self, block_size: int, time_scale: float = 1.0) -> HostLink:
        """Build the link, on a clock that runs `time_scale` times as fast."""
        chunk_bytes = self.bytes_per_token * block_size * self.blocks_per_chunk / self.num_devices
        return HostLink(chunk_bytes, self.bandwidth * time_scale, self.base_seconds / time_scale, self.num_devices)


class LinkTotals:
    """What one direction has moved since the start, on all devices: seconds, bytes, and bytes of each transfer."""

    def __init__(self) -> None:
        self.seconds = self.bytes = 0.0
        self.sizes = Histogram(TRANSFER_BUCKETS)
        self.free_at = 0.0
        """When the last of its transfers ends."""


class HostLink:
    """The link between the devices of one engine and their host. chunk_bytes: of each device."""

    def __init__(self, chunk_bytes: float, bandwidth: float, base_seconds: float, num_devices: int = 1) -> None:
        self._chunk_bytes, self._bandwidth, self._base_seconds = chunk_bytes, bandwidth, base_seconds
        self._num_devices = num_devices
        self.loads, self.stores = LinkTotals(), LinkTotals()
        self._queue: list[tuple[float, int]] = []
        self._ends: dict[int, float] = {}

    @property
    def next_end(self) -> float | None:
        """When the next transfer ends; None without any."""
        return self._queue[0][0] if self._queue else None

    def begin(self, transfer: HostTransfer, at: float) -> float:
        """Begin a transfer at that time, or when the one before it in its direction has ended. Returns its end."""
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
        """When a transfer ends; the default if it has ended."""
        return self._ends.get(id, default)

    def pop_ended(self, now: float) -> list[int]:
        """The transfers that have ended by now, in order; each once."""
        ended: list[int] = []
        while self._queue and self._queue[0][0] <= now:
            id = heappop(self._queue)[1]
            del self._ends[id]
            ended.append(id)
        return ended
