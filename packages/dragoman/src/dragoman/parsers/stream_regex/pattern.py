"""Parses the regular expressions of response templates into a tree.

The subset: characters, escapes, classes, `.`, groups (plain, `(?:`, `(?P<name>`), `|`,
greedy and lazy quantifiers, and `^` and `$` for the ends of the response. The semantics
are those of Python's `re` with DOTALL. Lookaround, backreferences, word boundaries,
flags, possessive quantifiers and atomic groups are rejected: without them one pass over
the text is enough.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from msgspec import Struct


class CharClass(Struct, frozen=True):
    """A set of characters, one of which is matched.

    source: its regular expression.
    text: the character if the set has only one, else None.
    """

    source: str
    text: str | None = None


class StartAnchor(Struct, frozen=True):
    """The start of the response."""


class EndAnchor(Struct, frozen=True):
    """The end of the response."""


class ConcatenationNode(Struct, frozen=True):
    """Patterns that match one after the other."""

    items: tuple[Node, ...]


class AlternationNode(Struct, frozen=True):
    """Patterns of which one matches; earlier ones are preferred."""

    options: tuple[Node, ...]


class RepetitionNode(Struct, frozen=True):
    """A repetition of a pattern.

    max_count: None means unbounded.
    is_lazy: fewer repetitions are preferred.
    """

    item: Node
    min_count: int
    max_count: int | None
    is_lazy: bool


class CaptureGroupNode(Struct, frozen=True):
    """A group.

    name: None for a group without a name, which captures nothing.
    """

    name: str | None
    item: Node


Node = (
    CharClass
    | StartAnchor
    | EndAnchor
    | ConcatenationNode
    | AlternationNode
    | RepetitionNode
    | CaptureGroupNode
)

MAX_COPIES = 500
"""Maximum count of a repetition, as the program contains one copy of the repeated
pattern per count.
"""
MAX_DEPTH = 50
"""Maximum nesting of groups: the functions that read the tree are recursive."""

_ESCAPED_CLASSES = frozenset("dDsSwW")
_ESCAPED_CHARS = MappingProxyType(
    {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a", "0": "\0"},
)
_HEX = MappingProxyType({"x": 2, "u": 4, "U": 8})
# A counted quantifier, `{2}`, `{2,}`, `{,3}`, `{2,3}` or `{,}`, and the start of a
# named group.
_COUNT = re.compile(r"\{([0-9]*)(,?)([0-9]*)\}")
_NAME = re.compile(r"\(\?P<([A-Za-z_]\w*)>")


class UnsupportedPattern(ValueError):
    """The pattern is outside the subset, or invalid."""


def build_literal(text: str) -> Node:
    return ConcatenationNode(tuple(_build_char(char) for char in text))


def build_alternation(texts: Sequence[str]) -> Node:
    """Build a pattern that matches any of these texts; the longest match wins."""
    return AlternationNode(
        tuple(build_literal(text) for text in sorted(texts, key=len, reverse=True))
    )


def parse_pattern(source: str) -> Node:
    """Parse a regular expression. Raises UnsupportedPattern, which names the construct
    and its position.
    """
    try:
        re.compile(source, re.DOTALL)
    # OverflowError: a count is too large. RecursionError: the groups are nested too
    #     deeply.
    except (re.error, OverflowError, RecursionError) as error:
        raise UnsupportedPattern(f"invalid regular expression {source!r}: {error}") from error
    parser = _PatternParser(source)
    node = parser.parse_alternatives()
    if parser.pos < len(source):
        raise parser.build_error("an unbalanced ')'")
    return node


def _build_char(char: str) -> CharClass:
    return CharClass(re.escape(char), char)


class _PatternParser:
    """Recursive descent parser; `re` has already validated the pattern."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.pos = 0
        self._depth = 0

    def build_error(self, construct: str) -> UnsupportedPattern:
        return UnsupportedPattern(
            f"{construct} at position {self.pos} of {self.source!r} is not supported"
        )

    def _peek(self) -> str:
        return self.source[self.pos : self.pos + 1]

    def _starts_with(self, text: str) -> bool:
        return self.source.startswith(text, self.pos)

    def parse_alternatives(self) -> Node:
        options = [self._parse_concatenation()]
        while self._peek() == "|":
            self.pos += 1
            options.append(self._parse_concatenation())
        return options[0] if len(options) == 1 else AlternationNode(tuple(options))

    def _parse_concatenation(self) -> Node:
        items: list[Node] = []
        while self._peek() not in ("", "|", ")"):
            item = self._parse_atom()
            bounds = self._parse_bounds()
            if bounds is None:
                items.append(item)
                continue
            is_lazy = self._peek() == "?"
            if self._peek() == "+":
                raise self.build_error("a possessive quantifier")
            self.pos += is_lazy
            if self._parse_bounds() is not None:
                raise self.build_error("a quantifier of a quantifier")
            if isinstance(item, StartAnchor | EndAnchor):
                raise self.build_error("a repeated ^ or $")
            # Such a repetition could loop forever without reading a character; `re` has
            # a special rule for it, which one pass cannot follow.
            if bounds[1] != 1 and can_be_empty(item):
                raise self.build_error("a repetition of what can be empty")
            items.append(RepetitionNode(item, *bounds, is_lazy))
        return ConcatenationNode(tuple(items))

    def _parse_bounds(self) -> tuple[int, int | None] | None:
        simple = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(self._peek())
        if simple is not None:
            self.pos += 1
            return simple
        count = _COUNT.match(self.source, self.pos)
        # Without a number or a comma, the braces are characters.
        if count is None or count.group() == "{}":
            return None
        self.pos = count.end()
        min_count = int(count[1] or 0)
        max_count = min_count if not count[2] else int(count[3]) if count[3] else None
        if max(min_count, max_count or 0) > MAX_COPIES:
            raise self.build_error(f"a count above {MAX_COPIES}")
        return min_count, max_count

    def _parse_atom(self) -> Node:
        char = self._peek()
        match char:
            case "(":
                return self._parse_group()
            case "[":
                # A class is left to `re`: it matches one character, so it cannot
                # backtrack.
                begin = self.pos
                self.pos = self.pos + 1
                self.pos += self._peek() == "^"
                # A leading `]` is a member of the class, not its end.
                self.pos += self._peek() == "]"
                while self._peek() != "]":
                    self.pos += 2 if self._peek() == "\\" else 1
                self.pos += 1
                return CharClass(self.source[begin : self.pos])
            case "\\":
                return self._parse_escape()
            case ".":
                self.pos += 1
                return CharClass(r"[\s\S]")
            case "^" | "$":
                self.pos += 1
                return StartAnchor() if char == "^" else EndAnchor()
            case _:
                self.pos += 1
                return _build_char(char)

    def _parse_group(self) -> Node:
        name = None
        name_match = _NAME.match(self.source, self.pos)
        if name_match is not None:
            name = name_match[1]
            self.pos = name_match.end()
        elif self._starts_with("(?:"):
            self.pos += 3
        elif self._starts_with("(?"):
            raise self.build_error(f"{self.source[self.pos : self.pos + 4]!r}")
        else:
            self.pos += 1
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self.build_error(f"a nesting of more than {MAX_DEPTH} groups")
        item = self.parse_alternatives()
        self._depth -= 1
        self.pos += 1
        return CaptureGroupNode(name, item)

    def _parse_escape(self) -> Node:
        kind = self.source[self.pos + 1]
        if kind in _ESCAPED_CLASSES:
            self.pos += 2
            return CharClass("\\" + kind)
        if kind in "AZ":
            self.pos += 2
            return StartAnchor() if kind == "A" else EndAnchor()
        if kind in _HEX:
            digits = self.source[self.pos + 2 : self.pos + 2 + _HEX[kind]]
            self.pos += 2 + len(digits)
            return _build_char(chr(int(digits, 16)))
        if kind.isalnum() and kind not in _ESCAPED_CHARS:
            raise self.build_error(f"'\\{kind}'")
        if kind == "0" and self.source[self.pos + 2 : self.pos + 3] in tuple("01234567"):
            raise self.build_error("an octal escape")
        self.pos += 2
        return _build_char(_ESCAPED_CHARS.get(kind, kind))


def find_group_names(node: Node) -> frozenset[str]:
    """Return the names of the pattern's groups."""
    match node:
        case ConcatenationNode(items) | AlternationNode(items):
            return frozenset[str]().union(*map(find_group_names, items))
        case RepetitionNode(item):
            return find_group_names(item)
        case CaptureGroupNode(name, item):
            return find_group_names(item) if name is None else find_group_names(item) | {name}
        case _:
            return frozenset()


def can_be_empty(node: Node) -> bool:
    """Whether the pattern may match the empty string in the middle of a response."""
    match node:
        case ConcatenationNode(items):
            return all(map(can_be_empty, items))
        case AlternationNode(options):
            return any(map(can_be_empty, options))
        case RepetitionNode(item, min_count):
            return min_count == 0 or can_be_empty(item)
        case CaptureGroupNode(_, item):
            return can_be_empty(item)
        case _:
            return False


def uses_start_anchor(node: Node) -> bool:
    match node:
        case ConcatenationNode(items) | AlternationNode(items):
            return any(map(uses_start_anchor, items))
        case RepetitionNode(item) | CaptureGroupNode(_, item):
            return uses_start_anchor(item)
        case _:
            return isinstance(node, StartAnchor)


def render_pattern(node: Node, captures: Mapping[str, str]) -> str | None:
    """Return a matching text with the fewest repetitions and the named groups filled
    in; None if it is ambiguous.
    """
    match node:
        case CharClass(_, text):
            return text
        case ConcatenationNode(items):
            return _join(render_pattern(item, captures) for item in items)
        case AlternationNode(options):
            return next(
                (text for option in options if (text := render_pattern(option, captures))), None
            )
        case RepetitionNode(item, min_count):
            return _join(render_pattern(item, captures) for _ in range(min_count))
        case CaptureGroupNode(name, item):
            return (
                captures[name]
                if name is not None and name in captures
                else render_pattern(item, captures)
            )
        case _:
            return ""


def _join(texts: Iterable[str | None]) -> str | None:
    parts = list(texts)
    present = [part for part in parts if part is not None]
    return "".join(present) if len(present) == len(parts) else None


def find_literals(node: Node) -> list[str]:
    """Return the fixed texts in the pattern."""
    match node:
        case CharClass(_, text):
            return [] if text is None else [text]
        case ConcatenationNode(items):
            runs = list[str]()
            run = ""
            for item in items:
                if isinstance(item, CharClass) and item.text is not None:
                    run += item.text
                    continue
                runs += [run, *find_literals(item)]
                run = ""
            return [text for text in [*runs, run] if text]
        case AlternationNode(options):
            return [run for option in options for run in find_literals(option)]
        case RepetitionNode(item) | CaptureGroupNode(_, item):
            return find_literals(item)
        case _:
            return []
