"""Publication of KV cache events over ZeroMQ: a PUB socket for live events, a ROUTER
socket for replay.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct

from .kv_events import KvEvent, KvEventBatch


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
    """Return a rank's endpoint as in vLLM: its number is added to the port, unless that
    is 0, which the system chooses; an inproc name gets it as a suffix.
    """
    if endpoint.startswith("inproc"):
        return endpoint if not rank else f"{endpoint}_dp{rank}"
    base, colon, port = endpoint.rpartition(":")
    return f"{base}{colon}{int(port) + rank}" if port.isdigit() and int(port) else endpoint


def is_bound(endpoint: str) -> bool:
    """Whether an endpoint is bound; otherwise it is a subscriber's, to connect to. As in
    vLLM, except that an address of this machine is bound.
    """
    if "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://")):
        return True
    host = endpoint.partition("://")[2].rpartition(":")[0]
    return host in ("localhost", "0.0.0.0") or host.startswith("127.")


class KvPublisher:
    """One rank's publisher; used on the event loop. A slow subscriber misses batches
    and may request a replay.
    """

    def __init__(self, config: KvEventsConfig, rank: int) -> None:
        """Open the sockets. Raises ValueError if zmq is missing or an endpoint is not
        available.
        """
        try:
            import zmq  # noqa: PLC0415 - an extra, and only for publishing engines
            import zmq.asyncio  # noqa: PLC0415
        except ImportError:
            raise ValueError(
                "KV events need pyzmq: pip install 'dragoman-sim[kv-events]'"
            ) from None
        self._zmq: Any = zmq
        self._rank = rank
        self._topic = config.topic.encode()
        self._replay_buffer = ReplayBuffer(config.buffer_steps)
        self._context: Any = zmq.asyncio.Context()
        self._replay_task: asyncio.Task[None] | None = None
        self._pub_socket: Any = zmq.Socket(self._context, zmq.PUB)
        try:
            self._pub_socket.set_hwm(config.hwm)
            endpoint = offset_endpoint_port(config.endpoint, rank)
            attach = self._pub_socket.bind if is_bound(endpoint) else self._pub_socket.connect
            attach(endpoint)
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
        number, payload = self._replay_buffer.add(KvEventBatch(timestamp, events, self._rank))
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
