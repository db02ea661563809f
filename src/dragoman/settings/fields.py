"""All settings as fields, for the command line, the docs and the parsers; and which engines support them."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator
from types import NoneType
from typing import Any, Literal

import msgspec
from msgspec import Struct

from .definition import Settings
from .sections import Option
from .serving import ServingSettings

PREFIX = "DRAGOMAN_"


class SettingField(Struct, frozen=True):
    """One setting.

    kind: type, without None.
    option: metadata such as group and help.
    choices: allowed words; empty if any value of the type is allowed.
    """

    name: str
    kind: Any
    default: Any
    option: Option
    choices: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        return format_flag(self.name)

    @property
    def off_flag(self) -> str:
        return f"--{self.option.off_flag}" if self.option.off_flag else "--no-" + self.flag.removeprefix("--")

    @property
    def variable(self) -> str:
        return format_variable(self.name)

    @property
    def is_list(self) -> bool:
        return typing.get_origin(self.kind) is tuple


def format_flag(name: str) -> str:
    """Return the command-line flag of a setting."""
    return "--" + name.replace("_", "-")


def format_variable(name: str) -> str:
    """Return the environment variable of a setting."""
    return PREFIX + name.upper()


def _list_fields() -> Iterator[SettingField]:
    hints = typing.get_type_hints(Settings, include_extras=True)
    for info in msgspec.structs.fields(Settings):
        annotated, option = typing.get_args(hints[info.name])
        members = [kind for kind in typing.get_args(annotated) if kind is not NoneType]
        kind = members[0] if NoneType in typing.get_args(annotated) else annotated
        choices = typing.get_args(kind) if typing.get_origin(kind) is Literal else ()
        yield SettingField(info.name, kind, info.default, option, choices)


_GROUPS = ("Model", "Upstream", "Server", "Access", "Scheduling", "API", "Store", "Logging", "Simulator")
FIELDS = tuple(
    sorted(
        _list_fields(),
        key=lambda field: (_GROUPS.index(field.option.group), field.name in ServingSettings.__struct_fields__),
    )
)
"""All settings by group; within a group in order of definition, with those of the HTTP API last."""
FIELDS_BY_NAME = {field.name: field for field in FIELDS}
FORMER_NAMES = {
    "max_waiting": "max_queued_requests",
    "max_waiting_tokens": "max_queued_tokens",
    "reasoning_check": "reasoning_verification",
    "models_memory": "model_memory_limit",
}
"""Current names of settings by their former names, which are accepted with a warning for one release."""
MODEL_GROUPS = frozenset({"Model", "Scheduling", "Upstream", "Simulator"})
"""Groups whose settings can be set per model."""


SUPPORTED_BY = {field.name: field.option.engines for field in FIELDS if field.option.engines}
"""The engines that support a setting, for settings that only some engines support."""
ENGINES = frozenset(engine for engines in SUPPORTED_BY.values() for engine in engines)
"""Engines whose supported settings are known. A third-party engine may support any setting."""


def find_changed_settings(settings: Settings) -> frozenset[str]:
    """Return the names of the settings that differ from their defaults."""
    return frozenset(
        name for name, value in msgspec.structs.asdict(settings).items() if value != FIELDS_BY_NAME[name].default
    )


def describe_unsupported(names: Iterable[str], *engines: str) -> list[str]:
    """Return a sentence for each of these settings that none of the engines supports."""
    if not ENGINES.issuperset(engines):
        return []
    sentences: list[str] = []
    for name in sorted(names):
        field, supporting = FIELDS_BY_NAME[name], SUPPORTED_BY.get(name)
        if supporting is None or set(supporting) & set(engines):
            continue
        engine_names = supporting[0] if len(supporting) == 1 else f"{', '.join(supporting[:-1])} and {supporting[-1]}"
        flag = field.off_flag if field.default is True else field.flag
        sentences.append(f"{flag} is for {engine_names}; {' and '.join(sorted(set(engines)))} would ignore it")
    return sentences
