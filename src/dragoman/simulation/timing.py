"""Times of one request, simulated or measured."""

from __future__ import annotations

from msgspec import Struct


class Timing(Struct, frozen=True):
    """Seconds on one clock for all requests of a run.

    arrival_s: as the client sent it.
    scheduled_s: beginning of its first step, None where a log does not state it.
    cached_tokens: of the prompt, found in the prefix cache.
    host_tokens: those of them that host memory had, with KV offloading.
    prefill_replica: the instance that made the first step, if it is another one.
    kv_transfer_s: the time for which that instance's keys and values were on their way.
    """

    id: str
    arrival_s: float
    first_token_s: float
    last_token_s: float
    input_tokens: int
    output_tokens: int
    scheduled_s: float | None = None
    cached_tokens: int = 0
    preemptions: int = 0
    replica: int = 0
    prefill_replica: int | None = None
    kv_transfer_s: float = 0.0
    host_tokens: int = 0

    @property
    def ttft(self) -> float:
        """Time to the first token."""
        return self.first_token_s - self.arrival_s

    @property
    def latency(self) -> float:
        """Time to the last token."""
        return self.last_token_s - self.arrival_s

    @property
    def tpot(self) -> float | None:
        """Mean time per output token after the first; None for an answer of one token."""
        if self.output_tokens < 2:
            return None
        return (self.last_token_s - self.first_token_s) / (self.output_tokens - 1)
