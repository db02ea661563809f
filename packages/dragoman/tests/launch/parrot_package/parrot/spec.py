"""Declares the engine `parrot`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Struct

from dragoman.launch.engine_spec import EngineSpec
from dragoman.settings.option import Option

if TYPE_CHECKING:
    from dragoman.pipeline.served_model import ServedModel
    from dragoman.serving.clock import Clock
    from dragoman.settings import Settings


class ParrotSettings(Struct, frozen=True, kw_only=True):
    parrot_voice: Annotated[
        Literal["quiet", "loud"], Option("Parrot", "How loudly the parrot repeats a prompt.")
    ] = "quiet"


def build(settings: Settings, clock: Clock, name: str) -> ServedModel:
    from dragoman.launch.plugin import build_served_model

    from .engine import Parrot

    engine = Parrot(is_loud=settings.of(ParrotSettings).parrot_voice == "loud")
    return build_served_model(engine, settings, clock, own_name=name or "parrot")


def check(name: str) -> None:
    if name and not name.isalpha():
        raise ValueError(f"a parrot's name has letters only, not {name!r}")


SPEC = EngineSpec(
    name="parrot",
    settings=ParrotSettings,
    supports=frozenset({"max_num_seqs"}),
    build=build,
    check=check,
    is_replicable=True,
)
