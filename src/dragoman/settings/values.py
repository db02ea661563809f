"""Parses a setting's value from the text of an option or variable, or from a file.

`models` of a server with several models and `instances` of a process with several servers contain settings themselves.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar, cast

import msgspec

from .fields import FIELDS_BY_NAME, FORMER_NAMES, MODEL_GROUPS, SettingField
from .option import Secret
from .sections import GenerationConfig, Instance, Instances, ModelEntries, ModelEntry, RaySettings, read_ray_settings

log = logging.getLogger(__name__)

ReadSetting = Callable[[SettingField, object], Any]

_EXCLUDED = frozenset({"served_model_name", "config"})
_MODEL_SETTINGS = tuple(
    name for name, field in FIELDS_BY_NAME.items() if field.option.group in MODEL_GROUPS and name not in _EXCLUDED
)
_LIST_FIELD, _BOOL_FIELD = FIELDS_BY_NAME["served_model_name"], FIELDS_BY_NAME["strict"]
_SECONDS_FIELD, _BYTES_FIELD = FIELDS_BY_NAME["keepalive_interval"], FIELDS_BY_NAME["model_memory_limit"]
_ENTRY_FIELDS = {
    "aliases": _LIST_FIELD,
    "pinned": _BOOL_FIELD,
    "memory": _BYTES_FIELD,
    "ttl": msgspec.structs.replace(
        _SECONDS_FIELD, option=msgspec.structs.replace(_SECONDS_FIELD.option, minimum=0, maximum=None)
    ),
}
"""Fields of an entry that are no settings; each is parsed like the setting of the same type."""
_MAX_INSTANCES = 1024
_INSTANCE_SETTINGS = tuple(name for name in (*_MODEL_SETTINGS, "served_model_name", "port") if name != "instances")
_COUNT_FIELD = msgspec.structs.replace(
    FIELDS_BY_NAME["port"],
    option=msgspec.structs.replace(FIELDS_BY_NAME["port"].option, minimum=1, maximum=_MAX_INSTANCES),
)


def read_entries(raw: object, read_setting: ReadSetting) -> ModelEntries:
    """Parse `models`.

    raw: JSON text, or the value in a file.
    read_setting: parses one setting.

    Raises:
        ValueError: the message names the entry and the error.
    """
    if isinstance(raw, str):
        try:
            raw = msgspec.json.decode(raw)
        except msgspec.MsgspecError as error:
            raise ValueError(f"must be JSON: {error}") from None
    if not isinstance(raw, dict) or not raw:
        raise ValueError("must map model names to settings")
    # YAML reads a name such as 4 as a number.
    entries = tuple(
        _read_entry(str(name), value, read_setting) for name, value in cast("Mapping[object, object]", raw).items()
    )
    _check_names(entries)
    return ModelEntries(entries)


def _read_entry(name: str, raw: object, read_setting: ReadSetting) -> ModelEntry:
    """Parse one entry; a string is the model to serve."""
    fields = {"model": raw} if isinstance(raw, str) else raw
    if not isinstance(fields, dict):
        raise ValueError(f"{name}: must be a MODEL, or an object of settings")
    entry_fields: dict[str, Any] = {}
    settings: list[tuple[str, Any]] = []
    for key, value in cast("Mapping[object, object]", fields).items():
        setting = _current_name(name, str(key))
        try:
            if setting in _ENTRY_FIELDS:
                entry_fields[setting] = read_setting(_ENTRY_FIELDS[setting], value)
            elif setting in _MODEL_SETTINGS:
                settings.append((setting, read_setting(FIELDS_BY_NAME[setting], value)))
            else:
                raise ValueError(_describe_unknown(setting, "a model", (*_ENTRY_FIELDS, *_MODEL_SETTINGS)))
        except ValueError as error:
            raise ValueError(f"{name}: {key}: {error}") from None
    if "model" not in dict(settings):
        raise ValueError(f"{name}: `model` is missing")
    if entry_fields.get("pinned") and "ttl" in entry_fields:
        raise ValueError(f"{name}: a pinned model cannot have a ttl")
    return ModelEntry(name, tuple(settings), **entry_fields)


def read_instances(raw: object, read_setting: ReadSetting) -> Instances:
    """Parse `instances`.

    raw: a number or a list, as JSON text or as the value in a file.
    read_setting: parses one setting.

    Raises:
        ValueError: the value is invalid.
    """
    if isinstance(raw, str):
        try:
            raw = msgspec.json.decode(raw)
        except msgspec.MsgspecError as error:
            raise ValueError(f"must be a number, or a list in JSON: {error}") from None
    items = [{"count": raw}] if isinstance(raw, int) else raw
    if not isinstance(items, list) or not items:
        raise ValueError("must be a number, or a list of objects of settings")
    groups = [_read_instances(item, number, read_setting) for number, item in enumerate(cast("list[object]", items), 1)]
    instances = tuple(instance for group in groups for instance in group)
    if len(instances) > _MAX_INSTANCES:
        raise ValueError(f"the maximum is {_MAX_INSTANCES} instances, not {len(instances)}")
    return Instances(instances)


def _read_instances(raw: object, number: int, read_setting: ReadSetting) -> list[Instance]:
    """Parse one entry of the list into `count` equal instances."""
    if not isinstance(raw, dict):
        raise ValueError(f"{number}: must be an object of settings")
    count, settings = 1, list[tuple[str, Any]]()
    for key, value in cast("Mapping[object, object]", raw).items():
        setting = _current_name(str(number), str(key))
        try:
            if setting == "count":
                count = read_setting(_COUNT_FIELD, value)
            elif setting in _INSTANCE_SETTINGS:
                settings.append((setting, read_setting(FIELDS_BY_NAME[setting], value)))
            else:
                raise ValueError(_describe_unknown(setting, "an instance", ("count", *_INSTANCE_SETTINGS)))
        except ValueError as error:
            raise ValueError(f"{number}: {key}: {error}") from None
    if count > 1 and "port" in dict(settings):
        raise ValueError(f"{number}: {count} instances cannot share a port")
    return [Instance(tuple(settings))] * count


def _current_name(where: str, key: str) -> str:
    name = key.replace("-", "_")
    if name not in FORMER_NAMES:
        return name
    log.warning("%s: %s is deprecated; use %s", where, name, FORMER_NAMES[name])
    return FORMER_NAMES[name]


def _describe_unknown(name: str, kind: str, known: Sequence[str]) -> str:
    if name in FIELDS_BY_NAME:
        return "this setting applies to the whole server"
    close_matches = get_close_matches(name, known, n=1)
    return f"unknown setting of {kind}." + (f" Did you mean {close_matches[0]}?" if close_matches else "")


def _check_names(entries: tuple[ModelEntry, ...]) -> None:
    names: set[str] = set()
    for entry in entries:
        # The name of an entry is what `/v1/models` lists, and a pattern could not be requested.
        if "*" in entry.name or "?" in entry.name:
            raise ValueError(f"{entry.name}: only aliases may be patterns")
        for name in (entry.name, *entry.aliases):
            if name in names:
                raise ValueError(f"{entry.name}: two models have the name {name}")
            names.add(name)


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
    # Keys arrive in headers, which carry no other characters reliably.
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
# As in vLLM's arguments: lower case is decimal, upper case binary.
_SIZES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def _read_int(raw: object, *, allows_size_suffix: bool) -> int:
    # True is an int in Python, and `true` in a file is a mistake here.
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    match = re.fullmatch(r"\s*(-?[0-9]{1,18})([kmgKMG]?)\s*", raw) if isinstance(raw, str) else None
    if match is None or (match[2] and not allows_size_suffix):
        suffix_hint = ", which may end in k, m, g (thousands) or K, M, G (1024s)" if allows_size_suffix else ""
        raise ValueError(f"must be a whole number{suffix_hint}, not {_shorten_repr(raw)}")
    return int(match[1]) * _SIZES.get(match[2], 1)


def _read_float(raw: object) -> float:
    # NaN stands for all that is no number, and is rejected below together with infinity.
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
        # msgspec appends the path of the wrong field; here it comes first, as in other errors.
        problem, _, path = str(error).partition(" - at `$.")
        location = f"{path.rstrip('`')}: " if path else ""
        field_names = ", ".join(GenerationConfig.__struct_fields__)
        raise ValueError(f"{location}{problem}. It is a JSON object of {field_names}") from None


def _shorten_repr(raw: object) -> str:
    text = repr(raw)
    return text if len(text) <= 60 else text[:57] + "..."
