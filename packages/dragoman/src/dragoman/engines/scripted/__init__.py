"""The scripted engine, which replies from a script; for tests, demos and bug reports."""

from ..script import (
    CallTool,
    Drop,
    Fail,
    Interruption,
    MatchRule,
    Refuse,
    Say,
    Script,
    ScriptEntry,
    ScriptError,
    ScriptSource,
    Think,
    UsageOverride,
    Wait,
    load_script,
)
from .engine import ScriptedEngine

__all__ = [
    "CallTool",
    "Drop",
    "Fail",
    "Interruption",
    "MatchRule",
    "Refuse",
    "Say",
    "Script",
    "ScriptEntry",
    "ScriptError",
    "ScriptSource",
    "ScriptedEngine",
    "Think",
    "UsageOverride",
    "Wait",
    "load_script",
]
