"""Checks of settings that exclude each other, or that would expose the server."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping

from ..core.trusted_proxies import TrustedProxies
from .definition import Settings
from .fields import SUPPORTED_BY
from .option import SettingsError


def check_combinations(settings: Settings, origins: Mapping[str, str]) -> None:
    """Raise SettingsError for settings that exclude each other.

    origins: source and name of each setting that is set.
    """
    for name in ("model", "served_model_name"):
        if settings.models.entries and name in origins:
            raise SettingsError(
                f"{origins[name]} and {origins['models']}: set either one model or several"
            )
    if settings.instances.items:
        # Each instance has its own TCP port, and its state is lost with the process.
        origin = origins["instances"]
        overrides = (pair for instance in settings.instances.items for pair in instance.overrides)
        models = [settings.model, *(value for name, value in overrides if name == "model")]
        supporting = SUPPORTED_BY.get("instances", ())
        engines = (model.partition(":")[0] for model in models)
        if settings.models.entries or any(engine not in supporting for engine in engines):
            raise SettingsError(f"{origin}: only `sim` can run several instances")
        if settings.uds is not None:
            raise SettingsError(f"{origins['uds']} and {origin}: instances need TCP ports")
        if "store" in origins and settings.store not in ("memory", "none"):
            raise SettingsError(
                f"{origins['store']} and {origin}: instances require the store `memory` or `none`"
            )
    for name in ("host", "port"):
        if settings.uds is not None and name in origins:
            raise SettingsError(
                f"{origins['uds']} and {origins[name]}: set either a Unix socket or a TCP address"
            )
    if not re.fullmatch("0?[0-7]{3}", settings.uds_mode):
        raise SettingsError(
            f"{origins['uds_mode']}: {settings.uds_mode!r} is not a mode such as 600 or 660"
        )
    _check_proxies(settings, origins.get("forwarded_allow_ips", ""))
    if (settings.ssl_certfile is None) != (settings.ssl_keyfile is None):
        origin = origins["ssl_certfile" if settings.ssl_keyfile is None else "ssl_keyfile"]
        raise SettingsError(f"{origin}: TLS needs both --ssl-certfile and --ssl-keyfile")
    # A Unix socket is protected by the mode of its file.
    if settings.uds is None:
        check_exposure(settings, origins.get("host", ""))


def _check_proxies(settings: Settings, origin: str) -> None:
    try:
        TrustedProxies(settings.forwarded_allow_ips)
    except ValueError as error:
        raise SettingsError(
            f"{origin}: {error}; use addresses, networks such as 10.0.0.0/8, `unix` or `*`"
        ) from error


def check_exposure(settings: Settings, origin: str) -> None:
    """Raise SettingsError if other machines could use the server without a key.

    origin: source and name of the setting `host`.
    """
    has_keys = bool(settings.api_key) or settings.keys_file is not None
    if not is_loopback(settings.host) and not has_keys and not settings.no_auth:
        raise SettingsError(
            f"{origin}: {settings.host} is reachable from other machines, and no API key is set. "
            "Set one with --api-key (or DRAGOMAN_API_KEY) or --keys-file, or use --no-auth to "
            "allow unauthenticated "
            "access."
        )


def is_loopback(host: str) -> bool:
    """Whether the address is reachable from this machine only. A name other than
    localhost may resolve to anything.
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
