"""LoRA adapters: model names that clients select, loaded or unloaded at run time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Struct

from ..core.engine import AdapterLoader
from ..core.errors import NotFound, RequestError


class Adapter(Struct, frozen=True):
    """A LoRA adapter.

    name: the model name that clients use.
    path: directory of its weights; engines without real weights never open it.
    """

    name: str
    path: str


class Adapters:
    """The loaded adapters of one model, in the order in which they were loaded.

    adapters: the adapters that the engine has at startup.
    loader: the engine, if it must load the weights; None if it only needs the names.
    is_remote: paths refer to another machine, which checks them.
    """

    def __init__(
        self,
        adapters: tuple[Adapter, ...] = (),
        loader: AdapterLoader | None = None,
        *,
        is_remote: bool = False,
    ) -> None:
        self._loader = loader
        self._is_remote = is_remote
        self._adapters = {adapter.name: adapter for adapter in adapters}

    @property
    def reads_files(self) -> bool:
        """Whether an adapter's path is opened on this machine."""
        return self._loader is not None and not self._is_remote

    def __iter__(self) -> Iterator[Adapter]:
        return iter(tuple(self._adapters.values()))

    def __contains__(self, name: object) -> bool:
        return name in self._adapters

    def find_path(self, name: str) -> str:
        """Return the path of an adapter; empty if none is loaded under this name."""
        adapter = self._adapters.get(name)
        return "" if adapter is None else adapter.path

    async def load(self, adapter: Adapter, *, replace: bool = False) -> None:
        """Load an adapter.

        replace: replace a loaded adapter of the same name.

        Raises:
            RequestError: an adapter of this name is loaded (as in vLLM), or the engine
                cannot use the weights.
        """
        if adapter.name in self._adapters and not replace:
            raise RequestError(
                f"The lora adapter '{adapter.name}' has already been loaded.",
                param="lora_name",
                code="already_loaded",
            )
        if self._loader:
            await self._loader.load_adapter(adapter.name, adapter.path)
        self._adapters[adapter.name] = adapter

    def drop(self, name: str) -> None:
        """Remove an adapter that the engine does not have."""
        self._adapters.pop(name, None)

    def replace_all(self, adapters: Iterable[Adapter]) -> None:
        """Adopt the adapters of an engine in another process, which another front end
        may have changed.
        """
        self._adapters = {adapter.name: adapter for adapter in adapters}

    async def unload(self, name: str) -> None:
        if self._adapters.pop(name, None) is None:
            raise NotFound(f"The lora adapter '{name}' cannot be found.", param="lora_name")
        if self._loader:
            await self._loader.unload_adapter(name)


def read_adapter(text: str) -> Adapter:
    """Parse `NAME=PATH`, or vLLM's JSON object with `name` and `path`. Raises
    ValueError.
    """
    if text.lstrip().startswith("{"):
        return msgspec.json.decode(text, type=Adapter)
    name, separator, path = text.partition("=")
    if not separator or not name or not path:
        raise ValueError(f"an adapter is NAME=PATH, not {text[:60]!r}")
    return Adapter(name, path)
