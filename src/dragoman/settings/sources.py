"""Sources of settings: the command line, the environment and a file, in this order of precedence.

Every error names the source; `values` defines the allowed values.
"""

from __future__ import annotations

import ipaddress
import logging
import math
import os
import re
import secrets
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Struct

from .definition import Settings
from .fields import FIELDS, FIELDS_BY_NAME, FORMER_NAMES, MODEL_GROUPS, PREFIX, SettingField, flag_of, variable_of
from .sections import (
    GenerationConfig,
    Instance,
    Instances,
    ModelEntries,
    ModelEntry,
    RaySettings,
    Secret,
    SettingsError,
    read_ray_settings,
)

# Parses a setting's value from the text of an option or variable, or from a file.

ReadSetting = Callable[[SettingField, object], Any]

_EXCLUDED = frozenset({"served_model_name", "config"})
_MODEL_SETTINGS = tuple(
    name for name, field in FIELDS_BY_NAME.items() if field.option.group in MODEL_GROUPS and name not in _EXCLUDED
)
_LIST_FIELD, _BOOL_FIELD = FIELDS_BY_NAME["served_model_name"], FIELDS_BY_NAME["strict"]
_SECONDS_FIELD, _BYTES_FIELD = FIELDS_BY_NAME["keepalive_interval"], FIELDS_BY_NAME["model_memory_limit"]
_ENTRY_FIELDS = {
    "aliases": _LIST_FIELD,
    "pinned": _BOOL_FIELD,
    "memory": _BYTES_FIELD,
    "ttl": msgspec.structs.replace(
        _SECONDS_FIELD, option=msgspec.structs.replace(_SECONDS_FIELD.option, minimum=0, maximum=None)
    ),
}
"""Fields of an entry that are no settings; each is parsed like the setting of the same type."""
_MAX_INSTANCES = 1024
_INSTANCE_SETTINGS = tuple(name for name in (*_MODEL_SETTINGS, "served_model_name", "port") if name != "instances")
_COUNT_FIELD = msgspec.structs.replace(
    FIELDS_BY_NAME["port"],
    option=msgspec.structs.replace(FIELDS_BY_NAME["port"].option, minimum=1, maximum=_MAX_INSTANCES),
)


def read_entries(raw: object, read_setting: ReadSetting) -> ModelEntries:
    """Parse `models`.

    raw: JSON text, or the value in a file.
    read_setting: parses one setting.

    Raises:
        ValueError: the message names the entry and the error.
    """
    if isinstance(raw, str):
        try:
            raw = msgspec.json.decode(raw)
        except msgspec.MsgspecError as error:
            raise ValueError(f"must be JSON: {error}") from None
    if not isinstance(raw, dict) or not raw:
        raise ValueError("must map model names to settings")
    # YAML reads a name such as 4 as a number.
    entries = tuple(
        _read_entry(str(name), value, read_setting) for name, value in cast("Mapping[object, object]", raw).items()
    )
    _check_names(entries)
    return ModelEntries(entries)


def _read_entry(name: str, raw: object, read_setting: ReadSetting) -> ModelEntry:
    """Parse one entry; a string is the model to serve."""
    fields = {"model": raw} if isinstance(raw, str) else raw
    if not isinstance(fields, dict):
        raise ValueError(f"{name}: must be a MODEL, or an object of settings")
    entry_fields: dict[str, Any] = {}
    settings: list[tuple[str, Any]] = []
    for key, value in cast("Mapping[object, object]", fields).items():
        setting = _current_name(name, str(key))
        try:
            if setting in _ENTRY_FIELDS:
                entry_fields[setting] = read_setting(_ENTRY_FIELDS[setting], value)
            elif setting in _MODEL_SETTINGS:
                settings.append((setting, read_setting(FIELDS_BY_NAME[setting], value)))
            else:
                raise ValueError(_describe_unknown(setting, "a model", (*_ENTRY_FIELDS, *_MODEL_SETTINGS)))
        except ValueError as error:
            raise ValueError(f"{name}: {key}: {error}") from None
    if "model" not in dict(settings):
        raise ValueError(f"{name}: `model` is missing")
    if entry_fields.get("pinned") and "ttl" in entry_fields:
        raise ValueError(f"{name}: a pinned model cannot have a ttl")
    return ModelEntry(name, tuple(settings), **entry_fields)


def read_instances(raw: object, read_setting: ReadSetting) -> Instances:
    """Parse `instances`.

    raw: a number or a list, as JSON text or as the value in a file.
    read_setting: parses one setting.

    Raises:
        ValueError: the value is invalid.
    """
    if isinstance(raw, str):
        try:
            raw = msgspec.json.decode(raw)
        except msgspec.MsgspecError as error:
            raise ValueError(f"must be a number, or a list in JSON: {error}") from None
    items = [{"count": raw}] if isinstance(raw, int) else raw
    if not isinstance(items, list) or not items:
        raise ValueError("must be a number, or a list of objects of settings")
    groups = [_read_instances(item, number, read_setting) for number, item in enumerate(cast("list[object]", items), 1)]
    instances = tuple(instance for group in groups for instance in group)
    if len(instances) > _MAX_INSTANCES:
        raise ValueError(f"the maximum is {_MAX_INSTANCES} instances, not {len(instances)}")
    return Instances(instances)


def _read_instances(raw: object, number: int, read_setting: ReadSetting) -> list[Instance]:
    """Parse one entry of the list into `count` equal instances."""
    if not isinstance(raw, dict):
        raise ValueError(f"{number}: must be an object of settings")
    count, settings = 1, list[tuple[str, Any]]()
    for key, value in cast("Mapping[object, object]", raw).items():
        setting = _current_name(str(number), str(key))
        try:
            if setting == "count":
                count = read_setting(_COUNT_FIELD, value)
            elif setting in _INSTANCE_SETTINGS:
                settings.append((setting, read_setting(FIELDS_BY_NAME[setting], value)))
            else:
                raise ValueError(_describe_unknown(setting, "an instance", ("count", *_INSTANCE_SETTINGS)))
        except ValueError as error:
            raise ValueError(f"{number}: {key}: {error}") from None
    if count > 1 and "port" in dict(settings):
        raise ValueError(f"{number}: {count} instances cannot share a port")
    return [Instance(tuple(settings))] * count


def _current_name(where: str, key: str) -> str:
    name = key.replace("-", "_")
    if name not in FORMER_NAMES:
        return name
    log.warning("%s: %s is deprecated; use %s", where, name, FORMER_NAMES[name])
    return FORMER_NAMES[name]


def _describe_unknown(name: str, kind: str, known: Sequence[str]) -> str:
    if name in FIELDS_BY_NAME:
        return "this setting applies to the whole server"
    close_matches = get_close_matches(name, known, n=1)
    return f"unknown setting of {kind}." + (f" Did you mean {close_matches[0]}?" if close_matches else "")


def _check_names(entries: tuple[ModelEntry, ...]) -> None:
    names: set[str] = set()
    for entry in entries:
        # The name of an entry is what `/v1/models` lists, and a pattern could not be requested.
        if "*" in entry.name or "?" in entry.name:
            raise ValueError(f"{entry.name}: only aliases may be patterns")
        for name in (entry.name, *entry.aliases):
            if name in names:
                raise ValueError(f"{entry.name}: two models have the name {name}")
            names.add(name)


def read_value(field: SettingField, raw: object) -> object:
    """Parse a value of the field's type, from text or from a file's value. ValueError names the allowed values."""
    if field.is_list:
        return _read_list(field, raw)
    if field.choices:
        if raw not in field.choices:
            raise ValueError(f"must be one of {', '.join(field.choices)}, not {_shorten_repr(raw)}")
        return raw
    if field.kind is int:
        return _check_bounds(field, _read_int(raw, allows_size_suffix=field.option.allows_size_suffix))
    if field.kind is float:
        return _check_bounds(field, _read_float(raw))
    if field.kind in (ModelEntries, Instances):
        return read_entries(raw, read_value) if field.kind is ModelEntries else read_instances(raw, read_value)
    readers = {
        bool: _read_bool,
        GenerationConfig: _read_generation_config,
        RaySettings: read_ray_settings,
        Secret: _read_secret,
    }
    return readers.get(field.kind, _read_text)(raw)


def _read_list(field: SettingField, raw: object) -> tuple[str, ...]:
    """A list, or a comma-separated text."""
    items = [item.strip() for item in raw.split(",")] if isinstance(raw, str) else raw
    if not isinstance(items, list | tuple):
        raise ValueError("must be a list of strings")
    if not field.is_secret:
        return tuple(_read_text(item) for item in cast("Sequence[object]", items))
    return tuple(_read_secret(item) for item in cast("Sequence[object]", items))


def _read_secret(raw: object) -> Secret:
    """The secret's text; errors never show it."""
    # Keys arrive in headers, which carry no other characters reliably.
    if not isinstance(raw, str) or not raw or not all("!" <= character <= "~" for character in raw):
        raise ValueError("a key must be printable ASCII without spaces")
    return Secret(raw)


def _read_text(raw: object) -> str:
    if not isinstance(raw, str) or not raw.strip():
        raise ValueError(f"must be text, not {_shorten_repr(raw)}")
    return raw


_BOOL_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def _read_bool(raw: object) -> bool:
    value = _BOOL_WORDS.get(raw.strip().lower()) if isinstance(raw, str) else raw
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, not {_shorten_repr(raw)}")
    return value


Number = TypeVar("Number", int, float)
# As in vLLM's arguments: lower case is decimal, upper case binary.
_SIZES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def _read_int(raw: object, *, allows_size_suffix: bool) -> int:
    # True is an int in Python, and `true` in a file is a mistake here.
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    match = re.fullmatch(r"\s*(-?[0-9]{1,18})([kmgKMG]?)\s*", raw) if isinstance(raw, str) else None
    if match is None or (match[2] and not allows_size_suffix):
        suffix_hint = ", which may end in k, m, g (thousands) or K, M, G (1024s)" if allows_size_suffix else ""
        raise ValueError(f"must be a whole number{suffix_hint}, not {_shorten_repr(raw)}")
    return int(match[1]) * _SIZES.get(match[2], 1)


def _read_float(raw: object) -> float:
    # NaN stands for all that is no number, and is rejected below together with infinity.
    try:
        value = float(raw) if isinstance(raw, str | int | float) and not isinstance(raw, bool) else math.nan
    except (ValueError, OverflowError):
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"must be a number, not {_shorten_repr(raw)}")
    return value


def _check_bounds(field: SettingField, value: Number) -> Number:
    minimum, maximum = field.option.minimum, field.option.maximum
    if (minimum is not None and value < minimum) or (maximum is not None and value > maximum):
        allowed = f"at least {minimum:g}" if maximum is None else f"from {minimum or 0:g} to {maximum:g}"
        raise ValueError(f"must be {allowed}, not {value}")
    return value


def _read_generation_config(raw: object) -> GenerationConfig:
    try:
        if isinstance(raw, str):
            return msgspec.json.decode(raw, type=GenerationConfig)
        return msgspec.convert(raw, GenerationConfig)
    except msgspec.MsgspecError as error:
        # msgspec appends the path of the wrong field; here it comes first, as in other errors.
        problem, _, path = str(error).partition(" - at `$.")
        location = f"{path.rstrip('`')}: " if path else ""
        field_names = ", ".join(GenerationConfig.__struct_fields__)
        raise ValueError(f"{location}{problem}. It is a JSON object of {field_names}") from None


def _shorten_repr(raw: object) -> str:
    text = repr(raw)
    return text if len(text) <= 60 else text[:57] + "..."


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


# The state that a server persists besides its store: the state directory, and the secret key in it.

KEY_BYTES = 32


def state_directory(environment: Mapping[str, str], platform: str = sys.platform) -> Path:
    """The platform's directory for persistent state; it need not exist."""
    if platform == "win32":
        return Path(environment.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "dragoman"
    if platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "dragoman"
    return Path(environment.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "dragoman"


def load_or_create_key(file: Path) -> bytes:
    """Load the key from this file; create it, readable by its owner only, where it is missing. Safe across processes.

    Raises OSError, and ValueError for a file that holds no key.
    """
    if not file.exists():
        _create_key_file(file)
    text = file.read_text(encoding="ascii").strip()
    if len(text) != 2 * KEY_BYTES:
        raise ValueError(f"{file} does not hold a key of {KEY_BYTES} bytes in hexadecimal")
    return bytes.fromhex(text)


def _create_key_file(file: Path) -> None:
    """Create the file atomically: write a temporary file and link it, unless another process was faster."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "w", encoding="ascii") as stream:
            stream.write(secrets.token_hex(KEY_BYTES) + "\n")
            stream.flush()
            # On disk before it is linked: after a power failure an empty file would be no key.
            os.fsync(descriptor)
        # Another process was faster; its key is used.
        with suppress(FileExistsError):
            file.hardlink_to(draft)
    finally:
        draft.unlink()
