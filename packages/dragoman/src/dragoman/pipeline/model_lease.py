"""The lease of a response, which keeps its model loaded until it ends."""

from __future__ import annotations

from contextlib import AbstractContextManager

from .driver import Stage


class Lease(Stage):
    """Prevents a model from being unloaded until the response ends."""

    __slots__ = ("_usage_guard",)

    def __init__(self, usage_guard: AbstractContextManager[None]) -> None:
        self._usage_guard = usage_guard
        usage_guard.__enter__()

    def close(self, _: BaseException | None, /) -> None:
        self._usage_guard.__exit__(None, None, None)
