"""A setting's value, from the text of an option or a variable, or from what a file holds."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TypeVar, cast

import msgspec

from .fields import Field
from .generation import GenerationConfig
from .option import Secret
from .parts import Instances, ModelEntries


def read(field: Field, raw: object) -> object:
    """A value of the field's type, from text or from what a file holds. ValueError says what is allowed."""
    if field.several:
        return _several(field, raw)
    if field.choices:
        return _choice(field, raw)
    if field.kind is int:
        return _within(field, _int(raw, sized=field.option.sized))
    if field.kind is float:
        return _within(field, _float(raw))
    if field.kind in (ModelEntries, Instances):
        from .entries import read_entries, read_instances  # noqa: PLC0415 - which read settings with this very function

        return read_entries(raw, read) if field.kind is ModelEntries else read_instances(raw, read)
    reader = {bool: _bool, GenerationConfig: _generation_config, Secret: _secret}.get(field.kind, _text)
    return reader(raw)


def _choice(field: Field, raw: object) -> object:
    if raw not in field.choices:
        raise ValueError(f"must be one of {', '.join(field.choices)}, not {_shown(raw)}")
    return raw


def _several(field: Field, raw: object) -> tuple[str, ...]:
    """A list, or a text with commas as in a variable of the environment."""
    items = [item.strip() for item in raw.split(",")] if isinstance(raw, str) else raw
    if not isinstance(items, list | tuple):
        raise ValueError("must be a list of strings")
    if not field.secret:
        return tuple(_text(item) for item in cast("Sequence[object]", items))
    return tuple(_secret(item) for item in cast("Sequence[object]", items))


def _secret(raw: object) -> Secret:
    """Never shown, also when it is wrong."""
    if not isinstance(raw, str) or not raw or not all("!" <= character <= "~" for character in raw):
        raise ValueError("a key must be printable ASCII without spaces")
    return Secret(raw)


def _text(raw: object) -> str:
    if not isinstance(raw, str) or not raw.strip():
        raise ValueError(f"must be text, not {_shown(raw)}")
    return raw


_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def _bool(raw: object) -> bool:
    value = _WORDS.get(raw.strip().lower()) if isinstance(raw, str) else raw
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, not {_shown(raw)}")
    return value


Number = TypeVar("Number", int, float)
_SIZES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def _int(raw: object, *, sized: bool) -> int:
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    found = re.fullmatch(r"\s*(-?[0-9]{1,18})([kmgKMG]?)\s*", raw) if isinstance(raw, str) else None
    if found is None or (found[2] and not sized):
        also = ", which may end in k, m, g (thousands) or K, M, G (1024s)" if sized else ""
        raise ValueError(f"must be a whole number{also}, not {_shown(raw)}")
    return int(found[1]) * _SIZES.get(found[2], 1)


def _float(raw: object) -> float:
    try:
        value = float(raw) if isinstance(raw, str | int | float) and not isinstance(raw, bool) else math.nan
    except (ValueError, OverflowError):
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"must be a number, not {_shown(raw)}")
    return value


def _within(field: Field, value: Number) -> Number:
    least, most = field.option.least, field.option.most
    if (least is not None and value < least) or (most is not None and value > most):
        allowed = f"at least {least:g}" if most is None else f"from {least or 0:g} to {most:g}"
        raise ValueError(f"must be {allowed}, not {value}")
    return value


def _generation_config(raw: object) -> GenerationConfig:
    try:
        if isinstance(raw, str):
            return msgspec.json.decode(raw, type=GenerationConfig)
        return msgspec.convert(raw, GenerationConfig)
    except msgspec.MsgspecError as error:
        problem, _, place = str(error).partition(" - at `$.")
        where = f"{place.rstrip('`')}: " if place else ""
        known = ", ".join(GenerationConfig.__struct_fields__)
        raise ValueError(f"{where}{problem}. It is a JSON object of {known}") from None


def _shown(raw: object) -> str:
    text = repr(raw)
    return text if len(text) <= 60 else text[:57] + "..."
