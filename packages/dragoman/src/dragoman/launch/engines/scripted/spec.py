"""Declares the engine `scripted`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...engine_spec import EngineSpec
from ...model_file import check_file

if TYPE_CHECKING:
    from ....pipeline.served_model import ServedModel
    from ....serving.clock import Clock
    from ....settings import Settings


def build(settings: Settings, clock: Clock, file: str) -> ServedModel:
    from .build import build_scripted  # noqa: PLC0415 - numpy takes long to import

    return build_scripted(settings, clock, file)


SPEC = EngineSpec(
    name="scripted",
    supports=frozenset({"directives", "max_num_seqs"}),
    build=build,
    check=check_file,
    is_replicable=True,
)
