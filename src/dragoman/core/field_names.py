"""Names of a request's fields: a dialect, or an upstream, has its own for some of those that the core names.

Errors and warnings that are raised after parsing begin with the core's names.
"""

from __future__ import annotations

import re

from .errors import DragomanError

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

    def rename_error(self, error: DragomanError) -> None:
        """Rename the field that an error names, in its message too."""
        if error.param is not None and (param := self.rename(error.param)) != error.param:
            whole_name = re.compile(rf"(?<![\w.]){re.escape(error.param)}(?!\w)")
            error.message = whole_name.sub(lambda _: param, error.message)
            error.param = param

    def translate(self, error: DragomanError) -> None:
        """As `rename_error`, from the core's name to the client's own. Has no effect the second time."""
        if not error.is_translated and error.param is not None:
            error.is_translated = True
            self.rename_error(error)


CORE_NAMES = FieldNames()
"""Of dialects whose names the core uses."""
