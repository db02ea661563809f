"""Decodes the data of an upstream's events, at least as leniently as the vendors' SDKs:
numbers that are strings, lone surrogates, bytes that are not UTF-8.
"""

from __future__ import annotations

import json
import logging
import re
from typing import TypeVar, cast

import msgspec

from ...core.errors import EngineError

log = logging.getLogger(__name__)

T = TypeVar("T")

_SURROGATE = re.compile("[\ud800-\udfff]")
_METADATA = frozenset({"usage", "usageMetadata", "logprobs"})
_PIECES = frozenset({"delta", "text"})
"""Fields with a piece of text, which may begin or end within a surrogate pair."""


def build_decoder(type: type[T]) -> msgspec.json.Decoder[T]:
    """Build a decoder that accepts numbers as strings."""
    return msgspec.json.Decoder(type, strict=False)


def decode_data(decoder: msgspec.json.Decoder[T], data: bytes, what: str) -> T:
    """Decode the data of one event. Raises EngineError if it is invalid.

    what: what is decoded, for the error and the log.
    """
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    try:
        # Slower, but reads lone surrogates, such as an emoji that is split between two
        # events, and NaN.
        value = _clean(json.loads(data.decode("utf-8", "replace")), is_piece=False)
        try:
            return msgspec.convert(value, decoder.type, strict=False)
        except msgspec.ValidationError as error:
            # An answer is worth more than its counts and scores.
            log.warning("an upstream's %s has invalid fields: %s", what, error)
            return msgspec.convert(_drop_metadata(value), decoder.type, strict=False)
    except (ValueError, RecursionError) as error:
        log.warning("an upstream's %s cannot be parsed: %s", what, error)
        # The message of a ValidationError names the field and types, but no values.
        detail = f" ({error})" if isinstance(error, msgspec.ValidationError) else ""
        raise EngineError(f"The upstream sent an invalid {what}{detail}.") from None


def has_surrogates(text: str) -> bool:
    return not text.isascii() and _SURROGATE.search(text) is not None


def clean_text(text: str) -> str:
    """Join the halves of surrogate pairs, and replace lone ones by U+FFFD, since UTF-8
    cannot represent them.
    """
    if not has_surrogates(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _clean(value: object, *, is_piece: bool) -> object:
    """Replace lone surrogates, but not at the ends of pieces: there, the other half may
    be in another piece.
    """
    match value:
        case str() if is_piece and len(value) > 1:
            return value[0] + clean_text(value[1:-1]) + value[-1]
        case str():
            return value if is_piece else clean_text(value)
        case list():
            return [_clean(entry, is_piece=is_piece) for entry in cast("list[object]", value)]
        case dict():
            return {
                clean_text(key): _clean(entry, is_piece=is_piece or key in _PIECES)
                for key, entry in cast("dict[str, object]", value).items()
            }
        case _:
            return value


def _drop_metadata(value: object) -> object:
    match value:
        case list():
            return [_drop_metadata(entry) for entry in cast("list[object]", value)]
        case dict():
            return {
                key: _drop_metadata(entry)
                for key, entry in cast("dict[str, object]", value).items()
                if key not in _METADATA
            }
        case _:
            return value
