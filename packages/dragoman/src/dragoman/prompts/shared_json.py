"""The JSON of values that many renderings write."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ..core.json_types import JsonValue


class JsonOptions(Struct, frozen=True):
    """The options of `tojson`."""

    ensure_ascii: bool
    indent: int | str | None
    sort_keys: bool


class SharedJson:
    """The JSON of tools, as templates have written it, and what it costs. It grows by the
    forms that a template writes.

    values: the tools' values, which never change.
    """

    def __init__(self, values: Sequence[JsonValue]) -> None:
        self.values = [*values]
        # By id, as dictionaries cannot be keys. The values live as long as this.
        self._texts: dict[int, dict[JsonOptions, tuple[str, int]]] = {}
        for value in values:
            self._texts[id(value)] = {}
            # Some templates write the function alone.
            if isinstance(value, dict) and isinstance(function := value.get("function"), dict):
                self._texts[id(function)] = {}

    def find_texts(self, value: object) -> dict[JsonOptions, tuple[str, int]] | None:
        """Return the texts of a value with the budget that each takes; None if it is not
        shared.
        """
        return self._texts.get(id(value))


NOTHING_SHARED = SharedJson(())
