"""Replies that are told beforehand: what a script is, which entry answers whom, files of them, directives in prompts.

Shared by the engines that can be told what to say. Pure, but for reading a file; knows no engine and no token.
"""

from .cast import Cast
from .directives import directed, undirected
from .failure import error_of
from .files import ScriptError, load_script, read_entry
from .script import Call, Counts, Entry, Fail, Match, Part, Refuse, Say, Script, Subject, Think, Wait, subject_of

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
    "directed",
    "error_of",
    "load_script",
    "read_entry",
    "subject_of",
    "undirected",
]
