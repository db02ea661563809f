"""The scripted engine: it says what it is told. For tests, demos and bug reports."""

from ..script import (
    Call,
    Counts,
    Entry,
    Fail,
    Match,
    Refuse,
    Say,
    Script,
    ScriptError,
    Think,
    Wait,
    load_script,
)
from .engine import ScriptedEngine

__all__ = [
    "Call",
    "Counts",
    "Entry",
    "Fail",
    "Match",
    "Refuse",
    "Say",
    "Script",
    "ScriptError",
    "ScriptedEngine",
    "Think",
    "Wait",
    "load_script",
]
