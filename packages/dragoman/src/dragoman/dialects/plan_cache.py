"""A cache of parsed fields, for bodies that differ only in their prompts."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from threading import Lock
from typing import TypeVar

import msgspec
from msgspec import Raw

T = TypeVar("T")

MAX_CACHED_BYTES = 1024 * 1024
"""The size of the cache, in bytes of the fields' JSON: what they are parsed into takes
several times as much.
"""
ENTRY_BYTES = 256
"""The overhead of an entry, in bytes."""


class PlanCache:
    """What sets of fields say, by their JSON: an application sends the same parameters,
    tools and schemas with every request, and to parse and check them costs more than to
    read a short message.

    The oldest entry is evicted first. Thread-safe. Keys must contain the owner, so that
    the latency of a request reveals nothing about the requests of others.

    max_bytes: the size of all entries.
    """

    def __init__(self, max_bytes: int = MAX_CACHED_BYTES) -> None:
        self._max_bytes = max_bytes
        self._plans: dict[Hashable, tuple[object, int]] = {}
        self._lock = Lock()
        self.n_bytes = 0

    def find_or_build(
        self,
        kind: type[T],
        fields: Mapping[str, Raw],
        varying: tuple[str, ...],
        options: tuple[Hashable, ...],
        build: Callable[[bytes], T],
    ) -> T:
        """Return the plan of a body's fields. Raises the errors of `build`.

        varying: the fields that differ from one request to the next, such as the messages.
        options: the owner, and all options that `build` reads.
        build: gets the body without the varying fields, so that a plan holds nothing of
            them.
        """
        others = {**fields}
        for name in varying:
            others.pop(name, None)
        data = msgspec.json.encode(others)
        key = (kind, data, *options)
        plan = self.find(key)
        if not isinstance(plan, kind):
            plan = build(data)
            self.add(key, plan, len(data))
        return plan

    def find(self, key: Hashable) -> object | None:
        entry = self._plans.get(key)
        return None if entry is None else entry[0]

    def add(self, key: Hashable, plan: object, size: int) -> None:
        """Keep a plan. size: bytes of its fields."""
        size += ENTRY_BYTES
        # A single entry must not evict most others.
        if size > self._max_bytes // 8:
            return
        with self._lock:
            if key in self._plans:
                return
            self._plans[key] = plan, size
            self.n_bytes += size
            while self.n_bytes > self._max_bytes:
                _, oldest_size = self._plans.pop(next(iter(self._plans)))
                self.n_bytes -= oldest_size
