"""Panics of libraries written in Rust.

PyO3 raises a panic as `PanicException`, which derives from BaseException: handlers of
Exception let it pass, and it would end a worker thread, or the process. Every call that
gives a library untrusted text, grammars, schemas or files runs under `convert_panics`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager


@contextmanager
def convert_panics(build_error: Callable[[], Exception]) -> Generator[None]:
    """Raise another exception instead of a panic.

    build_error: builds the exception to raise.
    """
    try:
        yield
    except BaseException as error:
        # Each library has a class of its own.
        if type(error).__name__ != "PanicException":
            raise
        raise build_error() from error
