"""What an installed package declares about an engine that it adds.

The package registers an `EngineSpec` in the entry point group `dragoman.engines`, under
the name that MODEL begins with.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from typing import Any, Literal

from msgspec import Struct

from ..pipeline.served_model import ServedModel
from ..serving.clock import Clock
from ..settings import Settings
from .ports import ServerPorts

ENGINES = "dragoman.engines"
"""The entry point group in which packages register engines."""


class EngineSpec(Struct, frozen=True, kw_only=True):
    """An engine of an installed package.

    Attributes:
        build: Builds the model from the settings, the clock and MODEL's argument. It
            may raise ValueError, OSError and DragomanError.
        check: Checks MODEL's argument without loading anything. It may raise
            ValueError.
        simulates: What it simulates, such as `vLLM 0.33.0`, for the greeting.
        api_profile: The response format if the settings do not set it.
        is_replicable: Whether each worker process can run one: it uses no accelerator
            and little memory.
        expand_instances: Makes the settings of each server from those with `instances`,
            for an engine of which a process can run several. It may raise ValueError.
        build_ports: Builds the ports of the servers, for an engine that controls them.
    """

    build: Callable[[Settings, Clock, str], ServedModel]
    check: Callable[[str], None] | None = None
    simulates: str | None = None
    api_profile: Literal["openai", "vllm"] = "openai"
    is_replicable: bool = False
    expand_instances: Callable[[Settings], list[Settings]] | None = None
    build_ports: Callable[[Sequence[Settings], ssl.SSLContext | None], ServerPorts] | None = None


def load_entry_point(group: str, name: str) -> Any:  # noqa: ANN401 - what a package registered
    """Load the object that a package registered under this name; None if there is none."""
    entry_point = next(iter(entry_points(group=group, name=name)), None)
    return None if entry_point is None else entry_point.load()


def find_engine_spec(name: str) -> EngineSpec | None:
    """Find the spec of an engine; None for our own engines and for plain factories."""
    registered = load_entry_point(ENGINES, name)
    return registered if isinstance(registered, EngineSpec) else None


def find_spec_of_model(settings: Settings) -> EngineSpec | None:
    """Find the spec of the engine that MODEL names."""
    return find_engine_spec(settings.model.partition(":")[0])
