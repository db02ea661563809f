"""vLLM's `--kv-transfer-config`, with Dragoman's settings in the connector's extra
config.
"""

from __future__ import annotations

from ipaddress import ip_address

import msgspec
from msgspec import Struct

from .block_leases import LEASE_SECONDS
from .transfer_params import KvRole


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
