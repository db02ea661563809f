"""The interface of a reader of one call."""

from __future__ import annotations

from typing import Protocol

from .json_scanner import ReadStatus


class CallReader(Protocol):
    """Reads one call. Once `has_begun` is true, its name is known and declared and its
    arguments stream.
    """

    @property
    def has_begun(self) -> bool: ...

    @property
    def is_undeclared(self) -> bool:
        """Whether the call names an undeclared tool; it is then only text."""
        ...

    @property
    def is_complete(self) -> bool:
        """Whether the arguments are complete."""
        ...

    @property
    def name(self) -> str: ...

    @property
    def is_custom(self) -> bool: ...

    @property
    def id(self) -> str | None:
        """The id that the model wrote; None if it wrote none."""
        ...

    def read(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        """Continue reading at `pos`, and return the new position and the status.

        The status is MORE, CLOSE after the call's end, or INVALID at a character that
        cannot be part of a call.
        """
        ...

    def is_plain_continuation(self, text: str) -> bool:
        """Whether this text only continues a string in the arguments, and passes
        unchanged.
        """
        ...

    @property
    def end_marker(self) -> str:
        """The delimiter that ended the call, if one did."""
        ...

    @property
    def awaits_delimiter(self) -> bool:
        """Whether the reader expects, and handles, a delimiter at this position."""
        ...

    @property
    def resuming_markers(self) -> tuple[str, ...]:
        """The texts that continue the call after its own end, which was then none; ()
        if it cannot continue. Until `finish` its arguments are open.
        """
        ...

    @property
    def skipped(self) -> str:
        """The text between arguments that is none, without white space around it."""
        ...

    def take_arguments(self) -> str:
        """Return the arguments' text that is new since the previous `take_arguments`."""
        ...

    def finish(self, *, is_truncated: bool) -> None:
        """End the call: no more input follows, although it is incomplete.

        is_truncated: the text was cut off; otherwise the model itself ended it here.
        """
        ...
