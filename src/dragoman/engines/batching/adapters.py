"""Adapters (LoRA) of a model by their names: those that are loaded, and what the model made of each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from pathlib import Path

from msgspec import Struct


class LoadedAdapter(Struct, frozen=True):
    """weights: what the model's own runner understands.

    number: no other load has it, so that what one computed is never taken for another's, even under the same name.
    """

    number: int
    weights: object


class AdapterRegistry:
    """read: makes weights of a directory, on any thread; raises RequestError for what the model cannot take."""

    def __init__(self, read: Callable[[Path], object]) -> None:
        self._read = read
        self._numbers = count(1)
        self._adapters: dict[str, LoadedAdapter] = {}

    async def load_adapter(self, name: str, path: str) -> None:
        """As `core.engine.AdapterLoader`."""
        await asyncio.to_thread(self.load, name, path)

    def load(self, name: str, path: str) -> None:
        """As `load_adapter`, on this thread."""
        self._adapters[name] = LoadedAdapter(next(self._numbers), self._read(Path(path)))

    def unload_adapter(self, name: str) -> None:
        """As `core.engine.AdapterLoader`."""
        self._adapters.pop(name, None)

    def find(self, name: str) -> LoadedAdapter | None:
        return self._adapters.get(name)
