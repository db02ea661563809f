"""Settings of KV offloading: the size of the host's cache, the speed of its link."""

from __future__ import annotations

from mmap import PAGESIZE

from msgspec import Struct

from .kv_offloading import HostLink, OffloadingConfig


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
