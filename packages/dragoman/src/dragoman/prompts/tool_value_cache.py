"""A cache of the values of tools for chat templates."""

from __future__ import annotations

import msgspec

from ..core.message import Tool
from ..core.sized_cache import SizedCache
from .shared_json import SharedJson
from .template_messages import StringVisitor, build_tool_values

MAX_CACHED_CHARS = 1024 * 1024
"""The size of the cache, in characters of the tools' JSON: their values take several
times as much.
"""


class ToolValueCache:
    """An LRU cache of `build_tool_values`: an agent sends the same tools with every
    request, and to convert their schemas costs more than to render a short prompt.
    Thread-safe.

    Renderings share the values, whose sandbox changes none, and their JSON. Each owner finds
    only its own tools, so the latency of a request reveals nothing about those of
    others.

    visit: see `build_tool_values`. Must return the same string every time.
    max_chars: the size of all entries.
    """

    def __init__(self, visit: StringVisitor, max_chars: int = MAX_CACHED_CHARS) -> None:
        self._visit = visit
        self._values: SizedCache[tuple[str, tuple[Tool, ...]], SharedJson] = SizedCache(max_chars)

    @property
    def n_chars(self) -> int:
        return self._values.size

    def find_or_build(self, owner: str | None, tools: tuple[Tool, ...]) -> SharedJson:
        """Return the values of these tools, and their JSON. Raises as
        `build_tool_values`.

        owner: whose entries may be used; None disables the cache.
        """
        if owner is None or not tools:
            return SharedJson(build_tool_values(tools, self._visit))
        key = (owner, tools)
        shared = self._values.find(key)
        if shared is None:
            shared = SharedJson(build_tool_values(tools, self._visit))
            self._values.add(key, shared, len(msgspec.json.encode(tools)))
        return shared

    def has(self, owner: str, tools: tuple[Tool, ...]) -> bool:
        """Whether the values of these tools are known."""
        return self._values.find((owner, tools)) is not None
