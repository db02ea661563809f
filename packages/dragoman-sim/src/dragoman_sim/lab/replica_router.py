"""Routing of requests to replicas, by the state of their schedulers, which a router may
see with a delay.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from hashlib import blake2b
from typing import Literal, get_args

from msgspec import Struct

from ..engine.engine_core import EngineCore
from ..engine.keyed_random import KeyedRandom
from ..engine.sequence import SimulatedSequence

Routing = Literal[
    "round-robin",
    "least-loaded",
    "least-requests",
    "least-tokens",
    "power-of-two",
    "prefix-aware",
    "session-affinity",
    "llm-d",
]
ROUTING_POLICIES: tuple[str, ...] = get_args(Routing)
_PREFIX_LOAD_WEIGHT = 16.0
"""Cached blocks that outweigh one unit of load, for `prefix-aware`."""
_QUEUE_WEIGHT = 2.0
_KV_CACHE_WEIGHT = 2.0
_PREFIX_WEIGHT = 3.0
"""Weights of llm-d's default scorers (queue-scorer, kv-cache-utilization-scorer,
prefix-cache-scorer).
"""


class ReplicaState(Struct, frozen=True):
    """A replica's load, as a router sees it.

    waiting, running: numbers of requests.
    tokens: tokens of prompts and outputs so far, of running and waiting requests; 0 if
        not measured.
    kv_usage: share of the blocks in use, 0 to 1.
    """

    waiting: int
    running: int
    tokens: int
    kv_usage: float

    @classmethod
    def measure(cls, core: EngineCore, *, with_tokens: bool = False) -> ReplicaState:
        scheduler = core.scheduler
        tokens = 0
        if with_tokens:
            sequences = (*scheduler.list_running(), *scheduler.list_waiting())
            tokens = sum(sequence.num_tokens for sequence in sequences)
        return cls(scheduler.num_waiting, scheduler.num_running, tokens, scheduler.pool.usage)

    @property
    def requests(self) -> int:
        return self.waiting + self.running

    @property
    def load(self) -> int:
        """Load as in vLLM's data-parallel balancer: waiting requests count four times."""
        return 4 * self.waiting + self.running


class ReplicaRouter:
    """A router: it chooses a replica for each request. All replicas must have the same
    block size.

    Policies:
        round-robin: the next replica in turn. least-loaded: the smallest load, as in
        vLLM's balancer of data-parallel ranks. least-requests, least-tokens: the fewest
        running and waiting requests, or the fewest tokens of these. power-of-two: of
        two random replicas, the one with fewer requests. prefix-aware: the longest
        cached prefix, minus the weighted load. session-affinity: the same replica for
        all requests of a conversation, by rendezvous hashing. llm-d: the highest
        weighted sum of llm-d's scores for queue length, KV cache usage and cached
        prefix.

    state_delay: staleness of the load that the router sees, in seconds, as with metrics
        that are scraped periodically. Cached prefixes are known at once, as from KV
        events.
    seed: random seed.
    """

    def __init__(
        self, policy: Routing = "round-robin", *, state_delay: float = 0.0, seed: int = 0
    ) -> None:
        if not 0 <= state_delay < float("inf"):
            raise ValueError("state_delay must be finite and not negative")
        self.policy = policy
        self.state_delay = state_delay
        self._random = KeyedRandom(seed)
        self._count = 0
        self._history: dict[int, deque[tuple[float, ReplicaState]]] = {}
        self._with_tokens = policy == "least-tokens"

    def choose(
        self,
        sequence: SimulatedSequence,
        cores: Sequence[EngineCore],
        replicas: Sequence[int],
        *,
        session: str = "",
        now: float = 0.0,
    ) -> int:
        """Choose one of `replicas`, which are indices of `cores`.

        session: identifies the conversation; empty for a request without one.
        now: seconds.
        """
        self._count += 1
        if self.policy == "round-robin":
            return replicas[(self._count - 1) % len(replicas)]
        candidates = replicas
        if self.policy == "power-of-two" and len(replicas) > 1:
            first = self._random.randbelow(len(replicas))
            second = self._random.randbelow(len(replicas) - 1)
            # Two different replicas: the second index skips the first.
            candidates = [replicas[first], replicas[second + (second >= first)]]
        if self.policy == "session-affinity":
            # Rendezvous hashing: a new replica only takes conversations over; no others
            # move.
            key = session or sequence.id
            hashes = {
                replica: f"{replica} {key}".encode("utf-8", "surrogatepass")
                for replica in candidates
            }
            return max(
                candidates, key=lambda replica: blake2b(hashes[replica], digest_size=8).digest()
            )
        states = {replica: self._read(replica, cores, now) for replica in candidates}
        shortest = min(state.waiting for state in states.values())
        spread = max(state.waiting for state in states.values()) - shortest

        def score(replica: int) -> tuple[float, float]:
            state = states[replica]
            match self.policy:
                case "least-loaded":
                    return -state.load, 0.0
                case "least-tokens":
                    return -state.tokens, 0.0
                case "prefix-aware":
                    scheduler = cores[replica].scheduler
                    cached = scheduler.count_cached_tokens(sequence) // scheduler.config.block_size
                    return cached - _PREFIX_LOAD_WEIGHT * state.load, 0.0
                case "llm-d":
                    scheduler = cores[replica].scheduler
                    cached = scheduler.count_cached_tokens(sequence) // scheduler.config.block_size
                    num_blocks = sequence.num_prompt_tokens // scheduler.config.block_size
                    queue = 1.0 - (state.waiting - shortest) / spread if spread else 1.0
                    total = _QUEUE_WEIGHT * queue + _KV_CACHE_WEIGHT * (1.0 - state.kv_usage)
                    # Break ties at random, as llm-d's max-score picker does.
                    return total + _PREFIX_WEIGHT * cached / max(
                        1, num_blocks
                    ), self._random.random()
                case _:
                    return -state.requests, 0.0

        return max(candidates, key=score)

    def record(self, replica: int, core: EngineCore, now: float) -> None:
        """Record a replica's state after a change; has an effect only with a delay."""
        if self.state_delay:
            history = self._history.setdefault(replica, deque())
            history.append((now, ReplicaState.measure(core, with_tokens=self._with_tokens)))

    def _read(self, replica: int, cores: Sequence[EngineCore], now: float) -> ReplicaState:
        """Return the state that the router sees: the latest one that is at least
        `state_delay` old.
        """
        if not self.state_delay:
            return ReplicaState.measure(cores[replica], with_tokens=self._with_tokens)
        history = self._history.get(replica)
        # The router has not received any state of this replica yet, so it assumes that
        # the replica is idle.
        if not history or history[0][0] > now - self.state_delay:
            return ReplicaState(0, 0, 0, 0.0)
        while len(history) > 1 and history[1][0] <= now - self.state_delay:
            history.popleft()
        return history[0][1]
