"""Descriptions of all settings (flag, environment variable, type, default), and which
engines support each.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator
from types import NoneType
from typing import Any, Literal

import msgspec
from msgspec import Struct

from .definition import Settings
from .engine_settings import load_declarations, load_engine_settings
from .option import Option
from .serving import ServingSettings

ENV_PREFIX = "DRAGOMAN_"


class SettingField(Struct, frozen=True):
    """One setting.

    kind: type, without None.
    owner: the struct that has it: `Settings`, or the settings of an installed engine.
    option: metadata such as group and help.
    choices: allowed words; empty if any value of the type is allowed.
    """

    name: str
    kind: Any
    owner: type[Struct]
    default: Any
    option: Option
    choices: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        return format_flag(self.name)

    @property
    def off_flag(self) -> str:
        return format_flag(self.negated_name)

    @property
    def negated_name(self) -> str:
        """Name of the inverse of a switch, which is accepted wherever its own name is."""
        return (self.option.off_flag or f"no-{self.name}").replace("-", "_")

    @property
    def option_name(self) -> str:
        """Name of the option that the help shows: of a switch, the one that changes the
        default.
        """
        return self.negated_name if self.default is True else self.name

    @property
    def environment_variable(self) -> str:
        return format_variable(self.option_name)

    @property
    def is_list(self) -> bool:
        return typing.get_origin(self.kind) is tuple


def format_flag(name: str) -> str:
    """Return the command-line flag of a setting."""
    return "--" + name.replace("_", "-")


def format_variable(name: str) -> str:
    """Return the environment variable of a setting."""
    return ENV_PREFIX + name.upper()


def _list_fields() -> Iterator[SettingField]:
    for owner in (Settings, *load_engine_settings()):
        hints = typing.get_type_hints(owner, include_extras=True)
        for info in msgspec.structs.fields(owner):
            if typing.get_origin(hints[info.name]) is not typing.Annotated:
                continue
            annotated, option = typing.get_args(hints[info.name])
            kind = annotated
            members = typing.get_args(annotated)
            if NoneType in members:
                # Fails for a union of several types, which no parser supports.
                (kind,) = (member for member in members if member is not NoneType)
            choices = typing.get_args(kind) if typing.get_origin(kind) is Literal else ()
            yield SettingField(info.name, kind, owner, info.default, option, choices)


_GROUPS = (
    "Model",
    "Upstream",
    "Server",
    "Access",
    "Scheduling",
    "API",
    "Store",
    "Logging",
    "vLLM",
)
"""Headings of the server's own settings in the help; engines' own ones follow."""
FIELDS = tuple(
    sorted(
        _list_fields(),
        key=lambda field: (
            _GROUPS.index(field.option.group) if field.option.group in _GROUPS else len(_GROUPS),
            field.name in ServingSettings.__struct_fields__,
        ),
    )
)
"""All settings by group; within a group in order of definition, with those of the HTTP
API last.
"""
FIELDS_BY_NAME = {field.name: field for field in FIELDS}
NEGATED_NAMES = {field.negated_name: field.name for field in FIELDS if field.kind is bool}
"""Names of switches by the name of their inverse."""
_MODEL_GROUPS = frozenset({"Model", "Scheduling", "Upstream", "vLLM"})
MODEL_SETTINGS = tuple(
    field.name
    for field in FIELDS
    if (field.option.group in _MODEL_GROUPS or field.owner is not Settings)
    and field.name not in ("served_model_name", "config")
)
"""Names of the settings that can be set per model."""


def _find_supporting(field: SettingField) -> tuple[str, ...]:
    """Find the engines that support a setting; empty if all do."""
    return tuple(
        declaration.name
        for declaration in load_declarations()
        if field.owner is declaration.settings or field.name in (declaration.supports or ())
    )


SUPPORTED_BY = {field.name: engines for field in FIELDS if (engines := _find_supporting(field))}
"""The engines that support a setting, for settings that only some engines support."""
ENGINES = frozenset(item.name for item in load_declarations() if item.supports is not None)
"""Engines whose supported settings are known. Any other may support any setting."""


def find_changed_settings(settings: Settings) -> frozenset[str]:
    """Return the names of the settings that differ from their defaults."""
    return frozenset(field.name for field in FIELDS if settings.get(field.name) != field.default)


def describe_unsupported(names: Iterable[str], *engines: str) -> list[str]:
    """Return a sentence for each of these settings that none of the engines supports."""
    if not ENGINES.issuperset(engines):
        return []
    sentences: list[str] = []
    for name in sorted(names):
        field = FIELDS_BY_NAME[name]
        supporting = SUPPORTED_BY.get(name)
        if supporting is None or set(supporting) & set(engines):
            continue
        engine_names = (
            supporting[0]
            if len(supporting) == 1
            else f"{', '.join(supporting[:-1])} and {supporting[-1]}"
        )
        flag = format_flag(field.option_name)
        sentences.append(
            f"{flag} is for {engine_names}; {' and '.join(sorted(set(engines)))} would ignore it"
        )
    return sentences
