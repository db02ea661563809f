"""What an administrator may order of an engine while it serves. Knows no HTTP."""

from __future__ import annotations

from typing import Literal, Protocol

PauseMode = Literal["abort", "keep"]


class Control(Protocol):
    """An engine that can be held, put to sleep, and told what to say or how to fail. Never blocks."""

    def pause(self, mode: PauseMode = "abort") -> None:
        """No step begins until `resume`. abort: what runs ends now, with what it has said. keep: it goes on then."""
        ...

    def resume(self) -> None: ...

    @property
    def is_paused(self) -> bool: ...

    def sleep(self, level: int = 1, mode: PauseMode = "abort") -> None:
        """Pause, and give the accelerator's memory back: nothing stays cached."""
        ...

    def wake_up(self) -> None: ...

    @property
    def sleep_level(self) -> int:
        """0 is awake."""
        ...

    def reset_prefix_cache(self) -> bool:
        """False where something still holds a part of it."""
        ...

    def tell(self, reply: object) -> None:
        """What the next request is answered: a reply as a script has it. Raises RequestError."""
        ...

    def set_faults(self, faults: object) -> None:
        """How requests fail from now on: a fault or a list of them; an empty list ends it. Raises RequestError."""
        ...

    def faults(self) -> str:
        """The faults in force, as JSON text."""
        ...
