"""Notifications from the decode side to the prefill side: one JSON datagram per fetch, signed with a shared secret.

Fire and forget, as in vLLM: after a lost notification the lease expires. Keys and values are not transferred; only
the transfer's duration is simulated.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable
from ipaddress import ip_address

import msgspec
from msgspec import Struct

from .disaggregation import LEASE_SECONDS, KvRole, KvTransferParams


class KvExtraConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Dragoman's settings in the connector's extra config.

    bytes_per_token: overrides the profile's.
    peers: addresses that may be notified.
    secret: the key of the signatures.
    """

    base_seconds: float = 0.001
    bandwidth: float = 25e9
    bytes_per_token: float | None = None
    lease_seconds: float = LEASE_SECONDS
    peers: tuple[str, ...] = ("127.0.0.1",)
    secret: str = ""


class KvTransferConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """vLLM's `--kv-transfer-config`. kv_ip, kv_port: where notifications are received; port 0 is any free port.

    Further fields of vLLM's command lines are accepted without effect.
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
                f"kv_connector {self.kv_connector!r} is not simulated: transfers are those of NixlConnector. For "
                "OffloadingConnector use --kv-offloading-size; LMCacheConnectorV1 and others have no counterpart"
            )
        for address in (self.kv_ip, *extra.peers):
            ip_address(address)  # a name would have to be looked up for each report
        if not 0 <= self.kv_port < 1 << 16:
            raise ValueError("kv_port must be a port, or 0")
        if not 0 < extra.lease_seconds < float("inf"):
            raise ValueError("lease_seconds must be more than 0")
        # Who can send a report can free blocks of other requests.
        if not extra.secret and not ip_address(self.kv_ip).is_loopback:
            raise ValueError("kv_connector_extra_config.secret is required if kv_ip is not a loopback address")

    @property
    def is_producer(self) -> bool:
        return self.kv_role != "kv_consumer"


def parse_kv_transfer_config(text: str) -> KvTransferConfig:
    """Raises ValueError."""
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
    """The notification socket of one instance. on_fetched: called for each valid notification with the request id."""

    def __init__(self, config: KvTransferConfig, on_fetched: Callable[[str], None]) -> None:
        self._config, self._on_fetched = config, on_fetched
        self._secret = config.kv_connector_extra_config.secret.encode()
        self._peers = frozenset(config.kv_connector_extra_config.peers)
        self._transport: asyncio.DatagramTransport | None = None

    async def open(self) -> int:
        """Bind the socket and return its port. Raises ValueError if it is not available."""
        config = self._config
        # Only producers are notified. A consumer sends from any port, so that it can share an address with a producer.
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
        """Whether the source's address is an allowed peer. A source without an address is not notified."""
        return source.remote_host is None or source.remote_host in self._peers

    def notify(self, source: KvTransferParams) -> None:
        """Notify the source that its blocks are no longer needed."""
        host, port, engine, id = (
            source.remote_host,
            source.remote_port,
            source.remote_engine_id,
            source.remote_request_id,
        )
        if self._transport is None or host is None or not port or engine is None or id is None:
            return
        self._transport.sendto(self.encode_notice(engine, id), (host, port))

    def encode_notice(self, engine: str, id: str) -> bytes:
        """Encode and sign a notification."""
        return msgspec.json.encode(FetchedNotice(engine, id, self._sign(engine, id)))

    def datagram_received(self, data: bytes, addr: tuple[str | object, int]) -> None:  # noqa: ARG002 - asyncio's
        """Handle a datagram. Invalid, unsigned or misdirected ones are dropped: UDP has no error response."""
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
