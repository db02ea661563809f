"""Replies that are told beforehand: what a script is, who is answered by which entry, files, directives in prompts.

Shared by the engines that can be told what to say. Pure, but for reading a file; knows no engine and no token.
"""

from .cast import Cast
from .directives import directed, spoken, undirected
from .failure import error_of
from .files import ScriptError, load_script, read_entry
from .obey import check, wanted
from .script import (
    Call,
    Counts,
    Entry,
    Fail,
    Match,
    Part,
    Refuse,
    Say,
    Script,
    Subject,
    Think,
    Wait,
    joined,
    subject_of,
)

__all__ = [
    "Call",
    "Cast",
    "Counts",
    "Entry",
    "Fail",
    "Match",
    "Part",
    "Refuse",
    "Say",
    "Script",
    "ScriptError",
    "Subject",
    "Think",
    "Wait",
    "check",
    "directed",
    "error_of",
    "joined",
    "load_script",
    "read_entry",
    "spoken",
    "subject_of",
    "undirected",
    "wanted",
]
