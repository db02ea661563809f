"""Checks of the settings for Ray Serve. Does not import Ray."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ..settings import Settings, SettingsError, read_ray_settings


def override_ray(settings: Settings, overrides: Mapping[str, object]) -> Settings:
    """Return the settings with other values in `ray`. Raises SettingsError."""
    try:
        options = read_ray_settings({**msgspec.structs.asdict(settings.ray), **overrides})
    except ValueError as error:
        raise SettingsError(f"ray: {error}") from None
    return msgspec.structs.replace(settings, ray=options)


def check_settings(settings: Settings, *, is_exposed: bool) -> None:
    """Raise SettingsError for settings that cannot be used with Ray Serve.

    is_exposed: as in `build_application`.
    """
    if settings.instances.items:
        raise SettingsError(
            "instances: only `dragoman serve` can run several servers in one process"
        )
    if settings.is_multiprocess:
        raise SettingsError("workers: each replica is one process; set `replicas` of `ray`")
    for name, value in (("uds", settings.uds), ("ssl_certfile", settings.ssl_certfile)):
        if value is not None:
            raise SettingsError(
                f"{name}: clients connect to Ray's proxy, which listens on host and port without "
                f"TLS"
            )
    has_keys = bool(settings.api_key) or settings.keys_file is not None or settings.no_auth
    # By default HAProxy and the replicas listen on all interfaces.
    if is_exposed and not has_keys:
        raise SettingsError(
            "api_key: with HAProxy, Ray Serve is reachable from other machines, and no API key is "
            "set. Set one with "
            "DRAGOMAN_API_KEY or keys-file, or use no-auth to allow unauthenticated access."
        )
