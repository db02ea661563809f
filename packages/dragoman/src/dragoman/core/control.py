"""Optional engine protocols for administration at run time: pause and sleep, weight
updates, scripted replies.

They are separate protocols because hardly any engine implements all three.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Literal, Protocol, runtime_checkable

from msgspec import Struct

from .errors import Overloaded

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


class WeightsOnDisk(Struct, frozen=True, tag=True):
    """Weights on this machine: a directory of *.safetensors, or one such file."""

    path: str


class WeightsInMemory(Struct, frozen=True, tag=True):
    """Weights in memory: the contents of safetensors files, each with different
    tensors.
    """

    files: tuple[bytes, ...]


Weights = WeightsOnDisk | WeightsInMemory

INITIAL_WEIGHT_VERSION = "default"
"""The version name of the weights that a server starts with, as in vLLM and SGLang."""


class Trainable(Protocol):
    """An engine whose weights can be replaced while it serves. Called on the server's
    event loop.
    """

    @property
    def weight_version(self) -> str:
        """The version of the weights that currently sample."""
        ...

    async def update_weights(self, weights: Weights, version: str | None = None) -> str:
        """Replace all tensors of the model, by their names in its checkpoint, and
        return the new version.

        The swap happens between two steps, so that no token is sampled by a mixture.
        Running sequences continue with the new weights, and their KV cache is computed
        again.

        version: the new version's name; None generates one.

        Raises:
            RequestError: the tensors do not fit; it names the tensor, and nothing has
                changed.
        """
        ...

    async def set_weight_version(self, version: str) -> None:
        """Rename the current weights."""
        ...


class WeightHistory(Struct, frozen=True):
    """The updates of a model's weights since the server's start, for the engine that
    replaces this one.

    version: version of the weights that the engine has.
    updates: number of updates, including those of its predecessors.
    run_time_version: version of the last weights that were sent at run time; None while
        the initial ones are served.
    """

    version: str = INITIAL_WEIGHT_VERSION
    updates: int = 0
    run_time_version: str | None = None


@runtime_checkable
class SucceedingTrainable(Trainable, Protocol):
    """A Trainable that takes over the history of its predecessor, whose process has
    ended or that was unloaded.
    """

    @property
    def history(self) -> WeightHistory: ...

    async def succeed(self, history: WeightHistory) -> None:
        """Take over from the predecessor, before the first request.

        Weights that were sent at run time are lost with it. Requests are then rejected
        until new ones are sent or the current ones are renamed: otherwise a trainer
        would mistake old weights for new ones.
        """
        ...


def build_lost_weights_error(version: str) -> Overloaded:
    """Build the error for requests that would be answered by other weights than those
    sent last.
    """
    return Overloaded(
        f"The model was reloaded and has lost the weights of version {version!r:.80}. Send them "
        f"again, or accept those "
        "of its directory with /update_weight_version.",
        code="weights_lost",
    )


class RankState(Struct, frozen=True):
    """The state of a simulated engine core.

    blocks, used_blocks, cached_blocks: blocks of the KV cache; a block can be in use
        and cached.
    steps: number of steps since the start.
    step_tokens, step_seconds: tokens and simulated seconds of the last steps, oldest
        first.
    """

    running: int
    waiting: int
    blocks: int
    used_blocks: int
    cached_blocks: int
    steps: int
    step_tokens: tuple[int, ...]
    step_seconds: tuple[float, ...]


class SimulationState(Struct, frozen=True):
    """The state of a simulated engine.

    time_scale: speed of simulated time; 10 is ten times as fast as real time.
    block_size: tokens in a block of the KV cache.
    """

    time_scale: float
    block_size: int
    max_num_seqs: int
    ranks: tuple[RankState, ...]


class Simulated(Protocol):
    """An engine that simulates another one. No method blocks."""

    def get_simulation(self) -> SimulationState: ...

    def set_time_scale(self, time_scale: float) -> None:
        """Change the speed of simulated time, from the next step on.

        Raises:
            Unsupported: the speed cannot be changed while the engine runs.
        """
        ...


class Scriptable(Protocol):
    """An engine whose replies and faults are set from outside. No method blocks."""

    def enqueue_reply(self, reply: object) -> None:
        """Queue the reply to the next request: one scripted reply, or a list for as
        many requests.

        Raises:
            RequestError: the reply is invalid; nothing has been queued.
        """
        ...

    def set_faults(self, faults: object) -> None:
        """Replace the faults for all requests from now on: one fault or a list; an
        empty list clears them.

        Raises:
            RequestError: a fault is invalid.
        """
        ...

    def get_faults(self) -> str:
        """Return the active faults as JSON text."""
        ...


# The interface of a model downloader, which `/api/pull` uses.


class PullProgress(Struct, frozen=True, omit_defaults=True):
    """One report of a download, as a client sees it.

    status: the current step, such as `pulling manifest`, `pulling 8eeb52dfb3bb`,
    `verifying sha256 digest`; the last report of a complete download has `success`.
    digest: digest of the file that is being downloaded: `sha256:` and 64 hexadecimal
        digits.
    total, completed: size of that file, and the part of it that has been downloaded, in
        bytes.
    """

    status: str
    digest: str | None = None
    total: int | None = None
    completed: int | None = None


class ModelPuller(Protocol):
    """Downloads models by name. A downloaded model can be served; the puller decides
    whether it is served at once.
    """

    def pull(self, model: str) -> AsyncGenerator[PullProgress]:
        """Download a model, and report the progress. Closing the generator cancels the
        download.

        model: as the client named it, such as `org/name` or `hf.co/org/name:Q4_K_M`.

        Raises:
            NotFound: there is no such model.
            RequestError: it cannot be served here.
            EngineError: the download failed.
        """
        ...
