"""The loaded LoRA adapters, by name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from pathlib import Path

from msgspec import Struct


class LoadedAdapter(Struct, frozen=True):
    """A loaded adapter.

    weights: in the form that the model's runner expects.
    number: unique to this load, so that cached blocks of one load never match
        another's, even under the same name.
    """

    number: int
    weights: object


class AdapterRegistry:
    """Loaded adapters by name.

    read: loads the weights from a directory, on any thread; raises RequestError for an
        adapter that the model does not support.
    """

    def __init__(self, read: Callable[[Path], object]) -> None:
        self._read = read
        self._numbers = count(1)
        self._adapters: dict[str, LoadedAdapter] = {}

    async def load_adapter(self, name: str, path: str) -> None:
        """See `core.engine.AdapterLoader`."""
        await asyncio.to_thread(self.load, name, path)

    def load(self, name: str, path: str) -> None:
        """Load an adapter synchronously, on the calling thread."""
        self._adapters[name] = LoadedAdapter(next(self._numbers), self._read(Path(path)))

    async def unload_adapter(self, name: str) -> None:
        """See `core.engine.AdapterLoader`."""
        self._adapters.pop(name, None)

    def find(self, name: str) -> LoadedAdapter | None:
        return self._adapters.get(name)
