"""LoRA adapters by name, with a unique number for each load, as vLLM requires."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import msgspec

from ...core.engine import TokenRequest
from ...core.errors import RequestError
from . import backend
from .backend import LoRARequest


class AdapterTable:
    """Loaded adapters. vLLM caches weights by an adapter's number and blocks by its name. Both are unique to a load, so
    that cached blocks are never reused for a successor of the same name.

    on_drop: called with the name of an adapter that could not be loaded at a start.
    """

    def __init__(self) -> None:
        self._numbers = count(1)
        self._used: set[str] = set()
        self._adapters: dict[str, LoRARequest] = {}
        self.on_drop: Callable[[str], None] = lambda _: None

    def create(self, name: str, path: str) -> LoRARequest:
        """Create a load request; `register` adds it to the table."""
        number = next(self._numbers)
        unique_name = f"{name}#{number}" if name in self._used else name
        self._used.add(name)
        return backend.lora.LoRARequest(unique_name, number, path)

    def register(self, name: str, adapter: LoRARequest) -> None:
        self._adapters[name] = adapter

    def remove(self, name: str) -> None:
        self._adapters.pop(name, None)

    def drop(self, name: str) -> None:
        """Remove an adapter that could not be loaded."""
        self.remove(name)
        self.on_drop(name)

    def list_names(self) -> tuple[str, ...]:
        return tuple(self._adapters)

    def get(self, name: str) -> LoRARequest:
        return self._adapters[name]

    def find_for(self, request: TokenRequest) -> LoRARequest | None:
        """Find the adapter of a request. Raises RequestError if it was unloaded."""
        text = dict(request.extras).get("lora")
        if text is None:
            return None
        name = msgspec.json.decode(text, type=str)
        adapter = self._adapters.get(name)
        if adapter is None:
            raise RequestError(f"The lora adapter '{name}' is not loaded.", param="model")
        return adapter
