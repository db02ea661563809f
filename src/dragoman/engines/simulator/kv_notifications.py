"""How the decode side tells the prefill side that it has fetched: one datagram of JSON, sealed with a shared secret.

Fire and forget, as vLLM's notification: one that is lost leaves the blocks to their lease. Keys and values themselves
go nowhere, only their time passes.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable
from ipaddress import ip_address

import msgspec
from msgspec import Struct

from .disaggregation import LEASE_SECONDS, KvTransferParams
from .transfers import KvRole


class KvExtraConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Ours. bytes_per_token: in place of the profile's. peers: addresses that are told of what was fetched there."""

    base_seconds: float = 0.001
    bandwidth: float = 25e9
    bytes_per_token: float | None = None
    lease_seconds: float = LEASE_SECONDS
    peers: tuple[str, ...] = ("127.0.0.1",)
    secret: str = ""


class KvTransferConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """vLLM's `--kv-transfer-config`. kv_ip, kv_port: where reports are taken; port 0 is any that is free.

    kv_connector and what it would do with buffers are taken from vLLM's command lines, and change nothing.
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
        for address in (self.kv_ip, *extra.peers):
            ip_address(address)  # a name would have to be looked up for each report
        if not 0 <= self.kv_port < 1 << 16:
            raise ValueError("kv_port must be a port, or 0")
        if not 0 < extra.lease_seconds < float("inf"):
            raise ValueError("lease_seconds must be more than 0")
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
    """seal: HMAC-SHA256 of the JSON of [engine_id, request_id], in hexadecimal."""

    engine_id: str
    request_id: str
    seal: str


class KvNotifier(asyncio.DatagramProtocol):
    """Of one instance. released: told of each report that is meant for it and sealed with its secret."""

    def __init__(self, config: KvTransferConfig, on_fetched: Callable[[str], None]) -> None:
        self._config, self._on_fetched = config, on_fetched
        self._secret = config.kv_connector_extra_config.secret.encode()
        self._peers = frozenset(config.kv_connector_extra_config.peers)
        self._transport: asyncio.DatagramTransport | None = None

    async def open(self) -> int:
        """The port. Raises ValueError where it cannot be had."""
        config = self._config
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
        """False where it names an address that is none of the peers'. One without an address is told nothing."""
        return source.remote_host is None or source.remote_host in self._peers

    def notify(self, source: KvTransferParams) -> None:
        """Its blocks are wanted no more."""
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
        """A report as it goes out."""
        return msgspec.json.encode(FetchedNotice(engine, id, self._sign(engine, id)))

    def datagram_received(self, data: bytes, addr: tuple[str | object, int]) -> None:  # noqa: ARG002 - asyncio's
        """What is not a report, or not sealed, or for another, is dropped: there is nobody to tell."""
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
