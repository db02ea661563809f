"""Texts for clients without a key, which must not learn the server's file system."""

from __future__ import annotations

import re
from re import Match

_PATH = re.compile(
    r"""
    (?P<quote>["'`])(?P<quoted>(?:file://)?(?:~[\w.-]*/|/|[A-Za-z]:[\\/]|\\\\)[^"'`\n]*)(?P=quote)
    | (?<![\w/.~-])(?:file://)?(?:~[\w.-]*/|/(?=[^\s/])|[A-Za-z]:[\\/](?!/)|\\\\)[^\s"'`<>,;:()\[\]]*
      (?:[ ](?:[^\s"'`<>,;:()\[\]/\\]+[ ]){0,3}[^\s"'`<>,;:()\[\]/\\]+[/\\][^\s"'`<>,;:()\[\]]*)*
    """,
    re.VERBOSE,
)
"""An absolute path: within quotes it may contain spaces. Without quotes, words of which the
last one ends with a separator belong to it, for a folder may have spaces in its name; the
last part is shown anyway. The path of a URL follows its host, and is none.
"""


def hide_paths(text: str) -> str:
    """Return the text with the last part of each absolute path in place of it."""
    return _PATH.sub(_shorten, text)


def _shorten(found: Match[str]) -> str:
    quote = found["quote"] or ""
    path: str = found["quoted"] or found[0]
    # A sentence may end after a path.
    end = path[len(path.rstrip(".")) :]
    parts = re.split(r"[/\\]+", path.rstrip("./\\"))
    return f"{quote}.../{parts[-1]}{end}{quote}"
