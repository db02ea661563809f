"""The receiver of telemetry, from OpenTelemetry's environment variables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import unquote

from msgspec import Struct

if TYPE_CHECKING:
    pass


# A header line: a token, and a value of visible ASCII characters, spaces and tabs.
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+: [\t\x20-\x7e]*")


class OtlpSettings(Struct, frozen=True):
    """The receiver of telemetry, and the attributes of this server.

    endpoint: base URL, to which `/v1/traces` and `/v1/metrics` are appended.
    headers: HTTP headers of each export; they may contain credentials.
    resource: attributes of this server, such as `service.name`.
    """

    endpoint: str
    headers: Mapping[str, str] = {}
    resource: Mapping[str, str] = {}


def read_otlp_environment(
    endpoint: str | None, environment: Mapping[str, str], version: str
) -> OtlpSettings | None:
    """Read the settings from OpenTelemetry's environment variables; None if no endpoint
    is set.

    endpoint: takes precedence over the variables; None if unset.

    Raises:
        ValueError: the endpoint is not an HTTP URL, or a header is malformed.
    """
    source = "--otlp-endpoint" if endpoint else "OTEL_EXPORTER_OTLP_ENDPOINT"
    endpoint = endpoint or environment.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    if not endpoint or environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    if not endpoint.startswith(("http://", "https://")):
        raise ValueError(f"{source}: {endpoint!r} is not an http or https URL")
    resource = {
        "service.name": "dragoman",
        "service.version": version,
        "telemetry.sdk.name": "dragoman",
        "telemetry.sdk.language": "python",
        **_parse_pairs(environment.get("OTEL_RESOURCE_ATTRIBUTES", "")),
    }
    # By specification this variable takes precedence over a `service.name` in
    # OTEL_RESOURCE_ATTRIBUTES.
    if environment.get("OTEL_SERVICE_NAME"):
        resource["service.name"] = environment["OTEL_SERVICE_NAME"]
    headers = _parse_pairs(environment.get("OTEL_EXPORTER_OTLP_HEADERS", ""))
    for name, value in headers.items():
        # The value can be a credential, so the message does not quote it.
        if _HEADER.fullmatch(f"{name}: {value}") is None:
            raise ValueError(f"OTEL_EXPORTER_OTLP_HEADERS: the header {name!r} is malformed")
    return OtlpSettings(endpoint.rstrip("/"), headers, resource)


def _parse_pairs(text: str) -> dict[str, str]:
    """Parse `name=value,name=value`, with percent-encoding."""
    pairs = (pair.partition("=") for pair in text.split(",") if "=" in pair)
    return {unquote(name.strip()): unquote(value.strip()) for name, _, value in pairs}
