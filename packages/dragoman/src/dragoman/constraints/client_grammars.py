"""Converts clients' regexes, choices or grammars to Lark, with limits on their size."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from ..core.errors import RequestError
from ..core.request import (
    ContextFreeGrammar,
)
from .json_schema import (
    MAX_INTERSECTED_PATTERNS,
    parse_schema,
)

MAX_REGEX_BYTES = 4 * 1024


MAX_GRAMMAR_BYTES = 64 * 1024


MAX_RULES = 2_000


_LARK_LEXEME = re.compile(r'//[^\n]*|#[^\n]*|"(?:[^"\\\n]|\\.)*"|/(?:[^/\\\n]|\\.)+/|%json\b|&')
"""Comments, strings, regular expressions, inline schemas and intersections of Lark,
lexed so that none hides another.
"""


def build_regex(pattern: str, param: str) -> str:
    """Convert a regular expression to a Lark terminal. Raises RequestError if it is too
    long.
    """
    import llguidance  # noqa: PLC0415 (loaded when it is needed)

    if len(pattern.encode("utf-8", "surrogatepass")) > MAX_REGEX_BYTES:
        raise RequestError(
            f"The regular expression is longer than {MAX_REGEX_BYTES // 1024} KiB.", param=param
        )
    # `//` would begin a comment.
    return f"/{llguidance.regex_to_lark(pattern, 'd')}/" if pattern else '""'


def build_choices(options: Sequence[str], param: str) -> str:
    """Build a Lark alternation of the choices. Raises RequestError if there are none or
    they are too large.
    """
    if not options:
        raise RequestError("The list of choices is empty.", param=param)
    if sum(len(option.encode("utf-8", "surrogatepass")) for option in options) > MAX_GRAMMAR_BYTES:
        raise RequestError(
            f"The choices are larger than {MAX_GRAMMAR_BYTES // 1024} KiB.", param=param
        )
    # Lark's strings have JSON's escapes. A choice that occurs twice would only be an
    # ambiguity for the parser.
    return "(" + " | ".join(map(json.dumps, dict.fromkeys(options))) + ")"


def build_context_free(grammar: ContextFreeGrammar, param: str) -> str:
    """Convert a client's grammar to llguidance's Lark dialect.

    Raises RequestError if it is too large, invalid or of unknown syntax.
    """
    text = grammar.definition
    if len(text.encode("utf-8", "surrogatepass")) > MAX_GRAMMAR_BYTES:
        raise RequestError(
            f"The grammar is larger than {MAX_GRAMMAR_BYTES // 1024} KiB.", param=param
        )
    match grammar.syntax:
        case "lark":
            _check_lark(text, param)
            return text
        case "gbnf":
            from llguidance import gbnf_to_lark  # noqa: PLC0415

            if text.count("::=") > MAX_RULES:
                raise RequestError(f"The grammar has more than {MAX_RULES} rules.", param=param)
            try:
                return gbnf_to_lark.gbnf_to_lark(text)
            except RecursionError as error:
                raise RequestError("The grammar is nested too deeply.", param=param) from error
            except (
                Exception
            ) as error:  # The converter raises bare Exception, and IndexError at a truncated end.
                raise RequestError(f"Invalid GBNF grammar: {error}", param=param) from error
        case syntax:
            raise RequestError(f"Unknown grammar syntax {syntax!r}; use lark or gbnf.", param=param)


def _check_lark(text: str, param: str) -> None:
    """Check what llguidance does not bound: intersections, and schemas in the grammar."""
    intersections = 0
    match = _LARK_LEXEME.search(text)
    while match is not None:
        end = match.end()
        if match[0] == "&":
            intersections += 1
        elif match[0] == "%json":
            tail = text[end:].lstrip()
            try:
                schema, length = json.JSONDecoder().raw_decode(tail)
            except (ValueError, RecursionError) as error:
                raise RequestError(
                    "The grammar has %json without a JSON Schema.", param=param
                ) from error
            parse_schema(json.dumps(schema), param)
            end = len(text) - len(tail) + length
        match = _LARK_LEXEME.search(text, end)
    if intersections > MAX_INTERSECTED_PATTERNS:
        raise RequestError(
            f"The grammar intersects more than {MAX_INTERSECTED_PATTERNS} terminals.", param=param
        )
