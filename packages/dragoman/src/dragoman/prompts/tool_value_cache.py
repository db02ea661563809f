"""A cache of the values of tools for chat templates."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

import msgspec

from ..core.json_types import JsonValue
from ..core.message import Tool
from .template_messages import StringVisitor, build_tool_values

MAX_CACHED_CHARS = 1024 * 1024
"""The size of the cache, in characters of the tools' JSON: their values take several
times as much.
"""


class ToolValueCache:
    """An LRU cache of `build_tool_values`: an agent sends the same tools with every
    request, and to convert their schemas costs more than to render a short prompt.
    Thread-safe.

    The values are shared by renderings, whose sandbox changes none. Each owner finds
    only its own tools, so the latency of a request reveals nothing about those of
    others.

    visit: see `build_tool_values`. Must return the same string every time.
    max_chars: the size of all entries.
    """

    def __init__(self, visit: StringVisitor, max_chars: int = MAX_CACHED_CHARS) -> None:
        self._visit = visit
        self._max_chars = max_chars
        self._entries: OrderedDict[tuple[str, tuple[Tool, ...]], tuple[list[JsonValue], int]] = (
            OrderedDict()
        )
        self._lock = Lock()
        self.n_chars = 0

    def find_or_build(self, owner: str | None, tools: tuple[Tool, ...]) -> list[JsonValue]:
        """Return the values of these tools. Raises as `build_tool_values`.

        owner: whose entries may be used; None disables the cache.
        """
        if owner is None or not tools:
            return build_tool_values(tools, self._visit)
        key = (owner, tools)
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
                return entry[0]
        # Outside the lock: building the same values twice costs less than blocking other
        # threads.
        values = build_tool_values(tools, self._visit)
        size = len(msgspec.json.encode(tools))
        with self._lock:
            if key not in self._entries and size <= self._max_chars:
                self._entries[key] = values, size
                self.n_chars += size
                while self.n_chars > self._max_chars:
                    _, (_, oldest_size) = self._entries.popitem(last=False)
                    self.n_chars -= oldest_size
        return values
