"""The interface of an engine whose weights can be replaced while it serves."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from .errors import Overloaded


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

    @property
    def history(self) -> WeightHistory | None:
        """What the engine that replaces this one takes over; None if the weights do not
        end with this one, since another process has them.
        """
        ...

    async def succeed(self, history: WeightHistory) -> None:
        """Take over from a predecessor with a history, whose process has ended or that
        was unloaded, before the first request.

        Weights that were sent at run time are lost with it. Requests are then rejected
        until new ones are sent or the current ones are renamed: otherwise a trainer
        would mistake old weights for new ones.
        """
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
