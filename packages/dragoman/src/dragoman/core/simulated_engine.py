"""The interface of an engine that simulates another one, with the state that it shows."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct


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
