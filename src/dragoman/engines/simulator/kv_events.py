"""Events of the prefix cache as vLLM publishes them, so that routers know what each instance holds. Pure.

A batch is msgpack: [ts, [events], data_parallel_rank]; an event is an array that begins with its name. Hashes are
the lower 64 bits, as vLLM sends them by default. A hash is told of when the first block of it can be found, and when
the last one cannot: several blocks may hold the same.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from .blocks import AllBlocksCleared, BlockRemoved, CacheEvent
from .blocks import BlockStored as Stored

_MEDIUM = "GPU"
_MASK = (1 << 64) - 1


class BlockStored(Struct, frozen=True, array_like=True, tag=True):
    """Blocks of one chain, in its order. token_ids: of all of them. parent_block_hash: of what is before the first."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = _MEDIUM
    lora_name: str | None = None


class BlockGone(Struct, frozen=True, array_like=True, tag="BlockRemoved"):
    block_hashes: list[int]
    medium: str | None = _MEDIUM


class Cleared(Struct, frozen=True, array_like=True, tag="AllBlocksCleared"):
    """The whole cache."""


Event = BlockStored | BlockGone | Cleared


class Batch(Struct, frozen=True, array_like=True):
    """ts: Unix seconds."""

    ts: float
    events: list[Event]
    data_parallel_rank: int | None = None


class _Note(Struct, frozen=True, gc=False):
    parent: bytes | None
    tokens: tuple[int, ...]
    lora: str


class Ledger:
    """What the blocks of one pool hold, and which hashes have been told of."""

    def __init__(self, block_size: int, num_blocks: int) -> None:
        self._block_size = block_size
        # What waits has noted its blocks long before they are stored; much more than fits need not be known.
        self._most = 4 * num_blocks + 4096
        self._notes: OrderedDict[bytes, _Note] = OrderedDict()
        self._copies: dict[bytes, int] = {}

    def note(self, name: bytes, parent: bytes | None, tokens: Sequence[int], lora: str) -> None:
        """A block that has been hashed and may be stored."""
        self._notes[name] = _Note(parent, tuple(tokens), lora)
        self._notes.move_to_end(name)
        while len(self._notes) > self._most:
            self._notes.popitem(last=False)

    def told(self, happened: Sequence[CacheEvent]) -> list[Event]:
        """What the pool says, as others hear it."""
        events: list[Event] = []
        for event in happened:
            match event:
                case Stored(_, name):
                    self._copies[name] = self._copies.get(name, 0) + 1
                    if self._copies[name] == 1:
                        self._stored(name, events)
                case BlockRemoved(_, name):
                    self._copies[name] -= 1
                    if not self._copies[name]:
                        del self._copies[name]
                        events.append(BlockGone([short(name)]))
                case AllBlocksCleared():
                    self._copies.clear()
                    events.append(Cleared())
        return events

    def _stored(self, name: bytes, events: list[Event]) -> None:
        """Blocks that follow each other are one event."""
        note = self._notes.get(name, _Note(None, (), ""))
        parent, last = None if note.parent is None else short(note.parent), events[-1] if events else None
        if isinstance(last, BlockStored) and parent is not None and last.block_hashes[-1] == parent:
            last.block_hashes.append(short(name))
            last.token_ids.extend(note.tokens)
            return
        lora_name = note.lora or None
        events.append(BlockStored([short(name)], parent, list(note.tokens), self._block_size, None, _MEDIUM, lora_name))


def short(name: bytes) -> int:
    return int.from_bytes(name, "big") & _MASK


class Journal:
    """Numbered batches, of which the last ones are kept for those who have missed some."""

    def __init__(self, keep: int) -> None:
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=keep)
        self._next = 0

    def add(self, batch: Batch) -> tuple[bytes, bytes]:
        """The number, 8 bytes big-endian, and the payload."""
        number, payload = self._next, msgspec.msgpack.encode(batch)
        self._next += 1
        self._kept.append((number, payload))
        return number.to_bytes(8, "big"), payload

    def since(self, number: int) -> list[tuple[bytes, bytes]]:
        """Everything kept from this number on."""
        return [(each.to_bytes(8, "big"), payload) for each, payload in self._kept if each >= number]
