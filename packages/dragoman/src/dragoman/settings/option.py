"""The metadata of a setting, which stands in its annotation."""

from __future__ import annotations

from msgspec import Struct

MIB = 1024 * 1024


class SettingsError(Exception):
    """A setting is invalid. The message names its source, the setting and the allowed
    values.
    """


class Secret(str):
    """A string that its own repr, and so that of its container, does not show."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


class Option(Struct, frozen=True):
    """Metadata of a setting.

    group: heading in the help.
    help: description; for a switch, the effect of changing it from its default.
    minimum, maximum: bounds of a number, both allowed.
    allows_size_suffix: the number may be written 8k (8,000) or 8K (8,192), as in vLLM.
    off_flag: the flag that turns it off if `--no-...` would read badly, without dashes.
    metavar: placeholder for the value in the help.
    vllm_name: vLLM's name, if it differs.
    is_secret: the text is parsed as a `Secret`.
    """

    group: str
    help: str
    minimum: float | None = None
    maximum: float | None = None
    allows_size_suffix: bool = False
    off_flag: str | None = None
    metavar: str | None = None
    vllm_name: str | None = None
    is_secret: bool = False
