"""Panics of llguidance: a grammar within its limits can make it overflow."""

from __future__ import annotations

from contextlib import AbstractContextManager

from ..core.errors import EngineError
from ..core.rust_panics import convert_panics


def convert_grammar_panics() -> AbstractContextManager[None]:
    """Return a context in which a panic is the engine's failure."""
    return convert_panics(build_grammar_failure)


def build_grammar_failure() -> EngineError:
    return EngineError("The grammar engine failed.")
