"""KV cache events of a simulated vLLM, for prefix-aware routers.

A batch is msgpack: [ts, [events], data_parallel_rank]; an event is a map whose `type`
is its name, as in vLLM 0.33. Hashes are the lower 64 bits, vLLM's default. Several
blocks may hold the same hash: events report when the first becomes available and when
the last is evicted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from msgspec import Struct

from .block_hashes import ImageKeys
from .block_pool import AllBlocksCleared, BlockCached, BlockRemoved, CacheEvent

_MEDIUM = "GPU"
_MASK = (1 << 64) - 1


class BlockStored(Struct, frozen=True, tag=True, kw_only=True):
    """Consecutive blocks were stored.

    parent_block_hash: hash of the block before the first; None if there is none.
    token_ids: tokens of all blocks.
    lora_id: deprecated in vLLM.
    extra_keys: for each block, what its hash covers besides its tokens: the adapter,
        images with their offsets, and for a first block the cache salt.
    """

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = _MEDIUM
    lora_name: str | None = None
    extra_keys: list[tuple[str | tuple[str, int], ...] | None]
    group_idx: int = 0
    kv_cache_spec_kind: str = "full_attention"


class BlockRemovedEvent(Struct, frozen=True, tag="BlockRemoved"):
    block_hashes: list[int]
    medium: str | None = _MEDIUM
    group_idx: int = 0


class CacheClearedEvent(Struct, frozen=True, tag="AllBlocksCleared"):
    """The whole cache was cleared."""


KvEvent = BlockStored | BlockRemovedEvent | CacheClearedEvent


class KvEventBatch(Struct, frozen=True, array_like=True):
    """A batch of events. ts: Unix seconds."""

    ts: float
    events: Sequence[KvEvent]
    data_parallel_rank: int | None = None


class _HashedBlock(Struct, frozen=True, gc=False):
    parent: bytes | None
    tokens: tuple[int, ...]
    lora: str
    salt: str
    images: ImageKeys = ()

    @property
    def extra_keys(self) -> tuple[str | tuple[str, int], ...] | None:
        keys = (self.lora, *self.images, "" if self.parent else self.salt)
        return tuple(key for key in keys if key) or None


_NO_BLOCK = _HashedBlock(None, (), "", "")


class KvEventBuilder:
    """A converter of one pool's events, which tracks block contents and the reported
    hashes.
    """

    def __init__(self, block_size: int, num_blocks: int) -> None:
        self._block_size = block_size
        # Waiting sequences are hashed long before their blocks are stored; the bound is
        # several times the pool's size.
        self._max_hashed = 4 * num_blocks + 4096
        self._hashed: OrderedDict[bytes, _HashedBlock] = OrderedDict()
        self._copies: dict[bytes, int] = {}

    def add_hashed(
        self,
        block_hash: bytes,
        parent: bytes | None,
        tokens: Sequence[int],
        images: ImageKeys = (),
        *,
        lora: str = "",
        salt: str = "",
    ) -> None:
        """Add a block that has been hashed and may be stored."""
        self._hashed[block_hash] = _HashedBlock(parent, tuple(tokens), lora, salt, images)
        self._hashed.move_to_end(block_hash)
        while len(self._hashed) > self._max_hashed:
            self._hashed.popitem(last=False)

    def build_events(self, cache_events: Sequence[CacheEvent]) -> list[KvEvent]:
        """Convert the pool's events to published events."""
        events: list[KvEvent] = []
        for event in cache_events:
            match event:
                case BlockCached(_, block_hash):
                    self._copies[block_hash] = self._copies.get(block_hash, 0) + 1
                    # Subscribers track what is cached, not in how many blocks: further
                    # copies change nothing for them.
                    if self._copies[block_hash] > 1:
                        continue
                    # Missing only if `add_hashed` has dropped it for its bound;
                    # subscribers still learn the hash.
                    hashed = self._hashed.get(block_hash, _NO_BLOCK)
                    number = truncate_hash(block_hash)
                    parent = None if hashed.parent is None else truncate_hash(hashed.parent)
                    last = events[-1] if events else None
                    # Consecutive blocks share one event.
                    if (
                        isinstance(last, BlockStored)
                        and parent is not None
                        and last.block_hashes[-1] == parent
                    ):
                        last.block_hashes.append(number)
                        last.token_ids.extend(hashed.tokens)
                        last.extra_keys.append(hashed.extra_keys)
                        continue
                    events.append(
                        BlockStored(
                            block_hashes=[number],
                            parent_block_hash=parent,
                            token_ids=list(hashed.tokens),
                            block_size=self._block_size,
                            lora_name=hashed.lora or None,
                            extra_keys=[hashed.extra_keys],
                        )
                    )
                case BlockRemoved(_, block_hash):
                    self._copies[block_hash] -= 1
                    if not self._copies[block_hash]:
                        del self._copies[block_hash]
                        events.append(BlockRemovedEvent([truncate_hash(block_hash)]))
                case AllBlocksCleared():
                    self._copies.clear()
                    events.append(CacheClearedEvent())
        return events


def truncate_hash(block_hash: bytes) -> int:
    return int.from_bytes(block_hash, "big") & _MASK
