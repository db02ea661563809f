"""Times of one request, simulated or measured."""

from __future__ import annotations

from msgspec import Struct


class Timing(Struct, frozen=True):
    """Times of one request, in seconds on the same clock for all requests of a run.

    arrival_s: time at which the client sent the request.
    scheduled_s: start of its first step; None if a log does not state it.
    cached_tokens: prompt tokens found in the prefix cache.
    preemptions: number of preemptions.
    replica: replica that served the request.
    prefill_replica: replica of the prefill, if it is another one.
    kv_transfer_s: duration of the transfer of keys and values from that replica.
    host_tokens: those of `cached_tokens` that were loaded from host memory, with KV
        offloading.
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
        """Mean time per output token after the first; None for a response of one
        token.
        """
        if self.output_tokens < 2:
            return None
        return (self.last_token_s - self.first_token_s) / (self.output_tokens - 1)
