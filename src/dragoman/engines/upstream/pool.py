"""Load balancing over upstreams: healthy ones, by weight, with affinity to the prompt's prefix.

Independent of connections and time; the caller reports successes and failures.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Sequence

import msgspec
from msgspec import Struct

from ...core.message import Role
from ...core.request import Conversation, Prompt

MAX_PREFIX = 4096
"""Length of the hashed prefix, characters or tokens; prefix caches match from the start."""

OVERLOAD_FACTOR = 1.25
"""Load factor over its share beyond which an upstream passes requests to the next one."""


class Upstream(Struct, frozen=True):
    """One upstream server.

    url: base URL, without `/chat/completions`.
    weight: relative share of new conversations.
    key: bearer token; never logged.
    """

    url: str
    weight: float = 1.0
    key: str | None = None

    def __repr__(self) -> str:
        return f"Upstream({self.url!r})"


class UpstreamPool:
    """At least one upstream. An upstream is up until a failure is reported."""

    def __init__(self, upstreams: Sequence[Upstream]) -> None:
        if not upstreams:
            raise ValueError("at least one upstream is needed")
        self.upstreams = tuple(upstreams)
        self.running = [0] * len(upstreams)
        self._up = [True] * len(upstreams)

    @property
    def is_ready(self) -> bool:
        return any(self._up)

    def is_up(self, index: int) -> bool:
        return self._up[index]

    def set_up(self, index: int, *, up: bool) -> None:
        self._up[index] = up

    def choose(self, prefix: bytes, tried: Collection[int] = ()) -> int | None:
        """Choose the upstream for a prompt prefix; None if none is left.

        Rendezvous hashing: when an upstream goes up or down, only its own conversations move. Bounded load: an upstream
            far
        above its share passes new requests on, so that one popular prefix does not overload it.
        """
        candidates = [index for index in range(len(self.upstreams)) if self._up[index] and index not in tried]
        ranked = sorted(candidates, key=lambda index: self._score(index, prefix), reverse=True)
        # With the new request, or the share of every upstream of an idle pool would be 0.
        total = sum(self.running[index] for index in candidates) + 1
        weights = sum(self.upstreams[index].weight for index in candidates)
        for index in ranked:
            share = total * self.upstreams[index].weight / weights
            if self.running[index] + 1 <= math.ceil(OVERLOAD_FACTOR * share):
                return index
        return ranked[0] if ranked else None

    def _score(self, index: int, prefix: bytes) -> float:
        upstream = self.upstreams[index]
        # 64 bytes are the longest key of BLAKE2b.
        digest = hashlib.blake2b(prefix, digest_size=8, key=upstream.url.encode()[:64]).digest()
        # Strictly between 0 and 1: log(0) is undefined, and log(1) would be the divisor 0.
        uniform = (int.from_bytes(digest) + 1) / (2**64 + 2)
        return -upstream.weight / math.log(uniform)


def build_prefix(prompt: Prompt) -> bytes:
    """Build the prefix that all turns of a conversation share: tools and everything up to the first user message."""
    match prompt:
        case Conversation(messages, tools):
            count = next((n for n, message in enumerate(messages, 1) if message.role is Role.USER), len(messages))
            return msgspec.json.encode((tools, messages[:count]))[: 4 * MAX_PREFIX]
        case str():
            return prompt[:MAX_PREFIX].encode("utf-8", "surrogatepass")
        case tuple():
            return msgspec.json.encode(prompt[:MAX_PREFIX])
