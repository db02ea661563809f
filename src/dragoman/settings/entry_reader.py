"""Parses `models` of a server with several models, and `instances` of a process with several servers: the settings
that apply to one of them only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, cast

import msgspec

from .fields import FIELDS_BY_NAME, FORMER_NAMES, MODEL_GROUPS, SettingField
from .model_entries import Instance, Instances, ModelEntries, ModelEntry

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
        if "*" in entry.name or "?" in entry.name:
            raise ValueError(f"{entry.name}: only aliases may be patterns")
        for name in (entry.name, *entry.aliases):
            if name in names:
                raise ValueError(f"{entry.name}: two models have the name {name}")
            names.add(name)
