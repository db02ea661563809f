"""Regular expressions that are searched in a stream, whose text arrives in pieces.

`parse_pattern` parses one into a tree, `Program` compiles several, and `PatternSearch`
finds the next match of any of them. It reads each character once, in a time and with a
memory that the size of the program bounds, whatever the pattern and the text: patterns
come with a model's files. It says as soon as a match is certain, and before which
position no text can belong to one.

No library does all of this. `re` and `regex` backtrack, so that a pattern can take
exponential time, which `regex` can only interrupt; RE2 searches whole texts, and does
not say whether more text could still change the result.

The folder imports nothing else of Dragoman. These names are its interface.
"""

from .pattern import (
    Node,
    UnsupportedPattern,
    build_alternation,
    build_literal,
    can_be_empty,
    find_group_names,
    find_literals,
    parse_pattern,
    render_pattern,
    uses_start_anchor,
)
from .pike_vm import PatternMatch, PatternSearch, Program, find_matches

__all__ = [
    "Node",
    "PatternMatch",
    "PatternSearch",
    "Program",
    "UnsupportedPattern",
    "build_alternation",
    "build_literal",
    "can_be_empty",
    "find_group_names",
    "find_literals",
    "find_matches",
    "parse_pattern",
    "render_pattern",
    "uses_start_anchor",
]
