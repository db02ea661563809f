"""Entries of a settings file for several models, and for several servers in one process."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class ModelEntry(Struct, frozen=True):
    """One of several models.

    overrides: its own settings by name; the server's apply otherwise.
    ttl: idle seconds after which it is unloaded; None is never.
    pinned: loaded at startup and never unloaded.
    memory: its size in bytes; None to estimate it from its files.
    """

    name: str
    overrides: tuple[tuple[str, Any], ...] = ()
    aliases: tuple[str, ...] = ()
    ttl: float | None = None
    pinned: bool = False
    memory: int | None = None


class ModelEntries(Struct, frozen=True):
    """The `models` of a settings file, in order."""

    entries: tuple[ModelEntry, ...] = ()


class Instance(Struct, frozen=True):
    """One of several simulated servers in a process.

    overrides: its own settings by name; the process's apply otherwise.
    """

    overrides: tuple[tuple[str, Any], ...] = ()


class Instances(Struct, frozen=True):
    """The simulated servers in order; if empty, there is one server with the process's settings."""

    items: tuple[Instance, ...] = ()
