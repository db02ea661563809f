"""The servers of the tests of the page at /ui."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from .client_process import serving


class Servers:
    """A cache of servers by their arguments; each is started once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._addresses: dict[str, str] = {}

    def start(self, arguments: str) -> str:
        if arguments not in self._addresses:
            folder = self._folder / str(len(self._addresses))
            folder.mkdir()
            address = self._stack.enter_context(serving(f"{arguments} --store memory", folder))
            self._addresses[arguments] = address
        return self._addresses[arguments]

    def close(self) -> None:
        self._stack.close()
