"""Adapters (LoRA) by their names, as vLLM wants to hear of them: a number for each load."""

from __future__ import annotations

from itertools import count

import msgspec

from ...core.engine import TokenRequest
from ...core.errors import RequestError
from . import backend
from .backend import LoRARequest


class AdapterTable:
    """vLLM keeps weights by an adapter's number and cached blocks by its name. No two loads share either, so that what
    one computed is not found for its successor."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._used: set[str] = set()
        self._adapters: dict[str, LoRARequest] = {}

    def create(self, name: str, path: str) -> LoRARequest:
        """Not known yet: `put` makes it so."""
        number = next(self._numbers)
        unique_name = f"{name}#{number}" if name in self._used else name
        self._used.add(name)
        return backend.lora.LoRARequest(unique_name, number, path)

    def register(self, name: str, adapter: LoRARequest) -> None:
        self._adapters[name] = adapter

    def remove(self, name: str) -> None:
        self._adapters.pop(name, None)

    def list_all(self) -> tuple[LoRARequest, ...]:
        return tuple(self._adapters.values())

    def find_for(self, request: TokenRequest) -> LoRARequest | None:
        """Raises RequestError for one that is not here any more."""
        text = dict(request.extras).get("lora")
        if text is None:
            return None
        name = msgspec.json.decode(text, type=str)
        adapter = self._adapters.get(name)
        if adapter is None:
            raise RequestError(f"The lora adapter '{name}' is not loaded.", param="model")
        return adapter
