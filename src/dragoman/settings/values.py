"""Parses a setting's value from the text of an option or variable, or from a file."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TypeVar, cast

import msgspec

from .fields import SettingField
from .generation import GenerationConfig
from .model_entries import Instances, ModelEntries
from .option import Secret
from .ray import RaySettings, read_ray_settings


def read_value(field: SettingField, raw: object) -> object:
    """Parse a value of the field's type, from text or from a file's value. ValueError names the allowed values."""
    if field.is_list:
        return _read_list(field, raw)
    if field.choices:
        if raw not in field.choices:
            raise ValueError(f"must be one of {', '.join(field.choices)}, not {_shorten_repr(raw)}")
        return raw
    if field.kind is int:
        return _check_bounds(field, _read_int(raw, allows_size_suffix=field.option.allows_size_suffix))
    if field.kind is float:
        return _check_bounds(field, _read_float(raw))
    if field.kind in (ModelEntries, Instances):
        from .entry_reader import read_entries, read_instances  # noqa: PLC0415 - which read settings with this very function

        return read_entries(raw, read_value) if field.kind is ModelEntries else read_instances(raw, read_value)
    readers = {
        bool: _read_bool,
        GenerationConfig: _read_generation_config,
        RaySettings: read_ray_settings,
        Secret: _read_secret,
    }
    return readers.get(field.kind, _read_text)(raw)


def _read_list(field: SettingField, raw: object) -> tuple[str, ...]:
    """A list, or a comma-separated text."""
    items = [item.strip() for item in raw.split(",")] if isinstance(raw, str) else raw
    if not isinstance(items, list | tuple):
        raise ValueError("must be a list of strings")
    if not field.is_secret:
        return tuple(_read_text(item) for item in cast("Sequence[object]", items))
    return tuple(_read_secret(item) for item in cast("Sequence[object]", items))


def _read_secret(raw: object) -> Secret:
    """The secret's text; errors never show it."""
    if not isinstance(raw, str) or not raw or not all("!" <= character <= "~" for character in raw):
        raise ValueError("a key must be printable ASCII without spaces")
    return Secret(raw)


def _read_text(raw: object) -> str:
    if not isinstance(raw, str) or not raw.strip():
        raise ValueError(f"must be text, not {_shorten_repr(raw)}")
    return raw


_BOOL_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def _read_bool(raw: object) -> bool:
    value = _BOOL_WORDS.get(raw.strip().lower()) if isinstance(raw, str) else raw
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, not {_shorten_repr(raw)}")
    return value


Number = TypeVar("Number", int, float)
_SIZES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def _read_int(raw: object, *, allows_size_suffix: bool) -> int:
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    match = re.fullmatch(r"\s*(-?[0-9]{1,18})([kmgKMG]?)\s*", raw) if isinstance(raw, str) else None
    if match is None or (match[2] and not allows_size_suffix):
        suffix_hint = ", which may end in k, m, g (thousands) or K, M, G (1024s)" if allows_size_suffix else ""
        raise ValueError(f"must be a whole number{suffix_hint}, not {_shorten_repr(raw)}")
    return int(match[1]) * _SIZES.get(match[2], 1)


def _read_float(raw: object) -> float:
    try:
        value = float(raw) if isinstance(raw, str | int | float) and not isinstance(raw, bool) else math.nan
    except (ValueError, OverflowError):
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"must be a number, not {_shorten_repr(raw)}")
    return value


def _check_bounds(field: SettingField, value: Number) -> Number:
    minimum, maximum = field.option.minimum, field.option.maximum
    if (minimum is not None and value < minimum) or (maximum is not None and value > maximum):
        allowed = f"at least {minimum:g}" if maximum is None else f"from {minimum or 0:g} to {maximum:g}"
        raise ValueError(f"must be {allowed}, not {value}")
    return value


def _read_generation_config(raw: object) -> GenerationConfig:
    try:
        if isinstance(raw, str):
            return msgspec.json.decode(raw, type=GenerationConfig)
        return msgspec.convert(raw, GenerationConfig)
    except msgspec.MsgspecError as error:
        problem, _, path = str(error).partition(" - at `$.")
        location = f"{path.rstrip('`')}: " if path else ""
        field_names = ", ".join(GenerationConfig.__struct_fields__)
        raise ValueError(f"{location}{problem}. It is a JSON object of {field_names}") from None


def _shorten_repr(raw: object) -> str:
    text = repr(raw)
    return text if len(text) <= 60 else text[:57] + "..."
