"""The scripted engine: it replies from a script. For tests, demos and bug reports."""

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
