"""The scripted engine: it says what it is told. For tests, demos and bug reports."""

from .engine import ScriptedEngine
from .files import ScriptError, load_script
from .script import Call, Counts, Entry, Fail, Match, Refuse, Say, Script, Think, Wait

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
