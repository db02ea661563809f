"""Scripted replies: entries and their matching, files, and directives in prompts.

Shared by the engines that accept scripted replies. Pure, except for reading a file;
independent of engines and tokens.
"""

from .files import ScriptError, load_script, read_entry
from .script import (
    CallTool,
    Fail,
    MatchRule,
    Part,
    Refuse,
    Say,
    Script,
    ScriptEntry,
    ScriptState,
    Subject,
    Think,
    UsageOverride,
    Wait,
    build_default_reply,
    build_error,
    build_subject,
    join_pieces,
    parse_directives,
    to_conversation,
)
from .validate_reply import filter_reasoning, validate_reply

__all__ = [
    "CallTool",
    "Fail",
    "MatchRule",
    "Part",
    "Refuse",
    "Say",
    "Script",
    "ScriptEntry",
    "ScriptError",
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
