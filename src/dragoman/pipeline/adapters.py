"""The adapters (LoRA) of a model: names that clients call it by, and that its engine hears. They come and go."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import Struct

from ..core.engine import AdapterLoader
from ..core.errors import NotFound, RequestError


class Adapter(Struct, frozen=True):
    """path: where its weights lie, or would."""

    name: str
    path: str


class Adapters:
    """Those that are loaded now, in the order in which they came.

    adapters: those of the beginning, which the engine has already. loader: the engine, where it has to take up their
    weights; None for one that needs only their names.
    """

    def __init__(self, adapters: tuple[Adapter, ...] = (), loader: AdapterLoader | None = None) -> None:
        self._loader = loader
        self._adapters = {adapter.name: adapter for adapter in adapters}

    def __iter__(self) -> Iterator[Adapter]:
        return iter(tuple(self._adapters.values()))

    def __contains__(self, name: object) -> bool:
        return name in self._adapters

    async def load(self, adapter: Adapter, *, replace: bool = False) -> None:
        """again: replace one of this name. Raises RequestError where there is one, as vLLM does, and for weights that
        the engine cannot use."""
        if adapter.name in self._adapters and not replace:
            raise RequestError(
                f"The lora adapter '{adapter.name}' has already been loaded.", param="lora_name", code="already_loaded"
            )
        if self._loader:
            await self._loader.load_adapter(adapter.name, adapter.path)
        self._adapters[adapter.name] = adapter

    def unload(self, name: str) -> None:
        if self._adapters.pop(name, None) is None:
            raise NotFound(f"The lora adapter '{name}' cannot be found.", param="lora_name")
        if self._loader:
            self._loader.unload_adapter(name)


def read_adapter(text: str) -> Adapter:
    """`NAME=PATH`, or vLLM's JSON of `name` and `path`. Raises ValueError."""
    if text.lstrip().startswith("{"):
        return msgspec.json.decode(text, type=Adapter)
    name, separator, path = text.partition("=")
    if not separator or not name or not path:
        raise ValueError(f"an adapter is NAME=PATH, not {text[:60]!r}")
    return Adapter(name, path)
