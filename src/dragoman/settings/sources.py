"""Sources of settings: the command line, the environment and a file, in this order of precedence.

Every error names the source; `values` defines the allowed values.
"""

from __future__ import annotations

import ipaddress
import logging
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

from msgspec import Struct

from .definition import Settings
from .fields import FIELDS, FIELDS_BY_NAME, FORMER_NAMES, PREFIX, SettingField, flag_of, variable_of
from .option import SettingsError
from .values import read_value

log = logging.getLogger(__name__)

_SERVICE_LINK = r"_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
"""After the name of a service."""


def load_settings(cli_options: Mapping[str, object], environment: Mapping[str, str]) -> Settings:
    """Load the settings.

    cli_options: options of the command line by field name; None is unset.

    Raises:
        SettingsError: a setting is invalid.
    """
    set_options = _rename({name: value for name, value in cli_options.items() if value is not None}, flag_of)
    sources = [_Source(set_options, lambda field: field.flag)]
    sources.append(_Source(_read_variables(environment), lambda field: f"environment {field.variable}"))
    file = sources[0].read_value(FIELDS_BY_NAME["config"]) or sources[1].read_value(FIELDS_BY_NAME["config"])
    if file is not None:
        path = Path(cast("str", file))
        sources.append(_Source(_read_keys(path), lambda field: f"{path}: {field.name}"))
    return _merge(sources)


def load_keywords(keywords: Mapping[str, object]) -> Settings:
    """The settings that a program states by name, as Python values or as text; None is nothing. Raises SettingsError.

    The environment is not read; a file is, where `config` names one.
    """
    for name in keywords:
        if name not in FIELDS_BY_NAME:
            raise SettingsError(f"{name}: unknown setting.{suggest_name(name, lambda field: field.name)}")
    set_options = {name: value for name, value in keywords.items() if value is not None}
    sources = [_Source(set_options, lambda field: field.name)]
    file = sources[0].read_value(FIELDS_BY_NAME["config"])
    if file is not None:
        path = Path(cast("str", file))
        sources.append(_Source(_read_keys(path), lambda field: f"{path}: {field.name}"))
    return _merge(sources)


def _merge(sources: Sequence[_Source]) -> Settings:
    """Of each setting what the first source says that has it."""
    values: dict[str, object] = {}
    origins: dict[str, str] = {}
    for field in FIELDS:
        source = next((source for source in sources if field.name in source.raw), None)
        if source is not None:
            values[field.name], origins[field.name] = source.read_value(field), source.format_name(field)
    settings = Settings(**values)  # pyright: ignore[reportArgumentType] - each value was read by its field's type
    _check_combinations(settings, origins)
    return settings


class _Source(Struct, frozen=True):
    """One source of settings.

    raw: values by field name, not yet parsed.
    format_name: a setting's name as it is written in this source.
    """

    raw: Mapping[str, object]
    format_name: Callable[[SettingField], str]

    def read_value(self, field: SettingField) -> object:
        """Parse a value; None where it is unset. Raises SettingsError with the source."""
        if field.name not in self.raw:
            return None
        try:
            return read_value(field, self.raw[field.name])
        except ValueError as error:
            raise SettingsError(f"{self.format_name(field)}: {error}") from None


def _read_variables(environment: Mapping[str, str]) -> dict[str, object]:
    links = _find_service_links(environment)
    names = {
        name: name.removeprefix(PREFIX).lower() for name in environment if name.startswith(PREFIX) and name not in links
    }
    for variable, name in names.items():
        # An error, not a warning: with a misspelled limit or key the server would run unprotected.
        if (name not in FIELDS_BY_NAME and name not in FORMER_NAMES) or variable != variable.upper():
            raise SettingsError(
                f"environment {variable}: unknown setting.{suggest_name(name, lambda field: field.variable)}"
            )
    return _rename({name: environment[variable] for variable, name in names.items()}, variable_of)


def _find_service_links(environment: Mapping[str, str]) -> set[str]:
    """The variables that Kubernetes sets in every pod for services whose names begin with `dragoman`.

    https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables
    """
    links: set[str] = set()
    for name in environment:
        service = name.removesuffix("_SERVICE_HOST")
        # Every service has both, which tells them from a misspelled setting.
        if service != name and f"{service}_SERVICE_PORT" in environment:
            matches = re.compile(re.escape(service) + _SERVICE_LINK).fullmatch
            links |= {each for each in environment if matches(each)}
            # `dragoman` itself: the setting has the same name.
            if "://" not in environment.get(f"{service}_PORT", ""):
                links.discard(f"{service}_PORT")
    return links


def _read_keys(path: Path) -> dict[str, object]:
    keys: dict[str, object] = {}
    for key, value in _read_file(path):
        name = key.replace("-", "_")
        if name not in FIELDS_BY_NAME and name not in FORMER_NAMES:
            raise SettingsError(f"{path}: {key}: unknown setting.{suggest_name(name, lambda field: field.name)}")
        if name in keys:
            raise SettingsError(f"{path}: {key}: set twice")
        if name == "config":
            raise SettingsError(f"{path}: {key}: a configuration file cannot include another")
        keys[name] = value
    # YAML reads a key without a value as null, which leaves the setting unset.
    values = {name: value for name, value in keys.items() if value is not None}
    return _rename(values, lambda name: f"{path}: {name}")


def _rename(raw: Mapping[str, object], show: Callable[[str], str]) -> dict[str, object]:
    """Rename former names of settings in one source.

    show: a name as it is written in that source.

    Raises:
        SettingsError: a setting has both its present and its former name.
    """
    renamed: dict[str, object] = {}
    for name, value in raw.items():
        current = FORMER_NAMES.get(name, name)
        if current in renamed:
            former = next(former for former, present in FORMER_NAMES.items() if present == current)
            raise SettingsError(f"{show(former)} is the former name of {show(current)}; set only one of them")
        if current != name:
            log.warning("%s is deprecated; use %s", show(name), show(current))
        renamed[current] = value
    return renamed


def _read_file(path: Path) -> list[tuple[str, object]]:
    readers = {".toml": _parse_toml, ".yaml": _parse_yaml, ".yml": _parse_yaml}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise SettingsError(f"{path}: a configuration file must end in {', '.join(readers)}")
    try:
        return reader(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path}: {error}") from None


def _parse_toml(text: str) -> list[tuple[str, object]]:
    return list(tomllib.loads(text).items())


def _parse_yaml(text: str) -> list[tuple[str, object]]:
    """Parse into pairs: a mapping would hide duplicate keys."""
    import yaml  # noqa: PLC0415 - most servers start without a file

    loader: Any = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        if root is not None and not isinstance(root, yaml.MappingNode):
            raise ValueError("the file must be a mapping of `name: value` lines")
        pairs: list[Any] = [] if root is None else root.value
        return [(str(key.value), loader.construct_object(value, deep=True)) for key, value in pairs]
    except yaml.YAMLError as error:
        raise ValueError(error) from None


def suggest_name(name: str, format_field: Callable[[SettingField], str]) -> str:
    """A suggestion for an unknown setting; empty if no name is close."""
    name = name.lower().replace("-", "_")
    for field in FIELDS:
        # Before spelling: what vLLM calls a setting may be close to another one's name.
        if field.option.vllm_name == name:
            return f" What vLLM calls {name} is {format_field(field)} here."
    close_matches = get_close_matches(name, FIELDS_BY_NAME, n=1)
    return f" Did you mean {format_field(FIELDS_BY_NAME[close_matches[0]])}?" if close_matches else ""


def _check_combinations(settings: Settings, origins: Mapping[str, str]) -> None:
    for name in ("model", "served_model_name"):
        if settings.models.entries and name in origins:
            raise SettingsError(f"{origins[name]} and {origins['models']}: set either one model or several")
    if settings.instances.items:
        _check_instances(settings, origins)
    for name in ("host", "port"):
        if settings.uds is not None and name in origins:
            raise SettingsError(f"{origins['uds']} and {origins[name]}: set either a Unix socket or a TCP address")
    if not re.fullmatch("0?[0-7]{3}", settings.uds_mode):
        raise SettingsError(f"{origins['uds_mode']}: {settings.uds_mode!r} is no mode such as 600 or 660")
    if (settings.ssl_certfile is None) != (settings.ssl_keyfile is None):
        origin = origins["ssl_certfile" if settings.ssl_keyfile is None else "ssl_keyfile"]
        raise SettingsError(f"{origin}: TLS needs both --ssl-certfile and --ssl-keyfile")
    # A Unix socket is protected by the mode of its file.
    if settings.uds is None:
        check_exposure(settings, origins.get("host", ""))


def check_exposure(settings: Settings, origin: str) -> None:
    """Raise SettingsError where other machines could use the server without a key. origin: of its address."""
    has_keys = bool(settings.api_key) or settings.keys_file is not None
    if not is_loopback(settings.host) and not has_keys and not settings.no_auth:
        raise SettingsError(
            f"{origin}: {settings.host} is reachable from other machines, and no API key is set. "
            "Set one with --api-key (or DRAGOMAN_API_KEY) or --keys-file, or use --no-auth to allow unauthenticated "
            "access."
        )


def _check_instances(settings: Settings, origins: Mapping[str, str]) -> None:
    """Reject settings that a process of several simulated servers does not support."""
    origin = origins["instances"]
    models = [
        settings.model,
        *(value for instance in settings.instances.items for name, value in instance.overrides if name == "model"),
    ]
    if settings.models.entries or any(model.partition(":")[0] != "sim" for model in models):
        raise SettingsError(f"{origin}: only `sim` can run several instances")
    if settings.uds is not None:
        raise SettingsError(f"{origins['uds']} and {origin}: instances need TCP ports")
    if "store" in origins and settings.store not in ("memory", "none"):
        raise SettingsError(f"{origins['store']} and {origin}: instances require the store `memory` or `none`")


def is_loopback(host: str) -> bool:
    """Whether the address is reachable from this machine only. A name other than localhost may resolve to anything."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
