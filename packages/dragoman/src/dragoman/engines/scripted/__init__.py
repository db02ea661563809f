"""The scripted engine, which replies from a script; for tests, demos and bug reports."""

from ..script import (
    CallTool,
    Fail,
    MatchRule,
    Refuse,
    Say,
    Script,
    ScriptEntry,
    ScriptError,
    Think,
    UsageOverride,
    Wait,
    load_script,
)
from .engine import ScriptedEngine

__all__ = [
    "CallTool",
    "Fail",
    "MatchRule",
    "Refuse",
    "Say",
    "Script",
    "ScriptEntry",
    "ScriptError",
    "ScriptedEngine",
    "Think",
    "UsageOverride",
    "Wait",
    "load_script",
]
