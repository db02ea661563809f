"""The warnings about one request to an upstream, for the client."""

from __future__ import annotations

from collections.abc import Iterable

from ...core.field_names import CORE_NAMES, FieldNames


class RequestWarnings:
    """The warnings of a request's encoder, and those that its upstream reports.

    encoder_warnings: about changed or omitted parts of the request.
    names: the upstream's names of fields, which its warnings begin with.
    """

    def __init__(
        self, encoder_warnings: tuple[str, ...] = (), names: FieldNames = CORE_NAMES
    ) -> None:
        self._encoder_warnings = encoder_warnings
        self._names = names
        self._reported: tuple[str, ...] = ()

    def report(self, warnings: Iterable[str]) -> None:
        """Set the upstream's warnings. A list in the body replaces that of the header,
        which is less exact.
        """
        self._reported = self.rename(warnings)

    def rename(self, warnings: Iterable[str]) -> tuple[str, ...]:
        """Return an upstream's warnings with the core's names of fields."""
        return tuple(map(self._names.rename_warning, warnings))

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self._encoder_warnings, *self._reported)))
