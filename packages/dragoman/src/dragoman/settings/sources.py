"""Loads settings from the command line, the environment and a file, in this order of
precedence.

Every error names the source of the setting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import cast

from msgspec import Struct

from .combinations import check_combinations
from .definition import Settings
from .fields import (
    ENV_PREFIX,
    FIELDS,
    FIELDS_BY_NAME,
    NEGATED_NAMES,
    SettingField,
    format_flag,
    format_variable,
)
from .option import SettingsError
from .service_links import find_service_links
from .values import read_bool, read_value

_ACCEPTED_NAMES = frozenset({*FIELDS_BY_NAME, *NEGATED_NAMES})
"""Names that a setting may have in the environment and in a file."""


def load_settings(
    cli_options: Mapping[str, object],
    environment: Mapping[str, str],
    overrides: Mapping[str, object] | None = None,
) -> Settings:
    """Load the settings.

    cli_options: command-line options by field name; None means unset.
    overrides: values that replace those of all sources, by field name; None is the
        default of the setting.

    Raises:
        SettingsError: a setting is invalid.
    """
    set_options = {name: value for name, value in cli_options.items() if value is not None}
    service_links = find_service_links(environment)
    variables: dict[str, object] = {}
    for variable, value in environment.items():
        if not variable.startswith(ENV_PREFIX) or variable in service_links:
            continue
        name = variable.removeprefix(ENV_PREFIX).lower()
        # An error, not a warning: with a misspelled limit or key the server would run
        # unprotected.
        if name not in _ACCEPTED_NAMES or variable != variable.upper():
            suggestion = suggest_name(name, format_variable)
            raise SettingsError(f"environment {variable}: unknown setting.{suggestion}")
        variables[name] = value
    return _merge(
        [
            _Source("", overrides or {}, format_flag),
            _Source("", _resolve_inverses(set_options, "", format_flag), format_flag),
            _Source(
                "environment ", _resolve_inverses(variables, "", format_variable), format_variable
            ),
        ]
    )


def load_keywords(keywords: Mapping[str, object]) -> Settings:
    """Load the settings from keyword arguments: Python values or text; None means
    unset.

    The environment is not read; the file that `config` names is.

    Raises:
        SettingsError: a setting is unknown or invalid.
    """
    for name in keywords:
        if name not in FIELDS_BY_NAME and name not in NEGATED_NAMES:
            raise SettingsError(f"{name}: unknown setting.{suggest_name(name)}")
    set_keywords = {name: value for name, value in keywords.items() if value is not None}
    return _merge([_Source("", _resolve_inverses(set_keywords, "", str), str)])


def list_names_in_file(path: str) -> frozenset[str]:
    """List the settings that a configuration file sets.

    Raises:
        SettingsError: the file cannot be read, or a key is unknown.
    """
    return frozenset(_read_file(Path(path), format_flag("config")).raw)


class _Source(Struct, frozen=True):
    """One source of settings.

    place: prefix of a setting's name in an error.
    raw: values by field name, not yet parsed. None hides the values of later sources.
    format_name: formats a setting's name as it is written in this source.
    """

    place: str
    raw: Mapping[str, object]
    format_name: Callable[[str], str]

    def locate(self, name: str) -> str:
        return f"{self.place}{self.format_name(name)}"

    def read_value(self, field: SettingField) -> object:
        """Parse a value; None if it is unset. Raises SettingsError, which names the
        source.
        """
        if self.raw.get(field.name) is None:
            return None
        try:
            return read_value(field, self.raw[field.name])
        except ValueError as error:
            raise SettingsError(f"{self.locate(field.name)}: {error}") from None


def _merge(sources: Sequence[_Source]) -> Settings:
    """Take each setting from the first source that has it; the file that `config` names
    comes last.
    """
    source = next((source for source in sources if source.raw.get("config") is not None), None)
    if source is not None:
        path = Path(cast("str", source.read_value(FIELDS_BY_NAME["config"])))
        sources = [*sources, _read_file(path, source.locate("config"))]
    values: dict[type[Struct], dict[str, object]] = {Settings: {}}
    origins: dict[str, str] = {}
    for field in FIELDS:
        source = next((source for source in sources if field.name in source.raw), None)
        if source is not None and source.raw[field.name] is not None:
            values.setdefault(field.owner, {})[field.name] = source.read_value(field)
            origins[field.name] = source.locate(field.name)
    own = values.pop(Settings)
    # Each value was read by its field's type.
    engine_settings = tuple(owner(**fields) for owner, fields in values.items())
    settings = Settings(**own, engine_settings=engine_settings)  # pyright: ignore[reportArgumentType] - as above
    check_combinations(settings, origins)
    return settings


def _read_file(path: Path, origin: str) -> _Source:
    """Read a configuration file.

    origin: source and name of the setting that names the file, for errors.

    Raises:
        SettingsError: the file cannot be read, or a key is unknown.
    """
    suffix = path.suffix.lower()
    if suffix not in (".toml", ".yaml", ".yml"):
        raise SettingsError(f"{path}: a configuration file must end in .toml, .yaml or .yml")
    try:
        text = path.read_text(encoding="utf-8")
        pairs = _parse_toml(text) if suffix == ".toml" else _parse_yaml(text)
    except FileNotFoundError:
        raise SettingsError(f"{origin}: {path} does not exist") from None
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise SettingsError(f"{path}: {error}") from None
    keys: dict[str, object] = {}
    for key, value in pairs:
        name = key.replace("-", "_")
        if name not in _ACCEPTED_NAMES:
            raise SettingsError(f"{path}: {key}: unknown setting.{suggest_name(name)}")
        if name in keys:
            raise SettingsError(f"{path}: {key}: set twice")
        if name == "config":
            raise SettingsError(f"{path}: {key}: a configuration file cannot include another")
        keys[name] = value
    # YAML reads a key without a value as null, which leaves the setting unset.
    values = {name: value for name, value in keys.items() if value is not None}
    return _Source(f"{path}: ", _resolve_inverses(values, f"{path}: ", str), str)


def _parse_toml(text: str) -> list[tuple[str, object]]:
    """Parse into pairs. Raises ValueError."""
    import tomllib  # noqa: PLC0415 - most servers start without a file

    return list(tomllib.loads(text).items())


def _parse_yaml(text: str) -> list[tuple[str, object]]:
    """Parse into pairs. Raises ValueError."""
    from ..core.strict_yaml import load_yaml  # noqa: PLC0415 - as above

    root = load_yaml(text)
    if root is None:
        return []
    if not isinstance(root, dict):
        raise ValueError("the file must be a mapping of `name: value` lines")
    return [(str(key), value) for key, value in cast("dict[object, object]", root).items()]


def _resolve_inverses(
    raw: Mapping[str, object], place: str, format_name: Callable[[str], str]
) -> dict[str, object]:
    """Replace inverses of switches by the switches in one source.

    place, format_name: as in `_Source`.

    Raises:
        SettingsError: a switch and its inverse are set, or the value of an inverse is
            invalid.
    """
    resolved: dict[str, object] = {}
    for name, value in raw.items():
        switch = NEGATED_NAMES.get(name)
        if switch is None:
            resolved[name] = value
            continue
        if switch in raw:
            names = sorted(f"{place}{format_name(each)}" for each in (name, switch))
            raise SettingsError(
                f"{' and '.join(names)}: one is the inverse of the other; set only one of them"
            )
        try:
            resolved[switch] = not read_bool(value)
        except ValueError as error:
            raise SettingsError(f"{place}{format_name(name)}: {error}") from None
    return resolved


def suggest_name(name: str, format_name: Callable[[str], str] = str) -> str:
    """Return a suggestion for an unknown setting; empty if no name is close.

    format_name: formats a setting's name as it is written in its source.
    """
    name = name.lower().replace("-", "_")
    for field in FIELDS:
        # Before the check for misspellings: a name of vLLM's may be close to another
        # setting here.
        if field.option.vllm_name == name:
            return f" What vLLM calls {name} is {format_name(field.option_name)} here."
    # No suggestion may turn off authentication, unless the name was about that.
    candidates = {*FIELDS_BY_NAME, *NEGATED_NAMES} - ({"no_auth"} if "auth" not in name else set())
    close_matches = get_close_matches(name, sorted(candidates), n=1)
    return f" Did you mean {format_name(close_matches[0])}?" if close_matches else ""
