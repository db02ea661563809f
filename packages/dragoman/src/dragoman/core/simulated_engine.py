"""The interface of an engine that simulates another one, with the state that it shows."""

from __future__ import annotations

from typing import Annotated, Protocol

from msgspec import Meta, Struct


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


class MetricOverrides(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Values that metrics have in place of the simulated state, on every rank. None
    leaves the state.

    running, waiting: `vllm:num_requests_running` and `vllm:num_requests_waiting`.
    kv_cache_usage: `vllm:kv_cache_usage_perc`.
    """

    running: Annotated[int, Meta(ge=0)] | None = None
    waiting: Annotated[int, Meta(ge=0)] | None = None
    kv_cache_usage: Annotated[float, Meta(ge=0, le=1)] | None = None


class SimulationState(Struct, frozen=True):
    """The state of a simulated engine.

    time_scale: speed of simulated time; 10 is ten times as fast as real time.
    block_size: tokens in a block of the KV cache.
    latency: coefficients of a step's duration, in seconds; see docs/calibrate.md.
    metrics: what an administrator has set in place of the state.
    """

    time_scale: float
    block_size: int
    max_num_seqs: int
    ranks: tuple[RankState, ...]
    latency: dict[str, object] = {}
    metrics: MetricOverrides = MetricOverrides()


class Simulated(Protocol):
    """An engine that simulates another one. No method blocks.

    simulated_version: version of the server that is simulated.
    """

    @property
    def simulated_version(self) -> str: ...

    def get_simulation(self) -> SimulationState: ...

    def check_time_scale(self) -> None:
        """Check that the speed of simulated time can be changed.

        Raises:
            Unsupported: it cannot be changed while the engine runs.
        """
        ...

    def set_time_scale(self, time_scale: float) -> None:
        """Change the speed of simulated time, from the next step on. Raises as
        `check_time_scale`.
        """
        ...

    def check_latency(self, coefficients: dict[str, object]) -> None:
        """Check coefficients for `set_latency`.

        Raises:
            RequestError: a coefficient does not exist, or its value is invalid.
        """
        ...

    def set_latency(self, coefficients: dict[str, object]) -> None:
        """Change coefficients of a step's duration, from the next step on. Raises as
        `check_latency`.
        """
        ...

    def set_metrics(self, overrides: MetricOverrides) -> None:
        """Replace the values that metrics have in place of the state."""
        ...
