"""The installed engines, by name."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from dragoman_cli.entry_points import find_entry_points

from ..settings.engine_settings import load_declarations
from .engine_spec import FACTORIES, EngineSpec

if TYPE_CHECKING:
    from ..pipeline.served_model import ServedModel
    from ..serving.clock import Clock
    from ..settings import Settings


def list_engines() -> tuple[EngineSpec, ...]:
    """List the engines that declare themselves, in the order of their names."""
    return tuple(item for item in load_declarations() if isinstance(item, EngineSpec))


def find_engine(name: str) -> EngineSpec | None:
    """Find an engine by its name in MODEL; None if no installed package has it."""
    for spec in list_engines():
        if name == spec.name or name in spec.aliases:
            return spec
    if any(point.name == name for point in find_entry_points(FACTORIES)):
        return EngineSpec(name=name, build=partial(_build_with_factory, name))
    return None


def find_engine_of_format(name: str) -> EngineSpec | None:
    """Find an engine that loads models in a format."""
    return next(
        (spec for spec in list_engines() if spec.local and spec.local.format.name == name), None
    )


def find_spec_of_model(settings: Settings) -> EngineSpec | None:
    """Find the engine that MODEL names."""
    return find_engine(settings.model.partition(":")[0])


def _build_with_factory(name: str, settings: Settings, clock: Clock, argument: str) -> ServedModel:
    from .plugin import build_registered  # noqa: PLC0415 - imports the pipeline

    return build_registered(settings, clock, name, argument)
