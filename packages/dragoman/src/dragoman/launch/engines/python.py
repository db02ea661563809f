"""Declares the engine `python`: one that a function in a Python module creates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..engine_spec import EngineSpec

if TYPE_CHECKING:
    from ...pipeline.served_model import ServedModel
    from ...serving.clock import Clock
    from ...settings import Settings


def build(settings: Settings, clock: Clock, path: str) -> ServedModel:
    from ..plugin import build_python  # noqa: PLC0415 - imports the pipeline

    return build_python(settings, clock, path)


# A factory can only be checked by calling it.
SPEC = EngineSpec(name="python", build=build, needs_argument=True)
