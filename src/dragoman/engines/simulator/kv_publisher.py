"""KV events over ZeroMQ: a PUB socket for live events, a ROUTER socket for replay. The only user of zmq."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct

from .kv_events import KvEvent, KvEventsVersion, ReplayBuffer, build_batch

REPLAY_END = (-1).to_bytes(8, "big", signed=True)
"""Sequence number that ends a replay."""


class KvEventsConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """vLLM's `--kv-events-config`. Each rank adds its number to the port. buffer_steps: batches available for
    replay."""

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
    """Raises ValueError."""
    try:
        return msgspec.json.decode(text, type=KvEventsConfig)
    except msgspec.DecodeError as error:
        raise ValueError(f"--kv-events-config: {error}") from None


def offset_endpoint_port(endpoint: str, rank: int) -> str:
    """As vLLM: ports count up with the ranks, names in the process get a suffix."""
    if endpoint.startswith("inproc"):
        return endpoint if not rank else f"{endpoint}_dp{rank}"
    base, colon, port = endpoint.rpartition(":")
    return f"{base}{colon}{int(port) + rank}" if colon and port.isdigit() else endpoint


class KvPublisher:
    """The publisher of one rank, used on the event loop. A slow subscriber loses batches and may request a replay."""

    def __init__(self, config: KvEventsConfig, rank: int, version: KvEventsVersion = "0.33") -> None:
        """Bind the sockets. Raises ValueError if zmq is missing or an endpoint is not available."""
        try:
            import zmq  # noqa: PLC0415 - an extra, and only for those who publish
            import zmq.asyncio  # noqa: PLC0415
        except ImportError:
            raise ValueError("KV events need pyzmq: pip install '.[kv-events]'") from None
        self._zmq: Any = zmq
        self._rank, self._topic = rank, config.topic.encode()
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
                self._replay_task = asyncio.get_running_loop().create_task(self._serve_replay(router))
        except zmq.ZMQError as error:
            self._pub_socket.close(linger=0)
            self._context.destroy(linger=0)
            raise ValueError(f"--kv-events-config: {error}") from None

    def publish(self, timestamp: float, events: list[KvEvent]) -> None:
        """Publish a batch. timestamp: Unix seconds. Never blocks."""
        number, payload = self._replay_buffer.add(build_batch(timestamp, events, self._rank, self._version))
        with suppress(self._zmq.Again):
            self._pub_socket.send_multipart((self._topic, number, payload), self._zmq.NOBLOCK)

    async def _serve_replay(self, router: Any) -> None:  # noqa: ANN401 - a socket of an optional library
        """Serve replay requests: a request's sequence number is answered with all batches from it on and an end
        marker."""
        while True:
            frames: list[bytes] = await router.recv_multipart()
            # The identity, an empty delimiter and the number, as vLLM's subscribers send them. Others get no answer.
            if len(frames) != 3 or len(frames[2]) != 8:
                continue
            client = frames[0]
            for number, payload in self._replay_buffer.since(int.from_bytes(frames[2], "big")):
                await router.send_multipart((client, b"", number, payload))
            await router.send_multipart((client, b"", REPLAY_END, b""))

    def close(self) -> None:
        if self._replay_task is not None:
            self._replay_task.cancel()
        # A socket created without the context's factory is not closed by the context, whose termination would block on
        # it.
        self._pub_socket.close(linger=0)
        self._context.destroy(linger=0)
