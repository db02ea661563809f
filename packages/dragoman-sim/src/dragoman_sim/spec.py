"""Declares the engine `sim` to the server.

The server imports this module to learn about the engine, so what the engine itself
needs is imported when it is built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dragoman.launch.engine_spec import EngineSpec, TranslatedArguments
from dragoman.settings.engine_settings import VLLM_SETTINGS

from .engine.scheduler_config import VLLM_VERSION
from .settings import SimulatorSettings

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping, Sequence

    from dragoman.launch.ports import ServerPorts
    from dragoman.pipeline.served_model import ServedModel
    from dragoman.serving.clock import Clock
    from dragoman.settings import Settings


def build(settings: Settings, clock: Clock, profile: str) -> ServedModel:
    """Build the simulated model."""
    from .build import build_simulator  # noqa: PLC0415 - numpy takes long to import; also below

    return build_simulator(settings, clock, profile)


def translate_arguments(
    arguments: Sequence[str], flags: Mapping[str, bool], environment: Mapping[str, str]
) -> TranslatedArguments:
    """Translate the arguments of a `vllm serve` command line. Raises ValueError."""
    from . import vllm_translation  # noqa: PLC0415

    return vllm_translation.translate_arguments(arguments, flags, environment)


def check(profile: str) -> None:
    """Raise ValueError if there is no such profile."""
    if profile:
        from .engine.profile import load  # noqa: PLC0415

        load(profile)


def expand_instances(settings: Settings) -> list[Settings]:
    """Make the settings of each server. Raises ValueError."""
    from . import instances  # noqa: PLC0415

    return instances.expand_instances(settings)


def build_ports(settings: Sequence[Settings], tls: ssl.SSLContext | None) -> ServerPorts:
    """Build the ports of the servers, whose faults administrators can schedule."""
    from .port_faults import FaultyPort  # noqa: PLC0415
    from .port_schedule import FaultyPorts  # noqa: PLC0415

    return FaultyPorts([FaultyPort(item, tls) for item in settings])


SPEC = EngineSpec(
    name="sim",
    settings=SimulatorSettings,
    supports=VLLM_SETTINGS | {"instances", "directives", "kv_cache_tokens", "close_at_limit"},
    build=build,
    check=check,
    simulates=f"vLLM {VLLM_VERSION}",
    api_profile="vllm",
    is_replicable=True,
    translate_arguments=translate_arguments,
    expand_instances=expand_instances,
    build_ports=build_ports,
)
