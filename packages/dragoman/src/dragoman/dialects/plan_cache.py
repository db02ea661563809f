"""A cache of parsed fields, for bodies that differ only in their prompts."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

import msgspec
from msgspec import Raw

from ..core.sized_cache import SizedCache

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
    """

    def __init__(self) -> None:
        self._plans: SizedCache[Hashable, object] = SizedCache(
            MAX_CACHED_BYTES, max_entry_size=MAX_CACHED_BYTES // 8, overhead=ENTRY_BYTES
        )

    @property
    def n_bytes(self) -> int:
        return self._plans.size

    def find_or_build(
        self,
        kind: type[T],
        fields: Mapping[str, Raw],
        varying: tuple[str, ...],
        options: tuple[Hashable, ...],
        build: Callable[[bytes], T],
        *,
        keeps: bool = True,
    ) -> T:
        """Return the plan of a body's fields. Raises the errors of `build`.

        varying: the fields that differ from one request to the next, such as the messages.
        options: the owner, and all options that `build` reads.
        build: gets the body without the varying fields, so that a plan holds nothing of
            them.
        keeps: false if the fields hold credentials, with which no plan is kept.
        """
        others = {**fields}
        for name in varying:
            others.pop(name, None)
        data = msgspec.json.encode(others)
        key = (kind, data, *options)
        plan = self._plans.find(key)
        if not isinstance(plan, kind):
            plan = build(data)
            if keeps:
                self._plans.add(key, plan, len(data))
        return plan
