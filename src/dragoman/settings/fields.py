"""The settings as fields that a command line or a table can show."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from types import NoneType
from typing import Any, Literal

import msgspec
from msgspec import Struct

from .definition import Settings
from .option import Option, Secret

PREFIX = "DRAGOMAN_"


class SettingField(Struct, frozen=True):
    """One setting.

    kind: its type, without None.
    choices: its allowed words.
    """

    name: str
    kind: Any
    default: Any
    option: Option
    choices: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        return flag_of(self.name)

    @property
    def off_flag(self) -> str:
        return f"--{self.option.off_flag}" if self.option.off_flag else "--no-" + self.flag.removeprefix("--")

    @property
    def variable(self) -> str:
        return variable_of(self.name)

    @property
    def is_list(self) -> bool:
        return typing.get_origin(self.kind) is tuple

    @property
    def is_secret(self) -> bool:
        return self.kind is Secret or (self.is_list and typing.get_args(self.kind)[0] is Secret)


def flag_of(name: str) -> str:
    """The option of a setting on the command line."""
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + name.upper()


def _list_fields() -> Iterator[SettingField]:
    hints = typing.get_type_hints(Settings, include_extras=True)
    for info in msgspec.structs.fields(Settings):
        annotated, option = typing.get_args(hints[info.name])
        members = [kind for kind in typing.get_args(annotated) if kind is not NoneType]
        is_optional = NoneType in typing.get_args(annotated)
        kind = members[0] if is_optional else annotated
        choices = typing.get_args(kind) if typing.get_origin(kind) is Literal else ()
        yield SettingField(info.name, kind, info.default, option, choices)


FIELDS = tuple(sorted(_list_fields(), key=lambda field: field.option.group == "Simulator"))
"""In order of definition, the simulator's at the end."""
FIELDS_BY_NAME = {field.name: field for field in FIELDS}
FORMER_NAMES = {
    "max_waiting": "max_queued_requests",
    "max_waiting_tokens": "max_queued_tokens",
    "reasoning_check": "reasoning_verification",
    "models_memory": "model_memory_limit",
}
"""Former names of settings and their present ones; accepted with a warning for one release."""
MODEL_GROUPS = frozenset({"Model", "Scheduling", "Upstream", "Simulation", "Simulator"})
"""Groups whose settings can be set per model."""
