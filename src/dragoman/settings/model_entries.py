"""What a file of settings says of several models, and of several servers in one process."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class ModelEntry(Struct, frozen=True):
    """One of several models. told: its own settings, by name; the server's hold for the rest.

    ttl: seconds without a request after which it is let go; None is never. pinned: it is loaded from the start and
    stays. memory: bytes that it takes; None where its files shall tell.
    """

    name: str
    overrides: tuple[tuple[str, Any], ...] = ()
    aliases: tuple[str, ...] = ()
    ttl: float | None = None
    pinned: bool = False
    memory: int | None = None


class ModelEntries(Struct, frozen=True):
    """The `models` of a file of settings, in their order."""

    entries: tuple[ModelEntry, ...] = ()


class Instance(Struct, frozen=True):
    """One of several simulated servers in a process. told: its own settings, by name; the process's hold for the
    rest."""

    overrides: tuple[tuple[str, Any], ...] = ()


class Instances(Struct, frozen=True):
    """In their order; without any there is one server, which is told everything by the process's settings."""

    items: tuple[Instance, ...] = ()
