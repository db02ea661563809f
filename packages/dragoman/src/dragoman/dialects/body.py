"""Decodes request bodies into structs, or raises a RequestError that names the field.

Also finds nested fields that the structs do not define, so that none is ignored
silently, and parses media: data URLs, Base64 and http(s) URLs.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Generic, TypeVar, cast

import msgspec
from msgspec import Raw, Struct

from ..core.errors import RequestError
from ..core.images import check_image
from ..core.message import InlineMedia, MediaSource, RemoteMedia

MAX_UNKNOWN = 32
MAX_PATH = 128
"""Limits on reported unknown fields: their number, and the characters of each path."""

# Unknown nested fields.

StructType = type[Struct]
Json = object
_CONTAINERS = (dict, list)


class NestedRules(Struct, frozen=True):
    """The exceptions for each struct when a body is searched for unknown fields.

    accepted: further fields that are accepted without effect, such as those of a
        replayed answer.
    checked_types: the values of `type` for which an object is checked; objects of other
    types are ignored by the reader, or parsed elsewhere.
    """

    accepted: Mapping[StructType, frozenset[str]] = {}
    checked_types: Mapping[StructType, frozenset[str | None]] = {}


class _Node:
    """The known fields at one place of a body.

    fields: names of an object's fields; None accepts any.
    inner: nodes of the fields whose values are checked too.
    checked_types: as in NestedRules; None checks all objects.
    items: node of an array's items; None if they are not checked.
    """

    def __init__(self) -> None:
        self.fields: frozenset[str] | None = None
        self.inner: dict[str, _Node] = {}
        self.checked_types: frozenset[str | None] | None = None
        self.items: _Node | None = None


class NestedFields:
    """Finds the unknown fields below the top level of a body."""

    def __init__(self, body: StructType, rules: NestedRules) -> None:
        self._rules = rules
        self._nodes: dict[StructType, _Node] = {}
        self._nested = self._build_object(msgspec.inspect.type_info(body)).inner

    def find_unknown(self, fields: Mapping[str, Raw]) -> list[str]:
        """Return the paths of unknown fields that are not null. A field of several
        array items is reported once.
        """
        # Fast path: bodies without such fields are not decoded a second time.
        if self._nested.keys().isdisjoint(fields):
            return []
        paths: dict[str, str] = {}
        for name, node in self._nested.items():
            raw = fields.get(name)
            if raw is not None and bytes(memoryview(raw)[:1]) in (b"{", b"["):
                try:
                    value: Json = msgspec.json.decode(raw)
                except (msgspec.MsgspecError, ValueError):
                    continue  # Decoding into the struct rejects it with a better error.
                if _is_known(value, node):
                    continue
                for path, key in _walk(value, node, name, name):
                    paths.setdefault(key, path[:MAX_PATH])
                    if len(paths) == MAX_UNKNOWN:
                        break
        return list(paths.values())[:MAX_UNKNOWN]

    def _build(self, info: msgspec.inspect.Type) -> _Node | None:
        """Build the node of a type; None if nothing in it is checked."""
        match info:
            case msgspec.inspect.StructType():
                return self._build_object(info)
            case msgspec.inspect.ListType(item_type=item):
                if (items := self._build(item)) is None:
                    return None
                node = _Node()
                node.items = items
                return node
            case msgspec.inspect.UnionType(types=types):
                parts = [part for part in map(self._build, types) if part is not None]
                if len(parts) < 2:
                    return parts[0] if parts else None
                node = _Node()
                for part in parts:
                    if part.fields is not None:
                        node.fields = part.fields
                        node.inner = part.inner
                        node.checked_types = part.checked_types
                    node.items = part.items or node.items
                return node
            case _:
                return None

    def _build_object(self, info: msgspec.inspect.Type) -> _Node:
        assert isinstance(info, msgspec.inspect.StructType)
        node = self._nodes.get(info.cls)
        if node is None:
            # Stored before the fields' nodes are built, since a struct may contain
            # itself.
            node = self._nodes[info.cls] = _Node()
            names = frozenset(field.encode_name for field in info.fields)
            node.fields = names | self._rules.accepted.get(info.cls, frozenset())
            node.checked_types = self._rules.checked_types.get(info.cls)
            for field in info.fields:
                if (inner := self._build(field.type)) is not None:
                    node.inner[field.encode_name] = inner
        return node


def _is_known(value: Json, node: _Node) -> bool:
    """Whether a value has only known fields. This is the usual case, checked at a
    fraction of the cost of `_walk`.
    """
    if isinstance(value, list):
        items = node.items
        values = cast("list[Json]", value)
        return items is None or all(
            [
                _is_known(cast("Json", item), items)
                for item in values
                if isinstance(item, _CONTAINERS)
            ]
        )
    members = cast("dict[str, Json]", value)
    fields = node.fields
    # Objects of types that this server does not interpret are not checked.
    if fields is None or (
        node.checked_types is not None and members.get("type") not in node.checked_types
    ):
        return True
    if not members.keys() <= fields:
        return False
    for name, inner in node.inner.items():
        member = members.get(name)
        if isinstance(member, _CONTAINERS) and not _is_known(cast("Json", member), inner):
            return False
    return True


def _walk(value: Json, node: _Node, path: str, key: str) -> Iterator[tuple[str, str]]:
    """Yield the path, and the path without indices, of each unknown field in a value."""
    if isinstance(value, list) and node.items is not None:
        for i, item in enumerate(cast("list[Json]", value)):
            if isinstance(item, _CONTAINERS):
                yield from _walk(cast("Json", item), node.items, f"{path}[{i}]", key)
    elif isinstance(value, dict) and node.fields is not None:
        members = cast("dict[str, Json]", value)
        if node.checked_types is not None and members.get("type") not in node.checked_types:
            return
        for name, member in members.items():
            if name not in node.fields:
                if member is not None:
                    yield f"{path}.{name}", f"{key}.{name}"
            elif name in node.inner and isinstance(member, _CONTAINERS):
                yield from _walk(
                    cast("Json", member), node.inner[name], f"{path}.{name}", f"{key}.{name}"
                )


# Decoding.

MAX_DEPTH = 128
"""Maximum nesting of arrays and objects."""
MAX_CONTAINERS = 1_000_000
"""Maximum arrays and objects of a body that may be too deep."""
MAX_ECHO = 64
"""Maximum characters of a client's value that an error message quotes."""

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

    def decode(self, schema: BodySchema[T]) -> T:
        try:
            return schema.decoder.decode(self._data)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise translate_error(error, self._data) from None


class BodySchema(Generic[T]):
    """The struct type of a request body, with its decoder.

    rules: exceptions for nested unknown fields.
    """

    def __init__(self, type: type[T], rules: NestedRules | None = None) -> None:
        self.decoder = msgspec.json.Decoder(type)
        self.names = frozenset(field.encode_name for field in msgspec.structs.fields(type))
        self.nested = NestedFields(type, rules or NestedRules())


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
    if (text := _strip_null(raw)) is None:
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
    if (text := _strip_null(raw)) is None:
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        raise RequestError(
            f"Invalid value for '{param}': not valid JSON.", param=param, code="invalid_json"
        ) from None


def _strip_null(raw: Raw) -> str | None:
    data = bytes(raw)
    # Checked before decoding, since nearly every free-form field is absent.
    text = data.decode().strip() if data else ""
    return None if text in ("", "null") else text


def abbreviate(value: str) -> str:
    """Quote a client's value for an error message, truncated to MAX_ECHO characters."""
    return repr(value) if len(value) <= MAX_ECHO else repr(value[:MAX_ECHO]) + "..."


def check_one_of(value: str, allowed: Collection[str], param: str) -> str:
    """Return the value if it is allowed. Raises RequestError."""
    if value not in allowed:
        supported = ", ".join(repr(word) for word in allowed)
        raise RequestError(
            f"Invalid value for '{param}': {abbreviate(value)}. Supported values are: {supported}.",
            param=param,
            code="invalid_value",
        )
    return value


def missing_parameter(param: str, hint: str = "") -> RequestError:
    return RequestError(
        f"Missing required parameter: '{param}'.{hint}",
        param=param,
        code="missing_required_parameter",
    )


def parse_digits(text: str, max_digits: int) -> int | None:
    """Parse an unsigned integer of ASCII digits; None if it is not one, or has more
    digits than allowed.
    """
    # The length is checked first, since `int` raises ValueError for more than 4300
    # digits.
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= max_digits else None


def invalid_value(param: str, expectation: str) -> RequestError:
    """Build the error of an invalid value.

    expectation: description of the allowed values.
    """
    return RequestError(
        f"Invalid value for '{param}': {expectation}.", param=param, code="invalid_value"
    )


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


# Media: data URLs, Base64, and http(s) URLs, which are not fetched here.


def read_url(url: str, param: str) -> MediaSource:
    """Parse a media URL: decode data URLs, keep http and https, and reject all others,
    such as `file:`.
    """
    scheme = url[:8].partition(":")[0].lower()
    if scheme == "data":
        return _read_data_url(url, param)
    if scheme in ("http", "https"):
        return RemoteMedia(url)
    raise invalid_value(param, "expected a URL that begins with https:, http: or data:")


def read_image_url(url: str, param: str) -> MediaSource:
    """Parse the URL of an image as `read_url` does, and check the header of an inline
    image.
    """
    source = read_url(url, param)
    return check_image(source, param) if isinstance(source, InlineMedia) else source


def read_base64(text: str, media_type: str | None, param: str) -> InlineMedia:
    """Decode Base64, or a data URL that contains it."""
    if text[:5].lower() == "data:":
        return _read_data_url(text, param)
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _base64_error(param) from None
    if not data:
        raise invalid_value(param, "it must not be empty")
    return InlineMedia(data, media_type)


def _read_data_url(url: str, param: str) -> InlineMedia:
    head, comma, payload = url[len("data:") :].partition(",")
    media_type, *parameters = head.split(";")
    if not comma or not parameters or parameters[-1].strip().lower() != "base64":
        raise invalid_value(param, "expected a data URL of the form data:<type>;base64,<data>")
    if payload[:5].lower() == "data:":
        raise _base64_error(param)
    return read_base64(payload, media_type.strip().lower() or None, param)


def _base64_error(param: str) -> RequestError:
    return invalid_value(param, "expected valid base64")
