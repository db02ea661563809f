"""The names that a dialect's clients use for fields of the core, in errors and warnings that are raised after parsing.

A reader's own errors already name what the client sent; they have `is_translated` and are never renamed.
"""

from __future__ import annotations

import re

from ..core.errors import DragomanError

_LEADING_PATH = re.compile(r"[A-Za-z_][\w.\[\]]*")


class FieldNames:
    """Renames paths. names: (regular expression of the start of a core path, replacement); the first match applies."""

    def __init__(self, *names: tuple[str, str]) -> None:
        self.names = names
        self._patterns = tuple((re.compile(rf"{pattern}(?!\w)"), replacement) for pattern, replacement in names)

    def rename(self, path: str) -> str:
        for pattern, replacement in self._patterns:
            if match := pattern.match(path):
                return match.expand(replacement) + path[match.end() :]
        return path

    def rename_warning(self, warning: str) -> str:
        """Rename the path that a warning starts with, if any."""
        match = _LEADING_PATH.match(warning)
        return warning if match is None else self.rename(match[0]) + warning[match.end() :]

    def translate(self, error: DragomanError) -> None:
        """Rename the field that an error names, in its message too. Has no effect the second time."""
        if error.is_translated or error.param is None:
            return
        error.is_translated = True
        param = self.rename(error.param)
        if param != error.param:
            whole_name = re.compile(rf"(?<![\w.]){re.escape(error.param)}(?!\w)")
            error.message = whole_name.sub(lambda _: param, error.message)
            error.param = param


CORE_NAMES = FieldNames()
"""Of dialects whose names the core uses."""
