"""Transfers that share one bandwidth, equally at every moment."""

from __future__ import annotations

from msgspec import Struct


class TransferCost(Struct, frozen=True, forbid_unknown_fields=True):
    """Cost of a KV transfer.

    bytes_per_token: size of a token's keys and values.
    bandwidth: of the link, in bytes per second.
    base_seconds: latency of each transfer.
    """

    bytes_per_token: float
    bandwidth: float = 25e9
    base_seconds: float = 0.001

    def __post_init__(self) -> None:
        if not 0 < self.bandwidth < float("inf") or not 0 < self.bytes_per_token < float("inf"):
            raise ValueError("a link's bandwidth and a token's bytes must be more than 0")
        if not 0 <= self.base_seconds < float("inf"):
            raise ValueError("a transfer's base_seconds must not be negative")


class NetworkLink:
    """Transfers that share one bandwidth, equally at every moment. Each ends
    base_seconds after its last byte.
    """

    def __init__(self, cost: TransferCost) -> None:
        self._cost = cost
        self._flows: dict[str, float] = {}
        self._completing: dict[str, float] = {}
        self._now = 0.0

    def __len__(self) -> int:
        return len(self._flows) + len(self._completing)

    @property
    def next_completion(self) -> float | None:
        """The time at which the next transfer ends, if no other begins; None if there
        is none.
        """
        ends = list(self._completing.values())
        if self._flows:
            ends.append(self._compute_flow_end() + self._cost.base_seconds)
        return min(ends, default=None)

    def begin(self, key: str, num_tokens: int, now: float) -> None:
        """Begin a transfer. key: identifies the transfer; must not be in use."""
        self._advance(now)
        self._flows[key] = num_tokens * self._cost.bytes_per_token

    def pop_completed(self, now: float) -> list[str]:
        """Return the transfers that have completed by now, in order; each once."""
        self._advance(now)
        completed = sorted((at, key) for key, at in self._completing.items() if at <= now)
        for _, key in completed:
            del self._completing[key]
        return [key for _, key in completed]

    def cancel(self, key: str, now: float) -> None:
        """Cancel a transfer; the others share its bandwidth from now on. Idempotent."""
        self._advance(now)
        self._flows.pop(key, None)
        self._completing.pop(key, None)

    def _compute_flow_end(self) -> float:
        return self._now + min(self._flows.values()) * len(self._flows) / self._cost.bandwidth

    def _advance(self, now: float) -> None:
        while self._flows and (end := self._compute_flow_end()) <= now:
            # Flows share the bandwidth equally, so the one with the fewest bytes left
            # ends next, and until then every flow has transferred the same number of
            # bytes.
            smallest = min(self._flows.values())
            for key, remaining in list(self._flows.items()):
                if remaining == smallest:
                    del self._flows[key]
                    self._completing[key] = end + self._cost.base_seconds
                else:
                    self._flows[key] = remaining - smallest
            self._now = end
        if self._flows:
            transferred = max(0.0, now - self._now) * self._cost.bandwidth / len(self._flows)
            self._flows = {key: remaining - transferred for key, remaining in self._flows.items()}
        self._now = max(self._now, now)
