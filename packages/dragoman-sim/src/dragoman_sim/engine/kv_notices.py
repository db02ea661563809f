"""Notifications from the decode side to the prefill side: one JSON datagram per fetch,
signed with a shared secret.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable

import msgspec
from msgspec import Struct

from .kv_transfer_config import KvTransferConfig
from .transfer_params import KvTransferParams


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
