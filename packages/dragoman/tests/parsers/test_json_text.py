"""Incremental parsing of JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.core.json_types import JsonObject
from dragoman.parsers.json_scanner import ObjectReader, ReadStatus, ValueReader
from dragoman.parsers.json_strings import StringDecoder
from dragoman.parsers.schema_types import find_schema_types
from dragoman.parsers.text_conversion import coerce

from .parsing import cut

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)
indents = st.sampled_from([None, 1, "\t"])


def members(pieces: list[str]) -> tuple[dict[str, str], str]:
    """Return the raw values by key, and the text after the object."""
    reader = ObjectReader()
    found = dict[str, str]()
    raw = ""
    for number, piece in enumerate(pieces):
        at = 0
        while at < len(piece):
            inside = reader.in_value
            start = at
            at, seen = reader.read(piece, at)
            raw += piece[start:at] if inside else ""
            match seen:
                case ReadStatus.END:
                    found[reader.key] = raw
                    raw = ""
                case ReadStatus.CLOSE:
                    return found, piece[at:] + "".join(pieces[number + 1 :])
                case ReadStatus.INVALID:
                    raise AssertionError(piece[at:])
                case _:
                    pass
    raise AssertionError("the object has no end")


@given(st.dictionaries(st.text(), values, max_size=4), indents, st.booleans(), st.data())
def test_object_reader_finds_members_in_any_chunks(
    value: dict[str, object], indent: int | str | None, plain: bool, data: st.DataObject
):
    text = json.dumps(value, indent=indent, ensure_ascii=plain)
    found, rest = members(cut(data.draw, text + " {}"))
    assert {key: json.loads(raw) for key, raw in found.items()} == value
    assert rest == " {}"


@given(values, indents, st.data())
def test_value_reader_finds_end_of_value(
    value: object, indent: int | str | None, data: st.DataObject
):
    text = json.dumps(value, indent=indent)
    reader = ValueReader()
    read = ""
    for piece in cut(data.draw, text + "\n]}"):
        at, seen = reader.read(piece, 0)
        read += piece[:at]
        if seen is ReadStatus.END:
            break
    assert read == text


@pytest.mark.parametrize(
    "text",
    [
        "[",
        '{"a"}',
        '{"a" 1}',
        '{"a":}',
        "{,}",
        '{"a":1,}',
        '{"a":1 2}',
        '{"a":[}',
        "{a:1}",
        '{"\\x":1}',
    ],
)
def test_object_reader_non_object_is_invalid(text: str):
    reader = ObjectReader()
    at = 0
    seen = ReadStatus.MORE
    while at < len(text) and seen not in (ReadStatus.INVALID, ReadStatus.CLOSE):
        at, seen = reader.read(text, at)
    assert seen is ReadStatus.INVALID


def meaning(pieces: list[str]) -> str:
    reader = StringDecoder()
    return "".join(map(reader.decode, pieces)) + reader.flush()


@given(st.text(), st.booleans(), st.data())
def test_string_decoder_matches_json(text: str, plain: bool, data: st.DataObject):
    assert meaning(cut(data.draw, json.dumps(text, ensure_ascii=plain))) == text


@given(st.text('\\"uxd8c0en/', max_size=20), st.data())
def test_string_decoder_any_text_is_independent_of_chunking(text: str, data: st.DataObject):
    assert meaning(cut(data.draw, text)) == meaning([text])


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (r"\x\u12z\/", r"\x\u12z/"),
        (r"\ud83d!", "�!"),
        (r"\ude00", "�"),
        (r"\ud83d\ud83d\ude00", "�😀"),
        (r"\ud83d\n", "�\n"),
        ("\\", "\\"),
        (r"\u00e", r"\u00e"),
    ],
)
def test_string_decoder_invalid_escape_is_kept(raw: str, expected: str):
    assert meaning(list(raw)) == meaning([raw]) == expected


def test_string_decoder_emits_decided_text_immediately():
    reader = StringDecoder()
    text = r'"a\u00e9\ud83d\ude00b"'
    lengths = [len(reader.decode(char)) for char in text]
    assert lengths == [0, 1, *[0] * 5, 1, *[0] * 11, 1, 1, 0]


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": ["INTEGER", "Null"]}, ("integer", "null")),
        ({"type": "VarChar"}, ("string",)),
        ({"$ref": "#/$defs/n"}, ("number",)),
        ({"$ref": "#"}, ("object",)),
        ({"$ref": "#anchor"}, ()),
        ({"$ref": "https://example.org/#/$defs/n"}, ()),
    ],
)
def test_find_schema_types_resolves_types(schema: JsonObject, types: tuple[str, ...]):
    root: JsonObject = {"type": "object", "$defs": {"n": {"type": "number"}}}
    assert find_schema_types(schema, root) == types


@pytest.mark.parametrize("type_name", ["integer", "number"])
def test_coerce_long_integer_keeps_digits(type_name: str):
    assert coerce("12345678901234567890", (type_name,)) == 12345678901234567890
