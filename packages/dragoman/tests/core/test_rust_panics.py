"""Panics of Rust libraries become errors of ours, wherever such a library is called."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import dragoman
from dragoman.core.errors import EngineError
from dragoman.core.rust_panics import convert_panics

LIBRARIES = {"jsonschema_rs", "llguidance", "tokenizers"}
TRUSTED = {"client_grammars.py", "engine_kit.py"}
"""Modules that call only what such a library has in Python, or with texts of our own."""


def test_convert_panics_raises_error_instead_of_panic() -> None:
    class PanicException(BaseException):
        """As PyO3 names it."""

    with (
        pytest.raises(EngineError, match="failed") as raised,
        convert_panics(lambda: EngineError("failed")),
    ):
        raise PanicException("overflow")
    assert isinstance(raised.value.__cause__, PanicException)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_convert_panics_passes_other_exceptions_on(error: type[BaseException]) -> None:
    with pytest.raises(error), convert_panics(lambda: EngineError("failed")):
        raise error


def test_calls_of_rust_libraries_convert_panics() -> None:
    root = Path(dragoman.__file__).parent
    callers = {
        path.name: text
        for path in root.rglob("*.py")
        if LIBRARIES.intersection(list_imports(ast.parse(text := path.read_text())))
    }
    assert callers.keys() > TRUSTED
    unprotected = {name for name, text in callers.items() if "_panics(" not in text}
    assert unprotected == TRUSTED


def list_imports(node: ast.AST) -> Iterator[str]:
    """Yield what is imported at run time."""
    match node:
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return
        case ast.Import(names=names):
            yield from (alias.name.partition(".")[0] for alias in names)
        case ast.ImportFrom(module=str(module), level=0):
            yield module.partition(".")[0]
        case _:
            for child in ast.iter_child_nodes(node):
                yield from list_imports(child)
