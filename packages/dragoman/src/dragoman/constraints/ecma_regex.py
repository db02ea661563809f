"""Regular expressions of JSON Schema, which are ECMA-262's, in llguidance's syntax.

Its syntax is that of Rust's regex crate, where some escapes mean other characters, and
classes can be nested and intersected.
"""

from __future__ import annotations

import re

_WHITE_SPACE = (
    r"\t-\r \u{a0}\u{1680}\u{2000}-\u{200a}\u{2028}\u{2029}\u{202f}\u{205f}\u{3000}\u{feff}"
)
"""WhiteSpace and LineTerminator of ECMA-262 (22.2.2.9). Rust's `\\s` has U+0085 and lacks
U+FEFF.
"""
_CLASSES = {"d": "0-9", "w": "A-Za-z0-9_", "s": _WHITE_SPACE}
"""ASCII in ECMA-262 except for white space, Unicode in Rust."""
_KINDS = tuple(f"\\{kind}" for kind in "dDwWsS")
_ANY_BUT_LINE_END = r"[^\n\r\u{2028}\u{2029}]"
_ANY_TEXT = "(?s:.*)"
"""What the tool call formats put around a pattern that is not anchored."""
_TOKEN = re.compile(
    r"""
    (?P<any_text>\(\?s:\.\*\))
    | (?P<pair>\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})
    | \\u(?P<unit>[0-9a-fA-F]{4})
    | \\c(?P<control>[A-Za-z])
    | (?P<null>\\0(?![0-9]))
    | \\(?P<kind>[dDwWsS])
    | (?P<escape>\\.)
    | (?P<any>\[\^\])
    | (?P<open>\[\^?)
    | (?P<char>.)
    """,
    re.VERBOSE | re.DOTALL,
)


def convert_ecma_regex(pattern: str) -> str:
    """Convert a regular expression. What neither syntax has stays as it is."""
    converted: list[str] = []
    in_class = False
    previous = ""
    n_range_parts = 0
    for token in _TOKEN.finditer(pattern):
        text = token[0]
        kind = token.lastgroup
        n_range_parts = _count_range_parts(n_range_parts, text) if in_class else 0
        match kind:
            case "pair" | "unit" | "control" | "null":
                text = f"\\u{{{_read_code(token):x}}}"
            case "kind":
                name = token["kind"]
                members = _CLASSES[name.lower()]
                negation = "^" if name.isupper() else ""
                text = members if in_class and not negation else f"[{negation}{members}]"
            case "escape" if in_class and text == r"\b":
                text = r"\x08"
            case "any" if not in_class:
                text = "(?s:.)"
            case "open" if in_class:
                text = f"\\{text}"
            case "open":
                in_class = True
            case "char" if in_class:
                # In Rust a class may contain classes, `&&`, `--` and `~~`. A class begins
                # or ends no range: the hyphen of `[\w-.]` and `[+-\d]` is literal.
                is_range = (
                    n_range_parts == 2
                    and previous not in _KINDS
                    and not pattern.startswith(("]", *_KINDS), token.end())
                )
                if text in "&~" or (text == "-" and not is_range):
                    text = f"\\{text}"
                in_class = text != "]"
            case "char" if text == ".":
                text = _ANY_BUT_LINE_END
            case _:
                pass
        converted.append(text)
        previous = token[0]
    return "".join(converted)


def _count_range_parts(n_before: int, text: str) -> int:
    """Return how many parts of a range are read after this text of a class: 1 after its
    start, 2 after the hyphen, 0 after its end.
    """
    return (1, 2 if text == "-" else 1, 0)[n_before]


def _read_code(token: re.Match[str]) -> int:
    """Return the code point that an escape stands for."""
    match token.lastgroup:
        case "pair":
            units = token["pair"].replace("\\u", "")
            return ord(bytes.fromhex(units).decode("utf-16-be"))
        case "unit":
            return int(token["unit"], 16)
        case "control":
            return ord(token["control"]) % 32
        case _:
            return 0
