"""Metadata of a setting, and the errors of settings."""

from __future__ import annotations

from msgspec import Struct


class SettingsError(Exception):
    """A setting is invalid. The message names its source, the setting and the allowed values."""


class Secret(str):
    """Text that is not shown in the repr of its container."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


class Option(Struct, frozen=True):
    """Metadata of a setting.

    group: its heading in the help.
    help: description; of a switch, the effect of turning it away from its default.
    minimum, maximum: bounds of a number.
    allows_size_suffix: the number may be written 8k (8,000) or 8K (8,192), as in vLLM.
    off_flag: the flag that switches it off where `--no-...` would read badly.
    vllm_name: vLLM's name, where it differs.
    """

    group: str
    help: str
    minimum: float | None = None
    maximum: float | None = None
    allows_size_suffix: bool = False
    off_flag: str | None = None
    metavar: str | None = None
    vllm_name: str | None = None
