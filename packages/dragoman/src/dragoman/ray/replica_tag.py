"""The tag of a replica in the ids that it generates, by which continuations find it."""

from __future__ import annotations

import hashlib

from ..serving.clock import RandomIdGenerator

TAG_LENGTH = 6


class TaggedIdGenerator:
    """Generates random ids that begin with the replica's tag, so that continuations are
    routed to the same replica.
    """

    def __init__(self, replica: str) -> None:
        self._tag = compute_tag(replica)
        self._ids = RandomIdGenerator()

    def new(self, prefix: str) -> str:
        random_id = self._ids.new(prefix)
        start = len(prefix)
        return prefix + self._tag + random_id[start + TAG_LENGTH :]


def compute_tag(replica: str) -> str:
    return hashlib.blake2b(replica.encode(), digest_size=TAG_LENGTH // 2).hexdigest()
