"""Ranking of replicas, so that a conversation is routed to the one that has it in its
KV cache.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence

from .replica_tag import compute_tag
from .routing_key import RoutingKey

LOAD_FACTOR = 1.25
LOAD_SLACK = 8.0
"""A replica is ranked last if its load exceeds the mean load times LOAD_FACTOR plus
LOAD_SLACK requests.
"""


def rank_replicas(key: RoutingKey | None, loads: Mapping[str, float]) -> Sequence[str]:
    """Return the replicas, best first.

    Rendezvous hashing: all routers agree without communication, and adding or removing
    a replica moves only its own share of the conversations. Overloaded replicas come
    last.

    loads: requests that run or wait at each replica.
    """
    if key is None:
        # Ties are broken at random.
        return sorted(loads, key=lambda replica: (loads[replica], random.random()))
    limit = LOAD_FACTOR * sum(loads.values()) / max(1, len(loads)) + LOAD_SLACK

    def compute_rank(replica: str) -> tuple[bool, bool, bytes]:
        score = hashlib.blake2b(
            f"{key.text}\0{replica}".encode("utf-8", "replace"), digest_size=8
        ).digest()
        # Load before the tag: with a shared store any replica can continue a response,
        # but without the KV cache.
        return loads[replica] > limit, compute_tag(replica) != key.tag, score

    return sorted(loads, key=compute_rank)
