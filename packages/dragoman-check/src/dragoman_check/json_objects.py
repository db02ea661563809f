"""Lenient access to the members of JSON objects."""

from __future__ import annotations

from typing import cast

from .rules.json_values import JsonObject


def get_object(value: JsonObject, name: str) -> JsonObject:
    """Return the object of this name; empty if it is absent, null or not an object."""
    member = value.get(name)
    return cast(JsonObject, member) if isinstance(member, dict) else {}


def get_objects(value: JsonObject, name: str) -> list[JsonObject]:
    """Return the objects in the list of this name; empty if it is absent, null or not a
    list.
    """
    member = value.get(name)
    return cast(list[JsonObject], member) if isinstance(member, list) else []
