"""Parses the arguments of a `vllm serve` command line, by vLLM's rules.

`_` and `-` are equivalent; a field of a JSON value follows a dot
(`--kv-transfer-config.kv_role kv_both`); the file of `--config` stands before the other
arguments, which take precedence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import msgspec
from msgspec import Struct

from .vllm_serve_flags import ServeFlag, find_serve_flag

_BOOLEANS = {"true": True, "false": False}
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_SIZES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY_SIZES = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class GivenFlag(Struct, frozen=True):
    """A flag of a command line.

    written: its name as it is written, with dashes.
    values: its values; a switch has none.
    is_on: False for a switch that is turned off.
    """

    flag: ServeFlag
    written: str
    values: tuple[str, ...] = ()
    is_on: bool = True


class ServeCommandLine(Struct, frozen=True):
    """A parsed command line.

    model: the model's name; None if there is none.
    flags: vLLM's flags, in order; those of a configuration file come first.
    others: arguments that are not vLLM's.
    is_model_first: whether the model stands where `vllm serve` has it, at the beginning,
        or after the words `vllm serve`. Elsewhere it may be a value that a flag does not
        take.
    """

    model: str | None
    flags: tuple[GivenFlag, ...]
    others: tuple[str, ...]
    is_model_first: bool


def parse_serve_arguments(
    arguments: Sequence[str], own_flags: Mapping[str, bool]
) -> ServeCommandLine:
    """Parse the arguments after `vllm serve`.

    own_flags: flags that vLLM does not have, with whether each takes a value.

    Raises:
        ValueError: a value is missing, or the configuration file is invalid.
    """
    return _Parser(arguments, own_flags).parse()


class _Parser:
    def __init__(self, arguments: Sequence[str], own_flags: Mapping[str, bool]) -> None:
        self._words = list(arguments)
        self._is_model_first = bool(arguments) and not arguments[0].startswith("-")
        self._own_flags = own_flags
        self._flags: list[GivenFlag] = []
        self._others: list[str] = []
        self._positionals: list[str] = []
        self._objects: dict[str, tuple[GivenFlag, dict[str, object]]] = {}

    def parse(self) -> ServeCommandLine:
        while self._words:
            word = self._words.pop(0)
            if word.startswith("-") and len(word) > 1:
                self._parse_flag(word)
            else:
                self._positionals.append(word)
        for given, fields in self._objects.values():
            encoded = msgspec.json.encode(fields).decode()
            self._flags.append(msgspec.structs.replace(given, values=(encoded,)))
        # `vllm serve` itself may be part of the arguments that a chart passes on.
        if self._positionals[:2] == ["vllm", "serve"]:
            del self._positionals[:2]
            self._is_model_first = True
        model, others = self._positionals[:1], self._positionals[1:]
        return ServeCommandLine(
            model[0] if model else None,
            tuple(self._flags),
            (*self._others, *others),
            self._is_model_first,
        )

    def _parse_flag(self, word: str) -> None:
        word = _expand_optimization_level(word)
        name, separator, attached = word.partition("=")
        name, dot, path = name.partition(".")
        if name.startswith("--"):
            name = name.replace("_", "-")
        flag = find_serve_flag(name)
        if name in self._own_flags and (flag is None or name not in flag.names):
            self._others.append(word)
            if self._own_flags[name] and not separator and self._words:
                self._others.append(self._words.pop(0))
        elif flag is None:
            self._others.append(word)
        elif dot:
            self._parse_field(GivenFlag(flag, name), path, attached if separator else None)
        elif flag.name == "config":
            self._read_file(self._take_values(flag, name, attached if separator else None)[0])
        else:
            values = self._take_values(flag, name, attached if separator else None)
            is_on = not flag.is_negated_by(name)
            if flag.arity == "0" and values:
                # Earlier versions of vLLM took `--enable-chunked-prefill False`.
                is_on = is_on == _BOOLEANS[values[0].lower()]
                values = ()
            self._flags.append(GivenFlag(flag, name, values, is_on))

    def _take_values(self, flag: ServeFlag, name: str, attached: str | None) -> tuple[str, ...]:
        if flag.arity == "0":
            if attached is None and self._words and self._words[0].lower() in _BOOLEANS:
                attached = self._words.pop(0)
            if attached is not None and attached.lower() not in _BOOLEANS:
                raise ValueError(f"{name} of vLLM takes no value, not {attached!r}")
            return () if attached is None else (attached,)
        if attached is not None:
            return (attached,)
        most = {"1": 1, "?": 1}.get(flag.arity)
        values: list[str] = []
        while self._words and (most is None or len(values) < most):
            word = self._words[0]
            if word.startswith("-") and not _NUMBER.fullmatch(word):
                break
            values.append(self._words.pop(0))
        if not values and flag.arity != "?":
            raise ValueError(f"{name} of vLLM needs a value")
        return tuple(values)

    def _parse_field(self, given: GivenFlag, path: str, text: str | None) -> None:
        """Add a field of a JSON value: `--flag.path.to.field VALUE`, or `...+ A,B`."""
        if text is None:
            if not self._words:
                raise ValueError(f"{given.written}.{path} of vLLM needs a value")
            text = self._words.pop(0)
        is_list = path.endswith("+")
        value = text.split(",") if is_list else _read_scalar(text)
        _, fields = self._objects.setdefault(given.flag.name, (given, {}))
        *parents, last = path.removesuffix("+").split(".")
        for parent in parents:
            inner = fields.setdefault(parent, {})
            if not isinstance(inner, dict):
                raise ValueError(f"{given.written}.{path} of vLLM: {parent} has a value already")
            fields = cast("dict[str, object]", inner)
        former = fields.get(last)
        fields[last] = (
            [*cast("list[object]", former), *cast("list[object]", value)]
            if is_list and isinstance(former, list)
            else value
        )

    def _read_file(self, path: str) -> None:
        if not is_vllm_file(path):
            self._others += "--config", path
            return
        nested = _Parser(_list_file_arguments(path), self._own_flags).parse()
        self._flags[:0] = nested.flags
        self._others[:0] = nested.others
        if nested.model is not None and not self._positionals:
            self._positionals.append(nested.model)
            self._is_model_first = nested.is_model_first


def _expand_optimization_level(word: str) -> str:
    """Write vLLM's `-O3` and `-O=3` as an option with its value."""
    match = re.fullmatch(r"-O=?([0-9a-z]+)", word)
    if match is not None:
        return f"--optimization-level={match[1]}"
    # Of earlier versions: a field, or the JSON object itself.
    if word.startswith(("-O.", "-O{")):
        return f"--compilation-config{'=' * (word[2] == '{')}{word[2:]}"
    return word


def _read_scalar(text: str) -> object:
    """Read JSON, a number with a suffix such as 80g, or text."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        size = read_size(text)
        return text if size is None else size


def read_size(text: str) -> int | None:
    """Read a number as vLLM does, which may have a suffix: 1k is 1,000, 1K is 1,024, 25.6k
    is 25,600. Returns None for anything else.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)([kmgtKMGT]?)\s*", text)
    if match is None:
        return None
    number, suffix = match.groups()
    if suffix in _SIZES:
        return int(float(number) * _SIZES[suffix])
    return int(number) * _BINARY_SIZES.get(suffix, 1) if number.isdigit() else None


def is_vllm_file(path: str) -> bool:
    """Whether a configuration file is vLLM's: all of its keys are flags of vLLM, and its
    model is not this engine. Any other is Dragoman's.
    """
    if not path.endswith((".yaml", ".yml")):
        return False
    entries = _load_file(path)
    return str(entries.get("model")).partition(":")[0] != "sim" and all(
        key == "model" or _is_flag(f"--{key.replace('_', '-')}") for key in entries
    )


def _is_flag(name: str) -> bool:
    flag = find_serve_flag(name)
    return flag is not None and name in flag.names


def _load_file(path: str) -> dict[str, object]:
    from dragoman.core.strict_yaml import load_yaml  # noqa: PLC0415 - few lines have a file

    try:
        entries = load_yaml(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"--config {path}: {error}") from None
    if not isinstance(entries, dict):
        raise ValueError(f"--config {path}: the file must be a mapping of `name: value` lines")
    return {str(key): value for key, value in cast("dict[object, object]", entries).items()}


def _list_file_arguments(path: str) -> list[str]:
    """Write the entries of vLLM's configuration file as arguments."""
    arguments: list[str] = []
    for key, value in _load_file(path).items():
        flag = f"--{key}"
        if key == "model":
            arguments.insert(0, str(value))
        elif isinstance(value, bool):
            # As in vLLM, a switch without an inverse is not turned off.
            negated = f"--no-{key}"
            arguments += [flag] if value else [negated] if _is_flag(negated) else []
        elif isinstance(value, list):
            items = cast("list[object]", value)
            arguments += [flag, *map(str, items)] if items else []
        elif isinstance(value, dict):
            arguments += flag, msgspec.json.encode(value).decode()
        else:
            arguments += flag, str(value)
    return arguments
