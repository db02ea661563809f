"""Incremental scanners of JSON, decoding of its strings, and conversion of text to JSON
values by a tool's schema.

The scanners are lenient on purpose: values pass unchanged, whatever they contain. Only
strings and brackets are tracked, to find the end. Every character is read once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import cast

import msgspec
from msgspec import Struct

_WHITESPACE = re.compile(r"[ \t\r\n]*")
_STRING_SPECIALS = re.compile(r'["\\]')
_BRACKETS_OR_QUOTE = re.compile(r'["{}\[\]<`]')
"""`<` and a backtick occur in JSON only inside strings; elsewhere they begin a marker
or end a code block.
"""
_SCALAR_TERMINATORS = re.compile(r"[,\]} \t\r\n]")
_CLOSERS = MappingProxyType({"{": "}", "[": "]"})
_INVALID_VALUE_STARTS = frozenset(",:]}")


def skip_whitespace(text: str, pos: int) -> int:
    """Return the position after the white space at `pos`."""
    whitespace = _WHITESPACE.match(text, pos)
    return pos if whitespace is None else whitespace.end()


class ReadStatus(Enum):
    """The state of an incremental reader after a read."""

    MORE = "more"
    """All text has been read, and the value is incomplete."""
    KEY = "key"
    """A key ended."""
    VALUE = "value"
    """A value begins."""
    END = "end"
    """The value ended."""
    CLOSE = "close"
    """The object ended."""
    INVALID = "bad"
    """This character is not allowed here."""


class ValueReader:
    """Finds the end of one value of any type. Its statuses are MORE, END and INVALID."""

    def __init__(self) -> None:
        self._closers: list[str] = []
        self._in_string = False
        self._escaped = False
        self._in_scalar = False

    def read(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        """Read from `pos`. Return the position after the value, of the invalid
        character, or the end of the text.
        """
        while pos < len(text):
            if self._escaped:
                self._escaped = False
                pos += 1
            elif self._in_string:
                special = _STRING_SPECIALS.search(text, pos)
                if special is None:
                    return len(text), ReadStatus.MORE
                self._in_string = self._escaped = special.group() == "\\"
                pos = special.end()
                if not (self._in_string or self._closers):
                    return pos, ReadStatus.END
            elif self._in_scalar:
                # A number ends only with the character after it: 12 may continue as 123
                # in the next chunk.
                end = _SCALAR_TERMINATORS.search(text, pos)
                return (
                    (len(text), ReadStatus.MORE) if end is None else (end.start(), ReadStatus.END)
                )
            elif self._closers:
                pos, status = self._skip_brackets(text, pos)
                if status is not ReadStatus.MORE:
                    return pos, status
            else:
                char = text[pos]
                if char == '"':
                    self._in_string = True
                elif char in _CLOSERS:
                    self._closers.append(_CLOSERS[char])
                else:
                    self._in_scalar = True
                pos += 1
        return pos, ReadStatus.MORE

    def is_plain_continuation(self, text: str) -> bool:
        """Whether this text only continues a string."""
        return self._in_string and not self._escaped and '"' not in text and "\\" not in text

    def _skip_brackets(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        special = _BRACKETS_OR_QUOTE.search(text, pos)
        if special is None:
            return len(text), ReadStatus.MORE
        char = special.group()
        if char == '"':
            self._in_string = True
        elif char in _CLOSERS:
            self._closers.append(_CLOSERS[char])
        # A wrong closing bracket is invalid; a search for the right one could consume
        # the rest of the response.
        elif char in "<`" or char != self._closers.pop():
            return special.start(), ReadStatus.INVALID
        elif not self._closers:
            return special.end(), ReadStatus.END
        return special.end(), ReadStatus.MORE


class ObjectReader:
    """Reads one object and reports its keys and values incrementally."""

    def __init__(self) -> None:
        self.key = ""
        """The last key."""
        self.in_value = False
        """Whether the reader is between VALUE and END, where all text belongs to the
        value.
        """
        self._state: Callable[[ObjectReader, str, int], tuple[int, ReadStatus]] = (
            ObjectReader._parse_open
        )
        self._value = ValueReader()
        self._raw: list[str] = []

    def read(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        """Read from `pos` until a key, a value or the object begins or ends. Return the
        position and the status.
        """
        while True:
            # Inside a key or a value white space may be part of a string.
            if not self.in_value and self._state is not ObjectReader._parse_key:
                pos = skip_whitespace(text, pos)
            if pos >= len(text):
                return pos, ReadStatus.MORE
            pos, status = self._state(self, text, pos)
            if status is not ReadStatus.MORE or pos >= len(text):
                return pos, status

    def is_plain_continuation(self, text: str) -> bool:
        """Whether this text only continues a string in a value."""
        return self.in_value and self._value.is_plain_continuation(text)

    def _parse_open(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        self._state = ObjectReader._parse_first_key
        return (pos + 1, ReadStatus.MORE) if text[pos] == "{" else (pos, ReadStatus.INVALID)

    def _parse_first_key(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        return (pos + 1, ReadStatus.CLOSE) if text[pos] == "}" else self._parse_key_start(text, pos)

    def _parse_key_start(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        if text[pos] != '"':
            return pos, ReadStatus.INVALID
        self._value = ValueReader()
        self._raw = []
        self._state = ObjectReader._parse_key
        return pos, ReadStatus.MORE

    def _parse_key(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        end, status = self._value.read(text, pos)
        self._raw.append(text[pos:end])
        if status is not ReadStatus.END:
            return end, status
        key = decode_string("".join(self._raw))
        if key is None:
            return end, ReadStatus.INVALID
        self.key = key
        self._state = ObjectReader._parse_colon
        return end, ReadStatus.KEY

    def _parse_colon(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        self._state = ObjectReader._parse_value_start
        return (pos + 1, ReadStatus.MORE) if text[pos] == ":" else (pos, ReadStatus.INVALID)

    def _parse_value_start(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        if text[pos] in _INVALID_VALUE_STARTS:
            return pos, ReadStatus.INVALID
        self._value = ValueReader()
        self._state = ObjectReader._parse_value
        self.in_value = True
        return pos, ReadStatus.VALUE

    def _parse_value(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        pos, status = self._value.read(text, pos)
        if status is ReadStatus.END:
            self.in_value = False
            self._state = ObjectReader._parse_comma
        return pos, status

    def _parse_comma(self, text: str, pos: int) -> tuple[int, ReadStatus]:
        self._state = ObjectReader._parse_key_start
        if text[pos] == "}":
            return pos + 1, ReadStatus.CLOSE
        return (pos + 1, ReadStatus.MORE) if text[pos] == "," else (pos, ReadStatus.INVALID)


def decode_string(raw: str) -> str | None:
    """Decode a JSON string; return None if it is not valid."""
    try:
        return msgspec.json.decode(raw, type=str)
    # UnicodeEncodeError: the text has a lone surrogate, which UTF-8 cannot hold.
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None


_ESCAPES = MappingProxyType(
    {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"},
)
_HEX = re.compile(r"[0-9a-fA-F]*")


class EscapeRules(Struct, frozen=True):
    """The escapes of a string syntax.

    single_chars: maps the character after a backslash to the character that the escape
        stands for.
    hex_digits: maps the character after a backslash to the number of hexadecimal digits
        that follow.
    ignored_chars: characters that are not part of the string, such as its quotes.
    """

    single_chars: Mapping[str, str]
    hex_digits: Mapping[str, int]
    ignored_chars: str = ""


JSON_ESCAPES = EscapeRules(_ESCAPES, MappingProxyType({"u": 4}), '"')
PYTHON_ESCAPES = EscapeRules(
    MappingProxyType({**_ESCAPES, "'": "'", "a": "\a", "v": "\v", "0": "\0", "\n": ""}),
    MappingProxyType({"u": 4, "x": 2, "U": 8}),
)


class StringDecoder:
    """Decodes a string incrementally; the JSON quotes are ignored.

    An invalid escape passes unchanged, a lone surrogate becomes U+FFFD.
    """

    def __init__(self, escapes: EscapeRules = JSON_ESCAPES) -> None:
        self._escapes = escapes
        self._plain_text = re.compile("[^\\\\" + escapes.ignored_chars + "]+")
        self._pending = ""
        self._high_surrogate = 0

    def decode(self, raw: str) -> str:
        """Decode the next chunk, except for an incomplete escape at its end."""
        text = self._pending + raw
        pos = 0
        parts = list[str]()
        while pos < len(text):
            plain = self._plain_text.match(text, pos)
            if plain is not None:
                parts.append(self._flush_surrogate() + plain.group())
                pos = plain.end()
            elif text[pos] != "\\":
                pos += 1
            else:
                size = self._decode_escape(text, pos, parts)
                if not size:
                    break
                pos += size
        # An incomplete escape, such as `\u` and three digits.
        self._pending = text[pos:]
        return "".join(parts)

    def flush(self) -> str:
        """Return the remaining text, when the string is complete or truncated."""
        pending = self._pending
        self._pending = ""
        return self._flush_surrogate() + pending

    @property
    def is_plain(self) -> bool:
        """Whether plain text that follows passes unchanged."""
        return not self._pending and not self._high_surrogate

    def _decode_escape(self, text: str, pos: int, parts: list[str]) -> int:
        """Decode one escape into `parts`. Return its length in characters, 0 if it is
        incomplete.
        """
        kind = text[pos + 1 : pos + 2]
        if not kind:
            return 0
        size = self._escapes.hex_digits.get(kind, 0)
        digits = _HEX.match(text, pos + 2, pos + 2 + size)
        if size and digits is not None:
            # The number of digits is fixed. With fewer digits the escape is invalid,
            # unless the chunk ends here.
            if digits.end() == pos + 2 + size:
                parts.append(self._decode_code_unit(int(digits.group(), 16)))
                return 2 + size
            if digits.end() == len(text):
                return 0
        parts.append(self._flush_surrogate() + self._escapes.single_chars.get(kind, "\\" + kind))
        return 2

    def _decode_code_unit(self, code: int) -> str:
        """Decode one UTF-16 code unit; the first half of a surrogate pair waits for the
        second.
        """
        # JSON escapes characters above U+FFFF as a pair of UTF-16 code units (RFC 8259,
        # section 7).
        high_surrogate = self._high_surrogate
        self._high_surrogate = 0
        if high_surrogate and 0xDC00 <= code < 0xE000:
            return chr(0x10000 + ((high_surrogate - 0xD800) << 10) + (code - 0xDC00))
        replacement = "\ufffd" if high_surrogate else ""
        if 0xD800 <= code < 0xDC00:
            self._high_surrogate = code
            return replacement
        return replacement + ("\ufffd" if 0xDC00 <= code < 0xE000 or code > 0x10FFFF else chr(code))

    def _flush_surrogate(self) -> str:
        high_surrogate = self._high_surrogate
        self._high_surrogate = 0
        return "\ufffd" if high_surrogate else ""


# Conversion of a model's text to JSON values, typed by a tool's JSON Schema.

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

_TYPES = MappingProxyType(
    {
        **{type(None): "null", bool: "boolean", int: "integer", float: "number"},
        **{str: "string", list: "array", dict: "object"},
    }
)
_ALIASES = MappingProxyType(
    {
        **dict.fromkeys(("str", "text", "varchar", "char", "enum"), "string"),
        **dict.fromkeys(("int", "int32", "int64", "uint", "uint32", "uint64"), "integer"),
        **dict.fromkeys(("long", "short", "unsigned"), "integer"),
        **dict.fromkeys(("float", "float32", "float64", "double"), "number"),
        **dict.fromkeys(("list", "arr", "sequence"), "array"),
        "bool": "boolean",
        "dict": "object",
    }
)
"""Type names that occur in tools' schemas but are not defined by JSON Schema; the same
as in vLLM 0.33.
"""


def decode(text: str) -> Json:
    """Decode strict JSON. Raises ValueError if the text is not valid JSON or is nested
    too deeply.
    """
    try:
        return cast("Json", json.loads(text, parse_constant=_reject_constant))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _reject_constant(name: str) -> Json:
    raise ValueError(f"{name} is not valid JSON")


def encode(value: Json) -> str:
    """Encode as JSON; a lone surrogate, which UTF-8 cannot encode, is escaped.

    Raises ValueError if the value is nested too deeply.
    """
    try:
        text = json.dumps(value, ensure_ascii=False)
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return text


def find_schema_types(schema: Json, root: Json = None) -> tuple[str, ...]:
    """Return the JSON types that a property's schema allows, in order and unique; () if
    it does not restrict them.

    root: the schema in which references are resolved. Each is followed once, as a
        schema may refer to itself.
    """
    try:
        return tuple(dict.fromkeys(_find_types(schema, root, set())))
    except RecursionError:
        # A chain of hundreds of references.
        return ()


def _find_types(schema: Json, root: Json, visited: set[str]) -> list[str]:
    if not isinstance(schema, dict):
        return []
    declared = schema.get("type")
    names = declared if isinstance(declared, list) else [declared]
    # As in vLLM, the case of a type name does not matter.
    types = [
        _ALIASES.get(name, name)
        for name in [name.lower() for name in names if isinstance(name, str)]
    ]
    for union in ("anyOf", "oneOf"):
        for option in _as_list(schema.get(union)):
            types.extend(_find_types(option, root, visited))
    if not types:
        types.extend(_infer_types(schema, root, visited))
    return [*types, "null"] if types and schema.get("nullable") else types


def _infer_types(schema: dict[str, Json], root: Json, visited: set[str]) -> list[str]:
    """Infer the types of a schema without `type`."""
    if "const" in schema:
        return [_find_type(schema["const"])]
    if "enum" in schema:
        return [_find_type(value) for value in _as_list(schema["enum"])]
    reference = schema.get("$ref")
    # References may be circular (a tree's node refers to itself).
    if isinstance(reference, str) and reference not in visited:
        visited.add(reference)
        return _find_types(resolve(reference, root), root, visited)
    # All parts have to match, so the first part that names a type decides.
    part_types = [_find_types(part, root, visited) for part in _as_list(schema.get("allOf"))]
    if any(part_types):
        return next(filter(None, part_types))
    if "properties" in schema:
        return ["object"]
    return ["array"] if "items" in schema else []


def resolve(reference: str, root: Json) -> Json:
    """Resolve a local reference (`#/$defs/Name`); return None if its target does not
    exist or is not local.
    """
    target = root
    # Other fragments than `#` and a JSON pointer are names of anchors.
    if reference != "#" and not reference.startswith("#/"):
        return None
    for step in reference[1:].split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        target = target.get(name) if isinstance(target, dict) else None
    return target


def _find_type(value: Json) -> str:
    return _TYPES[type(value)]


def _as_list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def coerce(raw: str, types: Sequence[str]) -> Json:
    """Convert the text to the first of these types that fits, other than `string`;
    return it unchanged if none fits.
    """
    for type_name in types:
        try:
            return _convert(raw, type_name)
        except (ValueError, OverflowError):
            continue
    return raw


# A JSON number (RFC 8259, section 6).
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?P<fraction>\.[0-9]+)?(?P<power>[eE][+-]?[0-9]+)?")


def match_number(raw: str, types: Sequence[str]) -> str | None:
    """Return the text, stripped, if it is a JSON number of one of these types, else
    None. This preserves its digits.
    """
    stripped = raw.strip()
    match = _NUMBER.fullmatch(stripped)
    if match is None:
        return None
    is_integer = match["fraction"] is None and match["power"] is None
    return stripped if "number" in types or (is_integer and "integer" in types) else None


def guess(raw: str) -> Json:
    """Convert a text of unknown type: decode it if it is valid JSON, else return it
    unchanged.
    """
    try:
        return decode(raw)
    except ValueError:
        return raw


def _convert(raw: str, type_name: str) -> Json:
    stripped = raw.strip()
    match type_name:
        case "integer" | "number":
            number = float(stripped)
            if number - number != 0:
                raise ValueError("an infinite number, or NaN")
            # A float would change the digits of a large integer.
            if stripped.lstrip("+-").isdecimal():
                return int(stripped)
            if type_name == "number":
                return int(number) if number.is_integer() and "." not in stripped else number
            if number.is_integer():
                return int(number)
        case "boolean" if stripped.lower() in ("true", "1", "false", "0"):
            return stripped.lower() in ("true", "1")
        case "null" if stripped in ("null", "None"):
            return None
        case "object" | "array":
            value = decode(raw)
            if isinstance(value, dict if type_name == "object" else list):
                return value
        case _:
            pass
    raise ValueError(f"no {type_name}")
