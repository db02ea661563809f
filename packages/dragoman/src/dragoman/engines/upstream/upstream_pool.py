"""The upstreams of one model, with load balancing between them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Sequence

import msgspec

from ...core.message import Role
from ...core.request import Conversation, Prompt
from .upstream_server import Upstream

MAX_PREFIX = 4096
"""Length of the hashed prefix, characters or tokens. Only the start of a prompt counts,
as in prefix caches.
"""

OVERLOAD_FACTOR = 1.25
"""Multiple of its share of the load above which an upstream is skipped for the next
one.
"""


class UpstreamPool:
    """Balances the load over the upstreams that are up, by weight and with affinity to
    the prompt's prefix.

    It does no I/O: the caller reports which upstreams are up. An upstream counts as up
    until a failure is reported.

    running: the number of running requests of each upstream, maintained by the caller.
    """

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
        """Choose the upstream for a prompt prefix, and return its index; None if none
        is left.

        Rendezvous hashing: when an upstream goes up or down, only its own conversations
        move. Bounded load: an upstream far above its share passes new requests on, so
        that one popular prefix does not overload it.
        """
        candidates = [
            index for index in range(len(self.upstreams)) if self._up[index] and index not in tried
        ]
        scores: dict[int, float] = {}
        for index in candidates:
            upstream = self.upstreams[index]
            # 64 bytes are the longest key of BLAKE2b.
            digest = hashlib.blake2b(prefix, digest_size=8, key=upstream.url.encode()[:64]).digest()
            # Strictly between 0 and 1: log(0) is undefined, and log(1) would be the
            # divisor 0.
            uniform = (int.from_bytes(digest) + 1) / (2**64 + 2)
            scores[index] = -upstream.weight / math.log(uniform)
        ranked = sorted(candidates, key=scores.__getitem__, reverse=True)
        # The new request counts too: otherwise every share of an idle pool would be 0.
        total = sum(self.running[index] for index in candidates) + 1
        weights = sum(self.upstreams[index].weight for index in candidates)
        for index in ranked:
            share = total * self.upstreams[index].weight / weights
            if self.running[index] + 1 <= math.ceil(OVERLOAD_FACTOR * share):
                return index
        return ranked[0] if ranked else None


def build_prefix(prompt: Prompt) -> bytes:
    """Build the prefix that all turns of a conversation share: tools and everything up
    to the first user message.
    """
    match prompt:
        case Conversation(messages, tools):
            count = next(
                (n for n, message in enumerate(messages, 1) if message.role is Role.USER),
                len(messages),
            )
            return msgspec.json.encode((tools, messages[:count]))[: 4 * MAX_PREFIX]
        case str():
            return prompt[:MAX_PREFIX].encode("utf-8", "surrogatepass")
        case tuple():
            return msgspec.json.encode(prompt[:MAX_PREFIX])
