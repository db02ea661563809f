"""Declares the engine `upstream`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ....settings.engine_settings import PARSING_SETTINGS
from ...engine_spec import CapabilityRange, EngineSpec
from .settings import UpstreamSettings

if TYPE_CHECKING:
    from ....pipeline.served_model import ServedModel
    from ....serving.clock import Clock
    from ....settings import Settings


def build(settings: Settings, clock: Clock, urls: str) -> ServedModel:
    from .build import build_upstream  # noqa: PLC0415 - imports the HTTP client

    return build_upstream(settings, clock, urls)


def claim(model: str) -> str | None:
    return model if model.startswith(("http:", "https:")) else None


def describe_capabilities() -> Mapping[str, CapabilityRange]:
    from ....core.capabilities import Capabilities  # noqa: PLC0415 - not for each command
    from ....engines.upstream import KINDS  # noqa: PLC0415 - as above

    supported = {
        f"upstream: {kind.name}": Capabilities(kind.features, kind.parameters)
        for kind in KINDS.values()
        if kind.generates
    }
    return {name: CapabilityRange(each, each) for name, each in supported.items()}


# An upstream may start later than this server, so nothing is checked.
SPEC = EngineSpec(
    name="upstream",
    settings=UpstreamSettings,
    supports=PARSING_SETTINGS,
    build=build,
    capabilities=describe_capabilities,
    needs_argument=True,
    claims=claim,
    is_replicable=True,
)
