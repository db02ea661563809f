"""The messages that a simulated vLLM sends: KV cache events for routers, KV transfer
notifications for other instances.

KV cache events are those of vLLM, for prefix-aware routers. A batch is msgpack: [ts,
[events], data_parallel_rank]; an event is a map whose `type` is its name; vLLM 0.19 and
earlier publish an array that begins with the name. Hashes are the lower 64 bits, vLLM's
default. Several blocks may hold the same hash: events report when the first becomes
available and when the last is evicted.
"""

from __future__ import annotations

import asyncio
import hmac
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import Any, Literal

import msgspec
from msgspec import Struct

from .blocks import AllBlocksCleared, BlockCached, BlockRemoved, CacheEvent
from .disaggregation import KvRole, KvTransferParams, LEASE_SECONDS
from .hashing import ImageKeys

_MEDIUM = "GPU"
_MASK = (1 << 64) - 1


KvEventsVersion = Literal["0.33", "0.19"]
"""The vLLM version whose event format is used; 0.19 stands for earlier versions too."""


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
    events: Sequence[KvEvent | tuple[object, ...]]
    data_parallel_rank: int | None = None


def build_batch(
    ts: float, events: Sequence[KvEvent], rank: int, version: KvEventsVersion = "0.33"
) -> KvEventBatch:
    """Build a batch of events in the format of this version of vLLM."""
    if version == "0.33":
        return KvEventBatch(ts, events, rank)
    arrays: list[tuple[object, ...]] = []
    for event in events:
        match event:
            case BlockStored():
                stored = (
                    event.block_hashes,
                    event.parent_block_hash,
                    event.token_ids,
                    event.block_size,
                )
                arrays.append(
                    ("BlockStored", *stored, event.lora_id, event.medium, event.lora_name)
                )
            case BlockRemovedEvent():
                arrays.append(("BlockRemoved", event.block_hashes, event.medium))
            case CacheClearedEvent():
                arrays.append(("AllBlocksCleared",))
    return KvEventBatch(ts, arrays, rank)


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


# Publication over ZeroMQ: a PUB socket for live events, a ROUTER socket for replay.


class ReplayBuffer:
    """A buffer of the most recent numbered batches, for subscribers that missed some."""

    def __init__(self, size: int) -> None:
        self._batches: deque[tuple[int, bytes]] = deque(maxlen=size)
        self._next = 0

    def add(self, batch: KvEventBatch) -> tuple[bytes, bytes]:
        """Encode and buffer a batch. Returns its number, 8 bytes big-endian, and its
        payload.
        """
        number = self._next
        payload = msgspec.msgpack.encode(batch)
        self._next += 1
        self._batches.append((number, payload))
        return number.to_bytes(8, "big"), payload

    def since(self, number: int) -> list[tuple[bytes, bytes]]:
        """Return the buffered batches from this number on."""
        return [
            (batch_number.to_bytes(8, "big"), payload)
            for batch_number, payload in self._batches
            if batch_number >= number
        ]


REPLAY_END = (-1).to_bytes(8, "big", signed=True)
"""Sequence number that ends a replay."""


class KvEventsConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """vLLM's `--kv-events-config`. Each rank adds its number to the port.

    buffer_steps: number of batches available for replay.
    hwm: ZeroMQ's high-water mark, in messages.
    """

    enable_kv_cache_events: bool = True
    publisher: str = "zmq"
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    topic: str = ""

    def __post_init__(self) -> None:
        if self.publisher not in ("zmq", "null"):
            raise ValueError("publisher must be `zmq` or `null`")
        if self.buffer_steps < 1 or self.hwm < 1:
            raise ValueError("buffer_steps and hwm must be at least 1")

    @property
    def is_publishing(self) -> bool:
        return self.enable_kv_cache_events and self.publisher == "zmq"


def parse_kv_events_config(text: str) -> KvEventsConfig:
    """Parse vLLM's JSON. Raises ValueError."""
    try:
        return msgspec.json.decode(text, type=KvEventsConfig)
    except msgspec.DecodeError as error:
        raise ValueError(f"--kv-events-config: {error}") from None


def offset_endpoint_port(endpoint: str, rank: int) -> str:
    """Return a rank's endpoint as in vLLM: its number is added to the port; an inproc
    name gets it as a suffix.
    """
    if endpoint.startswith("inproc"):
        return endpoint if not rank else f"{endpoint}_dp{rank}"
    base, colon, port = endpoint.rpartition(":")
    return f"{base}{colon}{int(port) + rank}" if colon and port.isdigit() else endpoint


class KvPublisher:
    """One rank's publisher; used on the event loop. A slow subscriber misses batches
    and may request a replay.
    """

    def __init__(
        self, config: KvEventsConfig, rank: int, version: KvEventsVersion = "0.33"
    ) -> None:
        """Bind the sockets. Raises ValueError if zmq is missing or an endpoint is not
        available.
        """
        try:
            import zmq  # noqa: PLC0415 - an extra, and only for publishing engines
            import zmq.asyncio  # noqa: PLC0415
        except ImportError:
            raise ValueError(
                "KV events need pyzmq: pip install '.[kv-events]' in the clone of Dragoman"
            ) from None
        self._zmq: Any = zmq
        self._rank = rank
        self._topic = config.topic.encode()
        self._version: KvEventsVersion = version
        self._replay_buffer = ReplayBuffer(config.buffer_steps)
        self._context: Any = zmq.asyncio.Context()
        self._replay_task: asyncio.Task[None] | None = None
        self._pub_socket: Any = zmq.Socket(self._context, zmq.PUB)
        try:
            self._pub_socket.set_hwm(config.hwm)
            self._pub_socket.bind(offset_endpoint_port(config.endpoint, rank))
            if config.replay_endpoint is not None:
                router: Any = self._context.socket(zmq.ROUTER)
                router.bind(offset_endpoint_port(config.replay_endpoint, rank))
                self._replay_task = asyncio.get_running_loop().create_task(
                    self._serve_replay(router)
                )
        except zmq.ZMQError as error:
            self._pub_socket.close(linger=0)
            self._context.destroy(linger=0)
            raise ValueError(f"--kv-events-config: {error}") from None

    def publish(self, timestamp: float, events: list[KvEvent]) -> None:
        """Publish a batch. timestamp: Unix seconds. Never blocks."""
        number, payload = self._replay_buffer.add(
            build_batch(timestamp, events, self._rank, self._version)
        )
        with suppress(self._zmq.Again):
            self._pub_socket.send_multipart((self._topic, number, payload), self._zmq.NOBLOCK)

    async def _serve_replay(self, router: Any) -> None:  # noqa: ANN401 - a socket of an optional library
        """Answer each replay request, a sequence number, with all batches from it on
        and an end marker.
        """
        while True:
            frames: list[bytes] = await router.recv_multipart()
            # As vLLM's subscribers send them: identity, empty delimiter, number. Other
            # messages are ignored.
            if len(frames) != 3 or len(frames[2]) != 8:
                continue
            client = frames[0]
            for number, payload in self._replay_buffer.since(int.from_bytes(frames[2], "big")):
                await router.send_multipart((client, b"", number, payload))
            await router.send_multipart((client, b"", REPLAY_END, b""))

    def close(self) -> None:
        if self._replay_task is not None:
            self._replay_task.cancel()
        # The context does not close a socket that its factory did not create, and its
        # termination would wait for it.
        self._pub_socket.close(linger=0)
        self._context.destroy(linger=0)


# Notifications from the decode side to the prefill side: one JSON datagram per fetch,
# signed with a shared secret.


class KvExtraConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Dragoman's settings in the connector's extra config.

    base_seconds: latency of each transfer.
    bandwidth: of the link, in bytes per second.
    bytes_per_token: size of a token's keys and values; None means the profile's.
    lease_seconds: time after which blocks that no instance has fetched are freed.
    peers: addresses that may be notified.
    secret: key of the notifications' signatures.
    """

    base_seconds: float = 0.001
    bandwidth: float = 25e9
    bytes_per_token: float | None = None
    lease_seconds: float = LEASE_SECONDS
    peers: tuple[str, ...] = ("127.0.0.1",)
    secret: str = ""


class KvTransferConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """vLLM's `--kv-transfer-config`. kv_buffer_* and kv_load_failure_policy are
    accepted without effect.

    kv_ip, kv_port: address on which notifications are received; port 0 is any free
        port.
    """

    kv_connector: str | None = None
    kv_role: KvRole = "kv_both"
    engine_id: str | None = None
    kv_ip: str = "127.0.0.1"
    kv_port: int = 14579
    kv_connector_extra_config: KvExtraConfig = KvExtraConfig()
    kv_buffer_device: str | None = None
    kv_buffer_size: float | None = None
    kv_load_failure_policy: str | None = None

    def __post_init__(self) -> None:
        extra = self.kv_connector_extra_config
        if self.kv_connector not in (None, "NixlConnector"):
            raise ValueError(
                f"kv_connector {self.kv_connector!r} is not simulated: transfers are those of "
                f"NixlConnector. For "
                "OffloadingConnector use --kv-offloading-size; LMCacheConnectorV1 and others have "
                "no counterpart"
            )
        for address in (self.kv_ip, *extra.peers):
            ip_address(address)  # a host name would need a DNS lookup for each notification
        if not 0 <= self.kv_port < 1 << 16:
            raise ValueError("kv_port must be a port, or 0")
        if not 0 < extra.lease_seconds < float("inf"):
            raise ValueError("lease_seconds must be more than 0")
        # A notification frees blocks of other requests, so only this machine may send
        # unsigned ones.
        if not extra.secret and not ip_address(self.kv_ip).is_loopback:
            raise ValueError(
                "kv_connector_extra_config.secret is required if kv_ip is not a loopback address"
            )

    @property
    def is_producer(self) -> bool:
        return self.kv_role != "kv_consumer"


def parse_kv_transfer_config(text: str) -> KvTransferConfig:
    """Parse vLLM's JSON. Raises ValueError."""
    try:
        return msgspec.json.decode(text, type=KvTransferConfig)
    except msgspec.DecodeError as error:
        raise ValueError(f"--kv-transfer-config: {error}") from None


class FetchedNotice(Struct, frozen=True):
    """A notification that blocks were fetched.

    seal: HMAC-SHA256 of the JSON of [engine_id, request_id], in hexadecimal.
    """

    engine_id: str
    request_id: str
    seal: str


class KvNotifier(asyncio.DatagramProtocol):
    """The notification socket of one instance. on_fetched: called for each valid
    notification with the request id.
    """

    def __init__(self, config: KvTransferConfig, on_fetched: Callable[[str], None]) -> None:
        self._config = config
        self._on_fetched = on_fetched
        self._secret = config.kv_connector_extra_config.secret.encode()
        self._peers = frozenset(config.kv_connector_extra_config.peers)
        self._transport: asyncio.DatagramTransport | None = None

    async def open(self) -> int:
        """Bind the socket and return its port. Raises ValueError if it is not
        available.
        """
        config = self._config
        # Only producers are notified. A consumer sends from any port, so that it can
        # share an address with a producer.
        local = (config.kv_ip, config.kv_port if config.is_producer else 0)
        loop = asyncio.get_running_loop()
        try:
            self._transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=local)
        except OSError as error:
            raise ValueError(f"--kv-transfer-config: {error}") from None
        return self._transport.get_extra_info("sockname")[1]

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def is_peer(self, source: KvTransferParams) -> bool:
        """Whether the source's address is an allowed peer. A source without an address
        is not notified.
        """
        return source.remote_host is None or source.remote_host in self._peers

    def notify(self, source: KvTransferParams) -> None:
        """Notify the source that its blocks are no longer needed."""
        host = source.remote_host
        port = source.remote_port
        engine = source.remote_engine_id
        id = source.remote_request_id
        if self._transport is None or host is None or not port or engine is None or id is None:
            return
        self._transport.sendto(self.encode_notice(engine, id), (host, port))

    def encode_notice(self, engine: str, id: str) -> bytes:
        """Encode and sign a notification."""
        return msgspec.json.encode(FetchedNotice(engine, id, self._sign(engine, id)))

    def datagram_received(self, data: bytes, addr: tuple[str | object, int]) -> None:  # noqa: ARG002 - asyncio's
        """Handle a datagram. Invalid, unsigned or misdirected ones are dropped: UDP has
        no error response.
        """
        try:
            notice = msgspec.json.decode(data, type=FetchedNotice)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return
        if notice.engine_id != self._config.engine_id:
            return
        expected = self._sign(notice.engine_id, notice.request_id)
        if hmac.compare_digest(notice.seal.encode(), expected.encode()):
            self._on_fetched(notice.request_id)

    def _sign(self, engine: str, id: str) -> str:
        return hmac.new(self._secret, msgspec.json.encode([engine, id]), "sha256").hexdigest()
