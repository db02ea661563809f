"""Decodes request bodies into structs, or raises a RequestError that names the field."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from functools import cached_property
from typing import Generic, TypeVar

import msgspec
from msgspec import Raw, Struct

from ..core.errors import RequestError
from .field_errors import MAX_ECHO, invalid_value, missing_parameter
from .unknown_fields import NestedFields, NestedRules

MAX_DEPTH = 128
"""Maximum nesting of arrays and objects."""
MAX_CONTAINERS = 1_000_000
"""Maximum arrays and objects of a body that may be too deep."""

F = TypeVar("F")
T = TypeVar("T", bound=Struct)

_BRACES_AS_BRACKETS = bytes.maketrans(b"{}", b"[]")
_IRRELEVANT_BYTES = bytes(set(range(256)) - set(b'"[]{}'))
# The path in msgspec's errors, such as "at `$.messages[0].content`".
_PATH = re.compile(r"\$[^`]*")
# An escaped surrogate; group 1 matches for the high half of a pair.
_SURROGATE = re.compile(rb"\\u[dD](?:([89abAB])|[c-fC-F])[0-9a-fA-F]{2}")
_TYPE_NAMES = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "a boolean",
    "array": "an array",
    "object": "an object",
    "null": "null",
}
_NO_OBJECT = "The body must be a JSON object."
_TOO_DEEP = f"The body nests arrays and objects deeper than {MAX_DEPTH} levels."
_top_level_decoder = msgspec.json.Decoder(dict[str, Raw])


class ParsedBody:
    """A body whose top-level fields are split but not decoded. Raises RequestError if
    it is not a JSON object.

    fields: the raw JSON of each field, by name.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        check_text(data)
        try:
            self.fields = _top_level_decoder.decode(data)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise translate_error(error, data) from None

    def find_other_fields(self, *names: frozenset[str]) -> dict[str, Raw]:
        """Return the fields that are in none of the sets, in the order of the body."""
        others = self.fields.keys()
        for known_names in names:
            others = others - known_names
        return {name: raw for name, raw in self.fields.items() if name in others} if others else {}

    def decode_field(self, name: str, decoder: msgspec.json.Decoder[F], schema: BodySchema[T]) -> F:
        """Decode one field: to skip the others, such as tools, would cost a pass over them.

        decoder: of the field's type in the schema, which has no other field.
        """
        try:
            return decoder.decode(self.fields[name])
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            # This error names the field's place in the whole body.
            self.decode(schema)
            raise translate_error(error, self._data) from None

    def decode(self, schema: BodySchema[T]) -> T:
        try:
            return schema.decoder.decode(self._data)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise translate_error(error, self._data) from None


class BodySchema(Generic[T]):
    """The struct type of a request body, with its decoder.

    A server imports the schemas of all routes and most clients use one or two, so what
    is costly to build is built for the first body.

    rules: exceptions for nested unknown fields.
    numbers_as_strings: numbers may be strings, and integers may be written with a
        fraction of 0, as in the JSON of protocol buffers.
    """

    def __init__(
        self,
        type: type[T],
        rules: NestedRules | None = None,
        *,
        numbers_as_strings: bool = False,
    ) -> None:
        self._type = type
        self._is_strict = not numbers_as_strings
        self._rules = rules or NestedRules()
        self.names = frozenset(type.__struct_encode_fields__)

    @cached_property
    def decoder(self) -> msgspec.json.Decoder[T]:
        return msgspec.json.Decoder(self._type, strict=self._is_strict)

    @cached_property
    def nested(self) -> NestedFields:
        return NestedFields(self._type, self._rules)


@contextmanager
def prefix_param(field: str) -> Generator[None]:
    """Prepend `field` to the `param` of errors raised in this context."""
    try:
        yield
    except RequestError as error:
        if error.message == _NO_OBJECT:
            raise RequestError(
                f"Invalid type for '{field}': expected an object.", param=field, code="invalid_type"
            ) from None
        error.param = field if error.param is None else f"{field}.{error.param}"
        raise


def read_json_object(raw: Raw, param: str) -> str | None:
    """Return a free-form object as its original JSON text; None if absent or null.
    Raises RequestError.
    """
    # Checked before decoding, since nearly every free-form field is absent.
    if not bytes(raw) or (text := _strip_null(raw)) is None:
        return None
    if not isinstance(read_json_value(raw, param), dict):
        raise RequestError(
            f"Invalid type for '{param}': expected an object.", param=param, code="invalid_type"
        )
    return text


def read_json_value(raw: Raw, param: str) -> object:
    """Decode the value of a free-form field; None if absent or null. Raises
    RequestError.
    """
    if not bytes(raw) or (text := _strip_null(raw)) is None:
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        raise RequestError(
            f"Invalid value for '{param}': not valid JSON.", param=param, code="invalid_json"
        ) from None


def _strip_null(raw: Raw) -> str | None:
    text = bytes(raw).decode().strip()
    return None if text in ("", "null") else text


def check_text(data: bytes) -> None:
    """Raise RequestError if the body is not UTF-8 or nests deeper than MAX_DEPTH."""
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError:
            raise RequestError("The body is not valid UTF-8.", code="invalid_json") from None
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH and _is_too_deep(data):
        raise RequestError(_TOO_DEEP, code="invalid_json")


def _is_too_deep(data: bytes) -> bool:
    """Whether arrays and objects nest deeper than MAX_DEPTH.

    Each round removes the innermost brackets; the body is too deep if any are left
    after MAX_DEPTH rounds. Only brackets are examined, and their number is limited.
    Mismatched brackets are left to the decoder, which rejects them.

    The interpreter's own recursion limit is not a usable bound: it differs between
    versions (CPython 3.12 and newer count C calls separately from Python calls), and so
    did the error for a body that only opens arrays.
    """
    unescaped = data.replace(rb"\\", b"").replace(rb"\"", b"")
    marks = unescaped.translate(_BRACES_AS_BRACKETS, _IRRELEVANT_BYTES)
    brackets = b"".join(marks.split(b'"')[::2])
    if len(brackets) > 2 * MAX_CONTAINERS:
        raise RequestError(
            f"The body has more than {MAX_CONTAINERS} arrays and objects.", code="invalid_json"
        )
    # Unclosed arrays count as levels too; MAX_DEPTH + 1 closing brackets are enough to
    # detect them.
    brackets += b"]" * (MAX_DEPTH + 1)
    for _ in range(MAX_DEPTH):
        if b"[]" not in brackets:
            return False
        brackets = brackets.replace(b"[]", b"")
    return b"[]" in brackets


def translate_error(error: Exception, data: bytes) -> RequestError:  # noqa: PLR0911 - a table
    """Convert msgspec's error, a RecursionError or a UnicodeError to a RequestError."""
    if isinstance(error, RecursionError):
        return RequestError(_TOO_DEEP, code="invalid_json")
    if not isinstance(error, msgspec.ValidationError):
        # msgspec reports a lone surrogate as an encoding error without its position.
        if _has_lone_surrogate(data):
            return RequestError(
                "A string in the body contains an unpaired surrogate.", code="invalid_json"
            )
        return RequestError(
            f"We could not parse the JSON body of your request: {error}.", code="invalid_json"
        )
    problem, _, location = str(error).partition(" - at ")
    path = _PATH.search(location)
    param = path.group().removeprefix("$").removeprefix(".").replace("[...]", "") if path else ""
    if missing := re.fullmatch(r"Object missing required field `(.*)`", problem):
        return missing_parameter(f"{param}.{missing.group(1)}" if param else missing.group(1))
    if not param:
        return RequestError(_NO_OBJECT, code="invalid_json")
    # Convert msgspec's wording ("Expected `int | null`, got `str`") to OpenAI's.
    if mismatch := re.fullmatch(r"Expected `(.*)`, got `(.*)`", problem):
        words = [word for word in mismatch.group(1).split(" | ") if word != "null"]
        actual = mismatch.group(2)
        expected = " or ".join(_TYPE_NAMES.get(word, word) for word in words)
        actual = (
            "a number with a fraction" if actual == "float" else _TYPE_NAMES.get(actual, actual)
        )
        message = f"Invalid type for '{param}': expected {expected}, but got {actual} instead."
        return RequestError(message, param=param, code="invalid_type")
    if bound := re.fullmatch(r"Expected `(\w+)` (.*)", problem, re.DOTALL):
        return invalid_value(
            param, f"expected {_TYPE_NAMES.get(bound.group(1), bound.group(1))} {bound.group(2)}"
        )
    return invalid_value(
        param,
        problem[0].lower() + problem[1:] if len(problem) <= 2 * MAX_ECHO else "not allowed here",
    )


def _has_lone_surrogate(data: bytes) -> bool:
    """Whether a string contains a lone surrogate, for which msgspec reports only
    truncated data.
    """
    high_ends = -1
    for half in _SURROGATE.finditer(data.replace(rb"\\", b"__")):
        is_high = half.group(1) is not None
        follows = half.start() == high_ends
        if is_high == follows or (high_ends >= 0 and not follows):
            return True
        high_ends = half.end() if is_high else -1
    return high_ends >= 0
