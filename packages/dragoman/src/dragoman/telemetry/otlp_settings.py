"""The receivers of telemetry, from OpenTelemetry's environment variables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import unquote

from msgspec import Struct

_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_HEADERS = "OTEL_EXPORTER_OTLP_HEADERS"
# A header line: a token, and a value of visible ASCII characters, spaces and tabs.
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+: [\t\x20-\x7e]*")


class OtlpReceivers(Struct, frozen=True):
    """URLs to which spans and metrics are posted; None for what is not sent."""

    traces: str | None
    metrics: str | None


def find_receivers(endpoint: str | None, environment: Mapping[str, str]) -> OtlpReceivers | None:
    """Return the receivers; None if no endpoint is set, or OTEL_SDK_DISABLED is.

    The exporters read the other variables, but only log what is wrong with an address
    or a header, so both are checked here.

    endpoint: base URL, which takes precedence over the variables; None if unset.

    Raises:
        ValueError: an endpoint is not an HTTP URL, or a header is malformed.
    """
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    receivers = OtlpReceivers(
        _find_url("traces", endpoint, environment), _find_url("metrics", endpoint, environment)
    )
    if receivers == OtlpReceivers(None, None):
        return None
    for variable in (_HEADERS, *(_name_variable(_HEADERS, kind) for kind in ("TRACES", "METRICS"))):
        _check_headers(variable, environment.get(variable, ""))
    return receivers


def _find_url(signal: str, endpoint: str | None, environment: Mapping[str, str]) -> str | None:
    if environment.get(f"OTEL_{signal.upper()}_EXPORTER") == "none":
        return None
    own = _name_variable(_ENDPOINT, signal.upper())
    for source, url, path in (
        ("--otlp-endpoint", endpoint, f"/v1/{signal}"),
        # By specification this URL is used as it is.
        (own, environment.get(own), ""),
        (_ENDPOINT, environment.get(_ENDPOINT), f"/v1/{signal}"),
    ):
        if url:
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"{source}: {url!r} is not an http or https URL")
            return url.rstrip("/") + path if path else url
    return None


def _name_variable(general: str, signal: str) -> str:
    return general.replace("OTLP_", f"OTLP_{signal}_")


def _check_headers(variable: str, text: str) -> None:
    pairs = (pair.partition("=") for pair in text.split(",") if "=" in pair)
    for encoded_name, _, value in pairs:
        name = unquote(encoded_name.strip())
        # The value can be a credential, so the message does not quote it.
        if _HEADER.fullmatch(f"{name}: {unquote(value.strip())}") is None:
            raise ValueError(f"{variable}: the header {name!r} is malformed")
