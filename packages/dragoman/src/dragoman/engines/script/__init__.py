"""Scripted replies: entries and their matching, files, and directives in prompts.

Shared by the engines that accept scripted replies. Pure, except for reading a file;
independent of engines and tokens.
"""

from .directives import build_default_reply, parse_directives, to_conversation
from .match_rule import MatchRule, Subject, build_subject
from .script import (
    CallTool,
    Drop,
    Fail,
    Interruption,
    Part,
    Refuse,
    Say,
    Script,
    ScriptEntry,
    Think,
    UsageOverride,
    Wait,
    join_pieces,
)
from .script_file import ScriptError, load_script, read_entry
from .script_state import ScriptSource, ScriptState
from .scripted_error import build_error
from .validate_reply import filter_reasoning, validate_reply

__all__ = [
    "CallTool",
    "Drop",
    "Fail",
    "Interruption",
    "MatchRule",
    "Part",
    "Refuse",
    "Say",
    "Script",
    "ScriptEntry",
    "ScriptError",
    "ScriptSource",
    "ScriptState",
    "Subject",
    "Think",
    "UsageOverride",
    "Wait",
    "build_default_reply",
    "build_error",
    "build_subject",
    "filter_reasoning",
    "join_pieces",
    "load_script",
    "parse_directives",
    "read_entry",
    "to_conversation",
    "validate_reply",
]
