"""Panics of libraries written in Rust.

PyO3 raises a panic as `PanicException`, which derives from BaseException: handlers of
Exception let it pass, and it would end a worker thread, or the process. Every call that
gives a library untrusted text, grammars, schemas or files runs under `convert_panics`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType


class convert_panics:
    """A context that raises another exception instead of a panic.

    build_error: builds the exception to raise.
    """

    # A class, since `contextmanager` takes longer than to encode a short text.
    __slots__ = ("_build_error",)

    def __init__(self, build_error: Callable[[], Exception]) -> None:
        self._build_error = build_error

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        # Each library has a class of its own.
        if kind is not None and kind.__name__ == "PanicException":
            raise self._build_error() from error
