"""What can be said of a setting, and of a wrong one."""

from __future__ import annotations

from msgspec import Struct


class SettingsError(Exception):
    """A setting is wrong. The message is for people: where it was said, which one, and what is allowed."""


class Secret(str):
    """Text that is not shown when something that holds it is printed."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


class Option(Struct, frozen=True):
    """How a setting is shown and what it may be.

    help: of a switch, what it does when it is turned away from its default. least, most: of a number. sized: a number
    that may be written 8k (8,000) or 8K (8,192), as in vLLM. flag: the name that switches it off where `--no-...`
    would read badly. vllm: what vLLM calls it, where that is another name.
    """

    group: str
    help: str
    minimum: float | None = None
    maximum: float | None = None
    allows_size_suffix: bool = False
    off_flag: str | None = None
    metavar: str | None = None
    vllm_name: str | None = None
