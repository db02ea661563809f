"""Loads settings from the command line, the environment and a file, in this order of
precedence.

Every error names the source of the setting. The module also stores the server's secret
key in the state directory.
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
from typing import Any, cast

import msgspec
from msgspec import Struct

from .definition import Settings
from .fields import (
    ENV_PREFIX,
    FIELDS,
    FIELDS_BY_NAME,
    FORMER_NAMES,
    MODEL_GROUPS,
    NEGATED_NAMES,
    PRESENT_NAMES,
    SettingField,
    format_flag,
    format_variable,
)
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

log = logging.getLogger(__name__)

_ACCEPTED_NAMES = frozenset({*FIELDS_BY_NAME, *PRESENT_NAMES})
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
    service_links = _find_service_links(environment)
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
            _Source("", _rename(set_options, "", format_flag), format_flag),
            _Source("environment ", _rename(variables, "", format_variable), format_variable),
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
    return _merge([_Source("", _rename(set_keywords, "", str), str)])


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
    values: dict[str, object] = {}
    origins: dict[str, str] = {}
    for field in FIELDS:
        source = next((source for source in sources if field.name in source.raw), None)
        if source is not None and source.raw[field.name] is not None:
            values[field.name] = source.read_value(field)
            origins[field.name] = source.locate(field.name)
    settings = Settings(**values)  # pyright: ignore[reportArgumentType] - each value was read by its field's type
    _check_combinations(settings, origins)
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
        pairs = list(tomllib.loads(text).items()) if suffix == ".toml" else _parse_yaml(text)
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
    return _Source(f"{path}: ", _rename(values, f"{path}: ", str), str)


def _parse_yaml(text: str) -> list[tuple[str, object]]:
    """Parse into pairs. Raises ValueError."""
    from ..core.strict_yaml import load_yaml  # noqa: PLC0415 - most servers start without a file

    root = load_yaml(text)
    if root is None:
        return []
    if not isinstance(root, dict):
        raise ValueError("the file must be a mapping of `name: value` lines")
    return [(str(key), value) for key, value in cast("dict[object, object]", root).items()]


_SERVICE_LINK = (
    r"_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)
"""Suffixes of the variables of a service: X_SERVICE_HOST, X_SERVICE_PORT_HTTP, X_PORT,
X_PORT_80_TCP_ADDR, ...
"""


def _find_service_links(environment: Mapping[str, str]) -> set[str]:
    """Find the variables that Kubernetes sets in every pod for services whose names
    begin with `dragoman`.

    https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables
    """
    links: set[str] = set()
    for name in environment:
        service = name.removesuffix("_SERVICE_HOST")
        # Every service has both variables; a misspelled setting does not.
        if service != name and f"{service}_SERVICE_PORT" in environment:
            matches = re.compile(re.escape(service) + _SERVICE_LINK).fullmatch
            links |= {variable for variable in environment if matches(variable)}
            # DRAGOMAN_PORT is also a setting; a service's value is a URL such as
            # tcp://10.0.0.1:8000.
            if "://" not in environment.get(f"{service}_PORT", ""):
                links.discard(f"{service}_PORT")
    return links


def _rename(
    raw: Mapping[str, object], place: str, format_name: Callable[[str], str]
) -> dict[str, object]:
    """Rename former names of settings in one source, with a warning, and replace
    inverses of switches by the switches.

    place, format_name: as in `_Source`.

    Raises:
        SettingsError: a setting has two of its names, or the value of an inverse is
            invalid.
    """
    renamed: dict[str, object] = {}
    written_names: dict[str, str] = {}
    for name, value in raw.items():
        written = f"{place}{format_name(name)}"
        current = PRESENT_NAMES.get(name, name)
        if current in renamed:
            if name in FORMER_NAMES or written_names[current] in FORMER_NAMES:
                former = name if name in FORMER_NAMES else written_names[current]
                raise SettingsError(
                    f"{place}{format_name(former)} is the former name of {format_name(current)}; "
                    f"set only one of them"
                )
            names = sorted(f"{place}{format_name(each)}" for each in (name, written_names[current]))
            raise SettingsError(
                f"{' and '.join(names)}: one is the inverse of the other; set only one of them"
            )
        if name in FORMER_NAMES:
            log.warning("%s is deprecated; use %s", written, format_name(current))
        written_names[current] = name
        try:
            renamed[current] = not _read_bool(value) if name in NEGATED_NAMES else value
        except ValueError as error:
            raise SettingsError(f"{written}: {error}") from None
    return renamed


def suggest_name(name: str, format_name: Callable[[str], str] = str) -> str:
    """Return a suggestion for an unknown setting; empty if no name is close.

    format_name: formats a setting's name as it is written in its source.
    """
    name = name.lower().replace("-", "_")
    if name in FORMER_NAMES:
        return f" It is called {format_name(FORMER_NAMES[name])} now."
    for field in FIELDS:
        # Before the check for misspellings: a name of vLLM's may be close to another
        # setting here.
        if field.option.vllm_name == name:
            return f" What vLLM calls {name} is {format_name(field.option_name)} here."
    # No suggestion may turn off authentication, unless the name was about that.
    candidates = {*FIELDS_BY_NAME, *NEGATED_NAMES} - ({"no_auth"} if "auth" not in name else set())
    close_matches = get_close_matches(name, sorted(candidates), n=1)
    return f" Did you mean {format_name(close_matches[0])}?" if close_matches else ""


# Combinations of settings.


def _check_combinations(settings: Settings, origins: Mapping[str, str]) -> None:
    """Raise SettingsError for settings that exclude each other.

    origins: source and name of each setting that is set.
    """
    for name in ("model", "served_model_name"):
        if settings.models.entries and name in origins:
            raise SettingsError(
                f"{origins[name]} and {origins['models']}: set either one model or several"
            )
    if settings.instances.items:
        # Each instance has its own TCP port, and its state is lost with the process.
        origin = origins["instances"]
        overrides = (pair for instance in settings.instances.items for pair in instance.overrides)
        models = [settings.model, *(value for name, value in overrides if name == "model")]
        if settings.models.entries or any(model.partition(":")[0] != "sim" for model in models):
            raise SettingsError(f"{origin}: only `sim` can run several instances")
        if settings.uds is not None:
            raise SettingsError(f"{origins['uds']} and {origin}: instances need TCP ports")
        if "store" in origins and settings.store not in ("memory", "none"):
            raise SettingsError(
                f"{origins['store']} and {origin}: instances require the store `memory` or `none`"
            )
    for name in ("host", "port"):
        if settings.uds is not None and name in origins:
            raise SettingsError(
                f"{origins['uds']} and {origins[name]}: set either a Unix socket or a TCP address"
            )
    if not re.fullmatch("0?[0-7]{3}", settings.uds_mode):
        raise SettingsError(
            f"{origins['uds_mode']}: {settings.uds_mode!r} is not a mode such as 600 or 660"
        )
    if (settings.ssl_certfile is None) != (settings.ssl_keyfile is None):
        origin = origins["ssl_certfile" if settings.ssl_keyfile is None else "ssl_keyfile"]
        raise SettingsError(f"{origin}: TLS needs both --ssl-certfile and --ssl-keyfile")
    # A Unix socket is protected by the mode of its file.
    if settings.uds is None:
        check_exposure(settings, origins.get("host", ""))


def check_exposure(settings: Settings, origin: str) -> None:
    """Raise SettingsError if other machines could use the server without a key.

    origin: source and name of the setting `host`.
    """
    has_keys = bool(settings.api_key) or settings.keys_file is not None
    if not is_loopback(settings.host) and not has_keys and not settings.no_auth:
        raise SettingsError(
            f"{origin}: {settings.host} is reachable from other machines, and no API key is set. "
            "Set one with --api-key (or DRAGOMAN_API_KEY) or --keys-file, or use --no-auth to "
            "allow unauthenticated "
            "access."
        )


def is_loopback(host: str) -> bool:
    """Whether the address is reachable from this machine only. A name other than
    localhost may resolve to anything.
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# Parsing one value, from the text of an option or variable, or from a file.


def read_value(field: SettingField, raw: object) -> object:
    """Parse a value of the field's type, from text or from the value in a file.

    Raises:
        ValueError: the value is invalid; the message names the allowed values.
    """
    read_text = _read_secret if field.option.is_secret else _read_text
    if field.is_list:
        # A file may have a list; options and variables are comma-separated.
        items = [item.strip() for item in raw.split(",")] if isinstance(raw, str) else raw
        if not isinstance(items, list | tuple):
            raise ValueError("must be a list of strings")
        return tuple(read_text(item) for item in cast("Sequence[object]", items))
    if field.choices:
        if raw not in field.choices:
            raise ValueError(f"must be one of {', '.join(field.choices)}, not {_shorten_repr(raw)}")
        return raw
    if field.kind in (int, float):
        return _read_number(field, raw)
    readers: dict[Any, Callable[[object], object]] = {
        bool: _read_bool,
        GenerationConfig: _read_generation_config,
        RaySettings: read_ray_settings,
        ModelEntries: read_entries,
        Instances: read_instances,
    }
    return readers.get(field.kind, read_text)(raw)


def _read_secret(raw: object) -> Secret:
    """Parse a secret. Errors never show it."""
    # Keys are sent in headers, which carry no other characters reliably.
    if not isinstance(raw, str) or not raw or not all("!" <= character <= "~" for character in raw):
        raise ValueError("a key must be printable ASCII without spaces")
    return Secret(raw)


def _read_text(raw: object) -> str:
    if not isinstance(raw, str) or not raw.strip():
        raise ValueError(f"must be text, not {_shorten_repr(raw)}")
    return raw


_BOOL_WORDS = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}


def _read_bool(raw: object) -> bool:
    value = _BOOL_WORDS.get(raw.strip().lower()) if isinstance(raw, str) else raw
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, not {_shorten_repr(raw)}")
    return value


# As in vLLM's arguments: lower case is decimal, upper case binary.
_SIZES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def _read_number(field: SettingField, raw: object) -> float:
    """Parse a number: an int if the field is one."""
    value: float | None = None
    # True is an int in Python, and `true` in a file is a mistake here.
    if isinstance(raw, str | int | float) and not isinstance(raw, bool):
        if field.kind is float:
            with suppress(ValueError, OverflowError):
                value = float(raw)
        elif isinstance(raw, int):
            value = raw
        elif isinstance(raw, str) and (
            match := re.fullmatch(r"\s*(-?[0-9]{1,18})([kmgKMG]?)\s*", raw)
        ):
            value = (
                int(match[1]) * _SIZES[match[2]]
                if field.option.allows_size_suffix or not match[2]
                else None
            )
    if value is None or not math.isfinite(value):
        kind = "a number" if field.kind is float else "a whole number"
        suffix_hint = ", which may end in k, m, g (thousands) or K, M, G (1024s)"
        suffix_hint = suffix_hint if field.option.allows_size_suffix else ""
        raise ValueError(f"must be {kind}{suffix_hint}, not {_shorten_repr(raw)}")
    minimum = field.option.minimum
    maximum = field.option.maximum
    if (minimum is not None and value < minimum) or (maximum is not None and value > maximum):
        allowed = (
            f"at least {minimum:g}" if maximum is None else f"from {minimum or 0:g} to {maximum:g}"
        )
        raise ValueError(f"must be {allowed}, not {value}")
    return value


def _read_generation_config(raw: object) -> GenerationConfig:
    try:
        if isinstance(raw, str):
            return msgspec.json.decode(raw, type=GenerationConfig)
        return msgspec.convert(raw, GenerationConfig)
    except msgspec.MsgspecError as error:
        # msgspec appends the path of the wrong field; here it comes first, as in other
        # errors.
        problem, _, path = str(error).partition(" - at `$.")
        location = f"{path.rstrip('`')}: " if path else ""
        field_names = ", ".join(GenerationConfig.__struct_fields__)
        raise ValueError(f"{location}{problem}. It is a JSON object of {field_names}") from None


def _shorten_repr(raw: object) -> str:
    text = repr(raw)
    return text if len(text) <= 60 else text[:57] + "..."


# Parsing the sections `models` and `instances`, whose entries have their own settings.

_EXCLUDED = frozenset({"served_model_name", "config"})
_MODEL_SETTINGS = tuple(
    name
    for name, field in FIELDS_BY_NAME.items()
    if field.option.group in MODEL_GROUPS and name not in _EXCLUDED
)
_SECONDS_FIELD = FIELDS_BY_NAME["keepalive_interval"]
_ENTRY_FIELDS = {
    "aliases": FIELDS_BY_NAME["served_model_name"],
    "pinned": FIELDS_BY_NAME["strict"],
    "memory": FIELDS_BY_NAME["model_memory_limit"],
    "ttl": msgspec.structs.replace(
        _SECONDS_FIELD,
        option=msgspec.structs.replace(_SECONDS_FIELD.option, minimum=0, maximum=None),
    ),
}
"""Fields of an entry that are not settings; each is parsed like the setting of the same
type.
"""
_MAX_INSTANCES = 1024
_INSTANCE_SETTINGS = tuple(
    name for name in (*_MODEL_SETTINGS, "served_model_name", "port") if name != "instances"
)
_INSTANCE_FIELDS = {
    "count": msgspec.structs.replace(
        FIELDS_BY_NAME["port"],
        option=msgspec.structs.replace(
            FIELDS_BY_NAME["port"].option, minimum=1, maximum=_MAX_INSTANCES
        ),
    )
}


def read_entries(raw: object) -> ModelEntries:
    """Parse `models`.

    raw: JSON text, or the value in a file; an entry that is a string is the model to
        serve.

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
    entries: list[ModelEntry] = []
    names: set[str] = set()
    for key, value in cast("Mapping[object, object]", raw).items():
        # YAML reads a name such as 4 as a number.
        name = str(key)
        fields = {"model": value} if isinstance(value, str) else value
        if not isinstance(fields, dict):
            raise ValueError(f"{name}: must be a MODEL, or an object of settings")
        own_fields, overrides = _read_fields(
            name, cast("Mapping[object, object]", fields), "a model", _ENTRY_FIELDS, _MODEL_SETTINGS
        )
        if "model" not in overrides:
            raise ValueError(f"{name}: `model` is missing")
        if own_fields.get("pinned") and "ttl" in own_fields:
            raise ValueError(f"{name}: a pinned model cannot have a ttl")
        entry = ModelEntry(name, tuple(overrides.items()), **own_fields)
        # The name of an entry is what `/v1/models` lists, and a pattern could not be
        # requested.
        if "*" in name or "?" in name:
            raise ValueError(f"{name}: only aliases may be patterns")
        for served_name in (name, *entry.aliases):
            if served_name in names:
                raise ValueError(f"{name}: two models have the name {served_name}")
            names.add(served_name)
        entries.append(entry)
    return ModelEntries(tuple(entries))


def read_instances(raw: object) -> Instances:
    """Parse `instances`.

    raw: a number or a list, as JSON text or as the value in a file. An entry of the
        list is `count` equal instances.

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
    instances: list[Instance] = []
    for number, item in enumerate(cast("list[object]", items), 1):
        if not isinstance(item, dict):
            raise ValueError(f"{number}: must be an object of settings")
        own_fields, overrides = _read_fields(
            str(number),
            cast("Mapping[object, object]", item),
            "an instance",
            _INSTANCE_FIELDS,
            _INSTANCE_SETTINGS,
        )
        count = own_fields.get("count", 1)
        if count > 1 and "port" in overrides:
            raise ValueError(f"{number}: {count} instances cannot share a port")
        instances += [Instance(tuple(overrides.items()))] * count
    if len(instances) > _MAX_INSTANCES:
        raise ValueError(f"the maximum is {_MAX_INSTANCES} instances, not {len(instances)}")
    return Instances(tuple(instances))


def _read_fields(
    entry: str,
    raw: Mapping[object, object],
    kind: str,
    own_fields: Mapping[str, SettingField],
    settings: Sequence[str],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parse an entry of a section into its own fields and its settings.

    entry: name or number of the entry, for errors.
    kind: kind of the entry, for errors.
    own_fields: fields that are not settings, by name.
    settings: names of the settings that the entry may have.

    Raises:
        ValueError: a field is unknown or invalid.
    """
    own_values: dict[str, Any] = {}
    overrides: dict[str, Any] = {}
    for key, value in raw.items():
        written_name = str(key).replace("-", "_")
        name = PRESENT_NAMES.get(written_name, written_name)
        if written_name in FORMER_NAMES:
            log.warning("%s: %s is deprecated; use %s", entry, written_name, name)
        try:
            if name in own_fields:
                own_values[name] = read_value(own_fields[name], value)
            elif name in settings and name in overrides:
                raise ValueError("set twice")
            elif name in settings:
                overrides[name] = (
                    not _read_bool(value)
                    if written_name in NEGATED_NAMES
                    else read_value(FIELDS_BY_NAME[name], value)
                )
            elif name in FIELDS_BY_NAME:
                raise ValueError("this setting applies to the whole server")
            else:
                close_matches = get_close_matches(name, (*own_fields, *settings), n=1)
                suggestion = f" Did you mean {close_matches[0]}?" if close_matches else ""
                raise ValueError(f"unknown setting of {kind}.{suggestion}")
        except ValueError as error:
            raise ValueError(f"{entry}: {key}: {error}") from None
    return own_values, overrides


# The secret key in the state directory.

KEY_BYTES = 32


def state_directory(environment: Mapping[str, str], platform: str = sys.platform) -> Path:
    """Return the platform's directory for persistent state. It may not exist yet."""
    if platform == "win32":
        return (
            Path(environment.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "dragoman"
        )
    if platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "dragoman"
    return Path(environment.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "dragoman"


def load_or_create_key(file: Path) -> bytes:
    """Load the key from a file, or create the file, readable by its owner only. Safe
    across processes.

    Raises:
        OSError: the file cannot be read or created.
        ValueError: the file does not contain a key.
    """
    if not file.exists():
        # Atomic: write a temporary file, then link it.
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = file.with_name(f".{file.name}.{secrets.token_hex(8)}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with open(descriptor, "w", encoding="ascii") as stream:
                stream.write(secrets.token_hex(KEY_BYTES) + "\n")
                stream.flush()
                # Sync before linking: a power failure must not leave an empty key file.
                os.fsync(descriptor)
            # If another process was faster, its key is used.
            with suppress(FileExistsError):
                file.hardlink_to(draft)
        finally:
            draft.unlink()
    text = file.read_text(encoding="ascii").strip()
    if len(text) != 2 * KEY_BYTES:
        raise ValueError(f"{file} does not hold a key of {KEY_BYTES} bytes in hexadecimal")
    return bytes.fromhex(text)
