"""What an administrator may order of an engine while it serves. Knows no HTTP.

Three small protocols, since hardly any engine has all of them: to hold it, to give it other weights, and to say
beforehand what it answers.
"""

from __future__ import annotations

from typing import Literal, Protocol

from msgspec import Struct

PauseMode = Literal["abort", "wait", "keep"]
"""What becomes of what runs: it ends now with what it has said, it ends by itself first, or it goes on afterwards."""


class EngineControl(Protocol):
    """An engine that can be held and put to sleep. Called on the server's event loop; each returns when it is done."""

    async def pause(self, mode: PauseMode = "abort", *, clear_cache: bool = True) -> None:
        """No step begins until `resume`. With `keep` what comes meanwhile waits too.

        clear_cache: nothing that was computed before is found afterwards; what is kept is computed again.
        Raises Unsupported for a mode that this engine does not have.
        """
        ...

    async def resume(self) -> None:
        """One that sleeps goes on sleeping."""
        ...

    @property
    def is_paused(self) -> bool: ...

    async def sleep(self, level: int = 1, mode: PauseMode = "abort") -> None:
        """Pause, and give memory back: 0 none, 1 what is cached, 2 the weights too. What comes meanwhile waits.

        Raises Unsupported for a level that this engine does not have.
        """
        ...

    async def wake_up(self) -> None: ...

    @property
    def sleep_level(self) -> int:
        """0 is awake, or merely paused."""
        ...

    async def abort_all(self) -> int:
        """Whatever waits or runs ends now with what it has said; how many sequences that were."""
        ...


class WeightsOnDisk(Struct, frozen=True, tag=True):
    """Weights on this machine: a directory of *.safetensors, or one such file."""

    path: str


class WeightsInMemory(Struct, frozen=True, tag=True):
    """Weights in memory: the contents of safetensors files, which hold different tensors."""

    files: tuple[bytes, ...]


Weights = WeightsOnDisk | WeightsInMemory

INITIAL_WEIGHT_VERSION = "default"
"""What the weights are called that a server starts with, as in vLLM and SGLang."""


class Trainable(Protocol):
    """An engine whose weights can be replaced while it serves. Called on the server's event loop."""

    @property
    def weight_version(self) -> str:
        """The name of the weights that sample now."""
        ...

    async def update_weights(self, weights: Weights, version: str | None = None) -> str:
        """All of the model's tensors, by their names in its checkpoint; the version from now on.

        Between two steps: no token is sampled by a mixture. What runs goes on with the new weights, and what was
        computed with the old ones is computed again. version: None makes a name of its own.
        Raises RequestError, naming the tensor, where they do not fit; then nothing has changed.
        """
        ...

    async def set_weight_version(self, version: str) -> None:
        """The same weights by another name."""
        ...


class Scriptable(Protocol):
    """An engine that can be told what to say and how to fail. Never blocks."""

    def enqueue_reply(self, reply: object) -> None:
        """What the next request is answered: a reply as a script has it, or a list of them for as many requests.

        Raises RequestError; nothing has been told then.
        """
        ...

    def set_faults(self, faults: object) -> None:
        """How requests fail from now on: a fault or a list of them; an empty list ends it. Raises RequestError."""
        ...

    def get_faults(self) -> str:
        """The faults in force, as JSON text."""
        ...
