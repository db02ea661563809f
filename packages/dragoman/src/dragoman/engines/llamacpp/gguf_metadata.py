"""A reader of the metadata of GGUF files, without tensors.

Format: magic, version, counts, then key, type and value of each entry
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). Every length is checked
before it is used.
"""

from __future__ import annotations

import mmap
import re
import struct
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar, overload

from msgspec import Struct

from ...core.errors import EngineError

Number = int | float | bool
T = TypeVar("T")

# Value types of GGUF, with the format of each in Python's `struct`.
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING = 8
_ARRAY = 9
_VERSIONS = (2, 3)
# A file of a split model, such as `name-00001-of-00003.gguf`.
_PART = re.compile(r"(.*)-(\d{5})-of-(?!0{5})(\d{5})\.gguf")
_LENGTH = struct.Struct("<Q")
"""The length of a string, in bytes, which precedes it."""


class Texts(Sequence[str]):
    """An array of strings, which are decoded when they are read, since most readers of
    a header need no vocabulary.
    """

    def __init__(self, data: bytes, starts: array[int]) -> None:
        """data: the strings as in the file. starts: the position of each one's length."""
        self._data = data
        self._starts = starts

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[str]:
        data = self._data
        ends = (*self._starts[1:], len(data))
        for start, end in zip(self._starts, ends, strict=True):
            yield data[start + _LENGTH.size : end].decode("utf-8", "surrogateescape")

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        start = self._starts[index] + _LENGTH.size
        (length,) = _LENGTH.unpack_from(self._data, start - _LENGTH.size)
        return self._data[start : start + length].decode("utf-8", "surrogateescape")


Value = Number | str | tuple[Number, ...] | Texts


class GgufMetadata(Struct, frozen=True):
    """The metadata of a GGUF model.

    path: the file; of a split model, the first one.
    values: metadata values by key.
    """

    path: Path
    values: Mapping[str, Value]

    def get_text(self, key: str) -> str | None:
        value = self.values.get(key)
        return value if isinstance(value, str) else None

    def get_number(self, key: str) -> int | None:
        value = self.values.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def get_flag(self, key: str) -> bool | None:
        value = self.values.get(key)
        return value if isinstance(value, bool) else None

    def get_texts(self, key: str) -> Sequence[str]:
        """Return an array of strings; a single string is an array of one."""
        value = self.values.get(key)
        if isinstance(value, Texts):
            return value
        return (value,) if isinstance(value, str) else ()

    def get_numbers(self, key: str) -> tuple[float, ...]:
        """Return an array of numbers; a single number is an array of one."""
        value = self.values.get(key, ())
        if isinstance(value, tuple):
            return value
        return () if isinstance(value, str | Texts) else (value,)

    def build_architecture_key(self, key: str) -> str:
        """Build an architecture-specific key, such as `llama.context_length`."""
        return f"{self.architecture}.{key}"

    @property
    def architecture(self) -> str:
        return self.get_text("general.architecture") or ""

    @property
    def vocab_size(self) -> int:
        return len(self.get_texts("tokenizer.ggml.tokens"))


def read_metadata(path: Path) -> GgufMetadata:
    """Read metadata. Raises EngineError for an invalid GGUF file, or a split model with
    missing files.
    """
    return _check_metadata(path, _open(path, lambda reader: reader.read()))


def read_metadata_and_size(path: Path) -> tuple[GgufMetadata, int]:
    """Read metadata, and the number of weights in the file, or in all files of a split
    model. Raises EngineError.
    """

    def read(reader: _Reader) -> tuple[dict[str, Value], int]:
        return reader.read(), reader.count_parameters()

    values, size = _open(path, read)
    metadata = _check_metadata(path, values)
    return metadata, size + sum(_open(part, read)[1] for part in find_parts(path)[1:])


def _open(path: Path, read: Callable[[_Reader], T]) -> T:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return read(_Reader(path, data))
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        raise EngineError(f"{path} cannot be read: {error}") from error


def _check_metadata(path: Path, values: dict[str, Value]) -> GgufMetadata:
    files = find_parts(path)
    if path != files[0]:
        raise EngineError(f"{path} is a later part of a model; the first is {files[0].name}")
    missing = [part.name for part in files if not part.is_file()]
    if missing:
        raise EngineError(f"{path} is missing its part {missing[0]}")
    metadata = GgufMetadata(path, MappingProxyType(values))
    if not metadata.architecture:
        raise EngineError(f"{path} does not name its architecture (general.architecture)")
    return metadata


def find_parts(path: Path) -> tuple[Path, ...]:
    """Find all files of a split model, given the first."""
    match = _PART.fullmatch(path.name)
    if match is None:
        return (path,)
    return tuple(
        path.with_name(f"{match[1]}-{n:05d}-of-{match[3]}.gguf")
        for n in range(1, int(match[3]) + 1)
    )


class _Reader:
    """A sequential reader of a GGUF file."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._position = 0
        self._n_tensors = 0

    def read(self) -> dict[str, Value]:
        if self._data[:4] != b"GGUF":
            raise EngineError(f"{self._path} is not a GGUF file")
        self._position = 4
        version = self._unpack("I")
        if version not in _VERSIONS:
            raise EngineError(
                f"{self._path} has version {version} of GGUF; {_VERSIONS} are supported"
            )
        self._n_tensors = int(self._unpack("Q"))
        count = self._unpack("Q")
        values: dict[str, Value] = {}
        for _ in range(int(count)):
            key = self._read_string()
            kind = int(self._unpack("I"))
            if kind == _ARRAY:
                values[key] = self._read_array(int(self._unpack("I")), int(self._unpack("Q")))
            else:
                values[key] = (
                    self._read_string()
                    if kind == _STRING
                    else self._unpack(self._find_format(kind))
                )
        return values

    def count_parameters(self) -> int:
        """Count the numbers in all tensors, from the list that follows the metadata.
        Call `read` first.
        """
        total = 0
        for _ in range(self._n_tensors):
            self._read_string()
            dimensions = [int(self._unpack("Q")) for _ in range(int(self._unpack("I")))]
            # Skip the type and the offset.
            self._unpack("I")
            self._unpack("Q")
            total += prod(dimensions)
        return total

    def _read_array(self, kind: int, count: int) -> tuple[Number, ...] | Texts:
        if kind == _STRING:
            return self._read_texts(count)
        format = self._find_format(kind)
        size = count * struct.calcsize(format)
        self._check_size(size)
        values = struct.unpack_from(f"<{count}{format}", self._data, self._position)
        self._position += size
        return values

    def _read_texts(self, count: int) -> Texts:
        self._check_size(_LENGTH.size * count)
        begin = self._position
        starts = array("Q")
        # No call for each string: a vocabulary has up to 262,144, and is read three times
        # before a model is loaded.
        data = self._data
        position = begin
        last = len(data) - _LENGTH.size
        add_start = starts.append
        read_length = _LENGTH.unpack_from
        for _ in range(count):
            if position > last:
                break
            add_start(position - begin)
            position += _LENGTH.size + read_length(data, position)[0]
        self._position = position
        # Otherwise the last one may still end beyond the file.
        self._check_size(_LENGTH.size if len(starts) < count else 0)
        return Texts(data[begin:position], starts)

    def _read_string(self) -> str:
        length = int(self._unpack("Q"))
        self._check_size(length)
        raw = self._data[self._position : self._position + length]
        self._position += length
        return raw.decode("utf-8", "surrogateescape")

    def _unpack(self, format: str) -> int | float | bool:
        size = struct.calcsize(format)
        self._check_size(size)
        (value,) = struct.unpack_from("<" + format, self._data, self._position)
        self._position += size
        return value

    def _find_format(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise EngineError(f"{self._path} is not a valid GGUF file: a value has type {kind}")
        return _SCALARS[kind]

    def _check_size(self, size: int) -> None:
        if size > len(self._data) - self._position:
            raise EngineError(f"{self._path} is truncated or damaged: it ends within its metadata")
