"""The interface of an engine that can be paused, put to sleep or emptied."""

from __future__ import annotations

from typing import Literal, Protocol

PauseMode = Literal["abort", "wait", "keep"]
"""vLLM's pause modes: `abort` ends running sequences with the output so far, `wait`
lets them finish first, `keep` freezes them until `resume`.
"""


class EngineControl(Protocol):
    """An engine that can be paused and put to sleep.

    All methods are called on the server's event loop and return when the change has
    taken effect.
    """

    async def pause(self, mode: PauseMode = "abort", *, clear_cache: bool = True) -> None:
        """Start no step until `resume`. With `keep`, requests that arrive meanwhile are
        queued.

        clear_cache: drop the prefix cache; sequences that continue afterwards are
            prefilled again.

        Raises:
            Unsupported: the engine does not have this mode.
        """
        ...

    async def resume(self) -> None:
        """Continue stepping. A sleeping engine stays asleep."""
        ...

    @property
    def is_paused(self) -> bool: ...

    async def sleep(self, level: int = 1, mode: PauseMode = "abort") -> None:
        """Pause and free memory. Requests that arrive meanwhile are queued.

        level: 0 frees nothing, 1 frees the KV cache, 2 frees the weights too.

        Raises:
            Unsupported: the engine does not have this level.
        """
        ...

    async def wake_up(self) -> None: ...

    @property
    def sleep_level(self) -> int:
        """The current sleep level; 0 is awake or only paused."""
        ...

    async def abort_all(self) -> int:
        """End all waiting and running sequences with the output so far, and return how
        many there were.
        """
        ...
