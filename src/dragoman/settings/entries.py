"""The `models` of a server that has several: for each name what to serve, and the settings that are its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, cast

import msgspec

from .definition import ModelEntries, ModelEntry
from .fields import BY_NAME, OF_A_MODEL, Field

Read = Callable[[Field, object], Any]

_NOT_HERE = frozenset({"served_model_name", "config"})
_ALLOWED = tuple(name for name, field in BY_NAME.items() if field.option.group in OF_A_MODEL and name not in _NOT_HERE)
_LIST, _SWITCH = BY_NAME["served_model_name"], BY_NAME["strict"]
_SECONDS, _BYTES = BY_NAME["keepalive_interval"], BY_NAME["models_memory"]
_SHAPES = {
    "aliases": _LIST,
    "pinned": _SWITCH,
    "memory": _BYTES,
    "ttl": msgspec.structs.replace(_SECONDS, option=msgspec.structs.replace(_SECONDS.option, least=0, most=None)),
}
"""What an entry has beside settings, each read as the setting of the same shape is."""


def read_entries(raw: object, read: Read) -> ModelEntries:
    """raw: JSON text, or what a file holds. read: reads one setting. ValueError says what is wrong, and where."""
    if isinstance(raw, str):
        try:
            raw = msgspec.json.decode(raw)
        except msgspec.MsgspecError as error:
            raise ValueError(f"must be JSON: {error}") from None
    if not isinstance(raw, dict) or not raw:
        raise ValueError("must be an object with a name for each model")
    entries = tuple(_entry(str(name), value, read) for name, value in cast("Mapping[object, object]", raw).items())
    _check_names(entries)
    return ModelEntries(entries)


def _entry(name: str, raw: object, read: Read) -> ModelEntry:
    """A text alone is what to serve."""
    told = {"model": raw} if isinstance(raw, str) else raw
    if not isinstance(told, dict):
        raise ValueError(f"{name}: must be what to serve, or an object of settings")
    own: dict[str, Any] = {}
    settings: list[tuple[str, Any]] = []
    for key, value in cast("Mapping[object, object]", told).items():
        setting = str(key).replace("-", "_")
        try:
            if setting in _SHAPES:
                own[setting] = read(_SHAPES[setting], value)
            elif setting in _ALLOWED:
                settings.append((setting, read(BY_NAME[setting], value)))
            else:
                raise ValueError(_unknown(setting))
        except ValueError as error:
            raise ValueError(f"{name}: {key}: {error}") from None
    if "model" not in dict(settings):
        raise ValueError(f"{name}: `model` is missing: what to serve")
    if own.get("pinned") and "ttl" in own:
        raise ValueError(f"{name}: what is pinned has no ttl")
    return ModelEntry(name, tuple(settings), **own)


def _unknown(name: str) -> str:
    if name in BY_NAME:
        return "this is a setting of the whole server"
    close = get_close_matches(name, [*_SHAPES, *_ALLOWED], n=1)
    return "there is no such setting of a model." + (f" Did you mean {close[0]}?" if close else "")


def _check_names(entries: tuple[ModelEntry, ...]) -> None:
    seen: set[str] = set()
    for entry in entries:
        if "*" in entry.name or "?" in entry.name:
            raise ValueError(f"{entry.name}: only an alias may be a pattern")
        for name in (entry.name, *entry.aliases):
            if name in seen:
                raise ValueError(f"{entry.name}: {name} is the name of two models")
            seen.add(name)
