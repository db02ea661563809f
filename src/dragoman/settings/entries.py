"""The `models` of a server that has several, and the `instances` of a process that is several servers: what each of
them is told for itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, cast

import msgspec

from .fields import BY_NAME, FORMER_NAMES, OF_A_MODEL, Field
from .parts import Instance, Instances, ModelEntries, ModelEntry

log = logging.getLogger(__name__)

Read = Callable[[Field, object], Any]

_NOT_HERE = frozenset({"served_model_name", "config"})
_ALLOWED = tuple(name for name, field in BY_NAME.items() if field.option.group in OF_A_MODEL and name not in _NOT_HERE)
_LIST, _SWITCH = BY_NAME["served_model_name"], BY_NAME["strict"]
_SECONDS, _BYTES = BY_NAME["keepalive_interval"], BY_NAME["model_memory_limit"]
_SHAPES = {
    "aliases": _LIST,
    "pinned": _SWITCH,
    "memory": _BYTES,
    "ttl": msgspec.structs.replace(_SECONDS, option=msgspec.structs.replace(_SECONDS.option, least=0, most=None)),
}
"""What an entry has beside settings, each read as the setting of the same shape is."""
_MOST_INSTANCES = 1024
_OF_AN_INSTANCE = tuple(name for name in (*_ALLOWED, "served_model_name", "port") if name != "instances")
_COUNT = msgspec.structs.replace(
    BY_NAME["port"], option=msgspec.structs.replace(BY_NAME["port"].option, least=1, most=_MOST_INSTANCES)
)


def read_entries(raw: object, read: Read) -> ModelEntries:
    """raw: JSON text, or what a file holds. read: reads one setting. ValueError says what is wrong, and where."""
    if isinstance(raw, str):
        try:
            raw = msgspec.json.decode(raw)
        except msgspec.MsgspecError as error:
            raise ValueError(f"must be JSON: {error}") from None
    if not isinstance(raw, dict) or not raw:
        raise ValueError("must map model names to settings")
    entries = tuple(_entry(str(name), value, read) for name, value in cast("Mapping[object, object]", raw).items())
    _check_names(entries)
    return ModelEntries(entries)


def _entry(name: str, raw: object, read: Read) -> ModelEntry:
    """A text alone is what to serve."""
    told = {"model": raw} if isinstance(raw, str) else raw
    if not isinstance(told, dict):
        raise ValueError(f"{name}: must be a MODEL, or an object of settings")
    own: dict[str, Any] = {}
    settings: list[tuple[str, Any]] = []
    for key, value in cast("Mapping[object, object]", told).items():
        setting = _current_name(name, str(key))
        try:
            if setting in _SHAPES:
                own[setting] = read(_SHAPES[setting], value)
            elif setting in _ALLOWED:
                settings.append((setting, read(BY_NAME[setting], value)))
            else:
                raise ValueError(_unknown(setting, "a model", (*_SHAPES, *_ALLOWED)))
        except ValueError as error:
            raise ValueError(f"{name}: {key}: {error}") from None
    if "model" not in dict(settings):
        raise ValueError(f"{name}: `model` is missing")
    if own.get("pinned") and "ttl" in own:
        raise ValueError(f"{name}: a pinned model cannot have a ttl")
    return ModelEntry(name, tuple(settings), **own)


def read_instances(raw: object, read: Read) -> Instances:
    """raw: a number or a list, as JSON text or as what a file holds. read: reads one setting. Raises ValueError."""
    if isinstance(raw, str):
        try:
            raw = msgspec.json.decode(raw)
        except msgspec.MsgspecError as error:
            raise ValueError(f"must be a number, or a list in JSON: {error}") from None
    told = [{"count": raw}] if isinstance(raw, int) else raw
    if not isinstance(told, list) or not told:
        raise ValueError("must be a number, or a list of objects of settings")
    listed = [_instances(one, number, read) for number, one in enumerate(cast("list[object]", told), 1)]
    each = tuple(instance for several in listed for instance in several)
    if len(each) > _MOST_INSTANCES:
        raise ValueError(f"the maximum is {_MOST_INSTANCES} instances, not {len(each)}")
    return Instances(each)


def _instances(raw: object, number: int, read: Read) -> list[Instance]:
    """One entry of the list: as many as its count, all alike."""
    if not isinstance(raw, dict):
        raise ValueError(f"{number}: must be an object of settings")
    count, settings = 1, list[tuple[str, Any]]()
    for key, value in cast("Mapping[object, object]", raw).items():
        setting = _current_name(str(number), str(key))
        try:
            if setting == "count":
                count = read(_COUNT, value)
            elif setting in _OF_AN_INSTANCE:
                settings.append((setting, read(BY_NAME[setting], value)))
            else:
                raise ValueError(_unknown(setting, "an instance", ("count", *_OF_AN_INSTANCE)))
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


def _unknown(name: str, whose: str, known: Sequence[str]) -> str:
    if name in BY_NAME:
        return "this setting applies to the whole server"
    close = get_close_matches(name, known, n=1)
    return f"unknown setting of {whose}." + (f" Did you mean {close[0]}?" if close else "")


def _check_names(entries: tuple[ModelEntry, ...]) -> None:
    seen: set[str] = set()
    for entry in entries:
        if "*" in entry.name or "?" in entry.name:
            raise ValueError(f"{entry.name}: only aliases may be patterns")
        for name in (entry.name, *entry.aliases):
            if name in seen:
                raise ValueError(f"{entry.name}: two models have the name {name}")
            seen.add(name)
