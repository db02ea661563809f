"""What a process shares of the engine process, to build its model."""

from __future__ import annotations

from msgspec import Struct

from ..core.engine import PrefixCache
from ..engines.remote import EngineClient, EngineDescription
from ..pipeline.lora_adapters import Adapters


class FrontEnd(Struct, frozen=True):
    """The engine of another process, as a front end sees it.

    cache: the engine's prefix cache; None if it reports none.
    adapters: its LoRA adapters; None if it supports none.
    """

    client: EngineClient
    description: EngineDescription
    cache: PrefixCache | None
    adapters: Adapters | None
