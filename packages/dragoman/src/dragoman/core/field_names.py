"""Renames the request fields that errors name, from the core's names to the client's.

A dialect or an upstream server may have other names for the request fields than the
core.
"""

from __future__ import annotations

import re

from .errors import DragomanError

# The dotted path at the start of a warning, such as `messages[0].name`.
_LEADING_PATH = re.compile(r"[A-Za-z_][\w.\[\]]*")


class FieldNames:
    """Renames the paths of fields.

    names: pairs of a regular expression for the start of a core path, and its
        replacement; the first match applies.
    """

    def __init__(self, *names: tuple[str, str]) -> None:
        self.names = names
        self._patterns = tuple(
            (re.compile(rf"{pattern}(?!\w)"), replacement) for pattern, replacement in names
        )

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
        """Rename the field from the core's name to the client's own. Has no effect the
        second time.
        """
        if not error.is_translated and error.param is not None:
            error.is_translated = True
            self.rename_error(error)


CORE_NAMES = FieldNames()
"""For dialects that use the core's own names."""
