"""Parses the value of a setting, from text or from the value in a file.

The entries of `models` and `instances` have settings of their own, which are parsed
likewise.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any, cast

import msgspec

from .fields import (
    FIELDS_BY_NAME,
    MODEL_SETTINGS,
    NEGATED_NAMES,
    SettingField,
)
from .option import Secret
from .sections import (
    GenerationConfig,
    Instance,
    Instances,
    ModelEntries,
    ModelEntry,
    RaySettings,
    read_ray_settings,
)


def read_value(field: SettingField, raw: object) -> object:
    """Parse a value of the field's type, from text or from the value in a file.

    Raises:
        ValueError: the value is invalid; the message names the allowed values.
    """
    read_text = _read_secret if field.option.is_secret else _read_text
    if field.is_list:
        # A file may have a list; options and variables are comma-separated.
        items = [item.strip() for item in raw.split(",")] if isinstance(raw, str) else raw
        if not isinstance(items, list | tuple):
            raise ValueError("must be a list of strings")
        return tuple(read_text(item) for item in cast("Sequence[object]", items))
    if field.choices:
        if raw not in field.choices:
            raise ValueError(f"must be one of {', '.join(field.choices)}, not {_shorten_repr(raw)}")
        return raw
    if field.kind in (int, float):
        return _read_number(field, raw)
    readers: dict[Any, Callable[[object], object]] = {
        bool: read_bool,
        GenerationConfig: _read_generation_config,
        RaySettings: read_ray_settings,
        ModelEntries: read_entries,
        Instances: read_instances,
    }
    return readers.get(field.kind, read_text)(raw)


def _read_secret(raw: object) -> Secret:
    """Parse a secret. Errors never show it."""
    # Keys are sent in headers, which carry no other characters reliably.
    if not isinstance(raw, str) or not raw or not all("!" <= character <= "~" for character in raw):
        raise ValueError("a key must be printable ASCII without spaces")
    return Secret(raw)


def _read_text(raw: object) -> str:
    if not isinstance(raw, str) or not raw.strip():
        raise ValueError(f"must be text, not {_shorten_repr(raw)}")
    return raw


_BOOL_WORDS = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}


def read_bool(raw: object) -> bool:
    value = _BOOL_WORDS.get(raw.strip().lower()) if isinstance(raw, str) else raw
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, not {_shorten_repr(raw)}")
    return value


# As in vLLM's arguments: lower case is decimal, upper case binary.
_SIZES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def _read_number(field: SettingField, raw: object) -> float:
    """Parse a number: an int if the field is one."""
    value: float | None = None
    # True is an int in Python, and `true` in a file is a mistake here.
    if isinstance(raw, str | int | float) and not isinstance(raw, bool):
        if field.kind is float:
            with suppress(ValueError, OverflowError):
                value = float(raw)
        elif isinstance(raw, int):
            value = raw
        elif isinstance(raw, str) and (
            match := re.fullmatch(r"\s*(-?[0-9]{1,18})([kmgKMG]?)\s*", raw)
        ):
            value = (
                int(match[1]) * _SIZES[match[2]]
                if field.option.allows_size_suffix or not match[2]
                else None
            )
    if value is None or not math.isfinite(value):
        kind = "a number" if field.kind is float else "a whole number"
        suffix_hint = ", which may end in k, m, g (thousands) or K, M, G (1024s)"
        suffix_hint = suffix_hint if field.option.allows_size_suffix else ""
        raise ValueError(f"must be {kind}{suffix_hint}, not {_shorten_repr(raw)}")
    minimum = field.option.minimum
    maximum = field.option.maximum
    if (minimum is not None and value < minimum) or (maximum is not None and value > maximum):
        allowed = (
            f"at least {minimum:g}" if maximum is None else f"from {minimum or 0:g} to {maximum:g}"
        )
        raise ValueError(f"must be {allowed}, not {value}")
    return value


def _read_generation_config(raw: object) -> GenerationConfig:
    try:
        if isinstance(raw, str):
            return msgspec.json.decode(raw, type=GenerationConfig)
        return msgspec.convert(raw, GenerationConfig)
    except msgspec.MsgspecError as error:
        # msgspec appends the path of the wrong field; here it comes first, as in other
        # errors.
        problem, _, path = str(error).partition(" - at `$.")
        location = f"{path.rstrip('`')}: " if path else ""
        field_names = ", ".join(GenerationConfig.__struct_fields__)
        raise ValueError(f"{location}{problem}. It is a JSON object of {field_names}") from None


def _shorten_repr(raw: object) -> str:
    text = repr(raw)
    return text if len(text) <= 60 else text[:57] + "..."


_SECONDS_FIELD = FIELDS_BY_NAME["keepalive_interval"]


_ENTRY_FIELDS = {
    "aliases": FIELDS_BY_NAME["served_model_name"],
    "pinned": FIELDS_BY_NAME["strict"],
    "memory": FIELDS_BY_NAME["model_memory_limit"],
    "ttl": msgspec.structs.replace(
        _SECONDS_FIELD,
        option=msgspec.structs.replace(_SECONDS_FIELD.option, minimum=0, maximum=None),
    ),
}
"""Fields of an entry that are not settings; each is parsed like the setting of the same
type.
"""


_MAX_INSTANCES = 1024


_INSTANCE_SETTINGS = (*MODEL_SETTINGS, "served_model_name", "port")


_INSTANCE_FIELDS = {
    "count": msgspec.structs.replace(
        FIELDS_BY_NAME["port"],
        option=msgspec.structs.replace(
            FIELDS_BY_NAME["port"].option, minimum=1, maximum=_MAX_INSTANCES
        ),
    )
}


def read_entries(raw: object) -> ModelEntries:
    """Parse `models`.

    raw: JSON text, or the value in a file; an entry that is a string is the model to
        serve.

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
    entries: list[ModelEntry] = []
    names: set[str] = set()
    for key, value in cast("Mapping[object, object]", raw).items():
        # YAML reads a name such as 4 as a number.
        name = str(key)
        fields = {"model": value} if isinstance(value, str) else value
        if not isinstance(fields, dict):
            raise ValueError(f"{name}: must be a MODEL, or an object of settings")
        own_fields, overrides = _read_fields(
            name, cast("Mapping[object, object]", fields), "a model", _ENTRY_FIELDS, MODEL_SETTINGS
        )
        if "model" not in overrides:
            raise ValueError(f"{name}: `model` is missing")
        if own_fields.get("pinned") and "ttl" in own_fields:
            raise ValueError(f"{name}: a pinned model cannot have a ttl")
        entry = ModelEntry(name, tuple(overrides.items()), **own_fields)
        # The name of an entry is what `/v1/models` lists, and a pattern could not be
        # requested.
        if "*" in name or "?" in name:
            raise ValueError(f"{name}: only aliases may be patterns")
        for served_name in (name, *entry.aliases):
            if served_name in names:
                raise ValueError(f"{name}: two models have the name {served_name}")
            names.add(served_name)
        entries.append(entry)
    return ModelEntries(tuple(entries))


def read_instances(raw: object) -> Instances:
    """Parse `instances`.

    raw: a number or a list, as JSON text or as the value in a file. An entry of the
        list is `count` equal instances.

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
    instances: list[Instance] = []
    for number, item in enumerate(cast("list[object]", items), 1):
        if not isinstance(item, dict):
            raise ValueError(f"{number}: must be an object of settings")
        own_fields, overrides = _read_fields(
            str(number),
            cast("Mapping[object, object]", item),
            "an instance",
            _INSTANCE_FIELDS,
            _INSTANCE_SETTINGS,
        )
        count = own_fields.get("count", 1)
        if count > 1 and "port" in overrides:
            raise ValueError(f"{number}: {count} instances cannot share a port")
        instances += [Instance(tuple(overrides.items()))] * count
    if len(instances) > _MAX_INSTANCES:
        raise ValueError(f"the maximum is {_MAX_INSTANCES} instances, not {len(instances)}")
    return Instances(tuple(instances))


def _read_fields(
    entry: str,
    raw: Mapping[object, object],
    kind: str,
    own_fields: Mapping[str, SettingField],
    settings: Sequence[str],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parse an entry of a section into its own fields and its settings.

    entry: name or number of the entry, for errors.
    kind: kind of the entry, for errors.
    own_fields: fields that are not settings, by name.
    settings: names of the settings that the entry may have.

    Raises:
        ValueError: a field is unknown or invalid.
    """
    own_values: dict[str, Any] = {}
    overrides: dict[str, Any] = {}
    for key, value in raw.items():
        written_name = str(key).replace("-", "_")
        name = NEGATED_NAMES.get(written_name, written_name)
        try:
            if name in own_fields:
                own_values[name] = read_value(own_fields[name], value)
            elif name in settings and name in overrides:
                raise ValueError("set twice")
            elif name in settings:
                overrides[name] = (
                    not read_bool(value)
                    if written_name in NEGATED_NAMES
                    else read_value(FIELDS_BY_NAME[name], value)
                )
            elif name in FIELDS_BY_NAME:
                raise ValueError("this setting applies to the whole server")
            else:
                close_matches = get_close_matches(name, (*own_fields, *settings), n=1)
                suggestion = f" Did you mean {close_matches[0]}?" if close_matches else ""
                raise ValueError(f"unknown setting of {kind}.{suggestion}")
        except ValueError as error:
            raise ValueError(f"{entry}: {key}: {error}") from None
    return own_values, overrides
