"""Reader of safetensors files as float32, without the safetensors library.

Format: 8 bytes length of the header (little-endian), the header as JSON, the data
(https://huggingface.co/docs/safetensors). Every offset is checked before it is used.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ..core.errors import EngineError

TensorLayout: TypeAlias = Mapping[str, tuple[str, tuple[int, ...]]]
"""Dtype, as safetensors names it, and shape of each tensor."""


_BYTES_PER_NUMBER = {"BF16": 2, "F16": 2, "F32": 4}


class _Entry(Struct):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class _OnDisk:
    """A safetensors file."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self.size = path.stat().st_size
        self._path = path

    def read(self, begin: int, count: int) -> NDArray[np.uint8]:
        return np.fromfile(self._path, np.uint8, count, offset=begin)


class _InMemory:
    """A safetensors file in memory."""

    def __init__(self, name: str, data: bytes) -> None:
        self.name = name
        self.size = len(data)
        self._data = data

    def read(self, begin: int, count: int) -> NDArray[np.uint8]:
        return np.frombuffer(self._data[begin : begin + count], np.uint8)


_File = _OnDisk | _InMemory


class Tensors:
    """The tensors of safetensors files. Each is taken once; `check_all_used` reports
    unused ones.
    """

    def __init__(self, source: Path | Sequence[bytes]) -> None:
        """Read the headers. Raises EngineError, OSError.

        source: a directory of *.safetensors, one such file, or the contents of several
            files.
        """
        if not isinstance(source, Path):
            files: Sequence[_File] = [
                _InMemory(f"file {number}", data) for number, data in enumerate(source, start=1)
            ]
            self._name = "what was sent"
        else:
            paths = [source] if source.is_file() else sorted(source.glob("*.safetensors"))
            files = [_OnDisk(path) for path in paths]
            self._name = str(source)
        # Headers only: a tensor is read when it is taken, so that the checkpoint is
        # never in memory as a whole.
        self._remaining: dict[str, tuple[_File, int, _Entry]] = {}
        for file in files:
            start, entries = _read_header(file)
            duplicate = next((name for name in entries if name in self._remaining), None)
            if duplicate is not None:
                raise EngineError(f"{self._name} contains {duplicate} twice")
            self._remaining.update((name, (file, start, entry)) for name, entry in entries.items())
        if not self._remaining:
            raise EngineError(f"{self._name} contains no safetensors file")

    def __contains__(self, name: str) -> bool:
        return name in self._remaining

    @property
    def layout(self) -> TensorLayout:
        """The tensors that have not been taken."""
        return {name: (entry.dtype, entry.shape) for name, (_, _, entry) in self._remaining.items()}

    def take(self, name: str, *shape: int) -> NDArray[np.float32]:
        """Return the tensor of this name as float32; EngineError if it is missing or
        has another shape.
        """
        if name not in self._remaining:
            raise EngineError(f"{self._name} contains no tensor {name}")
        file, start, entry = self._remaining.pop(name)
        if entry.dtype not in _BYTES_PER_NUMBER:
            raise EngineError(
                f"{file.name}: {name} has dtype {entry.dtype}; supported are "
                f"{', '.join(_BYTES_PER_NUMBER)}"
            )
        if entry.shape != shape:
            raise EngineError(f"{file.name}: {name} has shape {entry.shape}, not {shape}")
        raw = file.read(start + entry.data_offsets[0], prod(shape) * _BYTES_PER_NUMBER[entry.dtype])
        match entry.dtype:
            case "BF16":
                # A bfloat16 is the upper half of a float32.
                numbers = (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
            case "F16":
                numbers = raw.view("<f2").astype(np.float32)
            case _:
                numbers = raw.view("<f4").astype(np.float32, copy=False)
        return numbers.reshape(shape)

    def drop(self, name: str) -> None:
        """Mark a tensor as deliberately unused."""
        self._remaining.pop(name, None)

    def drop_all(self, prefix: str) -> None:
        """Mark all tensors with this prefix as deliberately unused."""
        for name in [name for name in self._remaining if name.startswith(prefix)]:
            self.drop(name)

    def check_all_used(self) -> None:
        """Raise EngineError if a tensor was not taken: the model has parts that this
        engine does not compute.
        """
        if self._remaining:
            raise EngineError(
                f"{self._name} contains unexpected tensors: {sorted(self._remaining)[:4]}"
            )


def _read_header(file: _File) -> tuple[int, dict[str, _Entry]]:
    # A file of less than 8 bytes is padded to an impossible length, which the check
    # below rejects.
    (length,) = struct.unpack("<Q", file.read(0, 8).tobytes().ljust(8, b"\xff"))
    if length > file.size - 8:
        raise EngineError(
            f"{file.name} is not a safetensors file: its header would be {length} bytes long"
        )
    raw = file.read(8, length).tobytes()
    try:
        parts = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        parts.pop("__metadata__", None)
        entries = {name: msgspec.json.decode(part, type=_Entry) for name, part in parts.items()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EngineError(f"{file.name} is not a safetensors file: {error}") from error
    for name, entry in entries.items():
        size = file.size - 8 - length
        begin, end = entry.data_offsets
        # Other dtypes have no checked size: they are never read.
        width = _BYTES_PER_NUMBER.get(entry.dtype)
        if not (
            0 <= begin <= end <= size
            and (width is None or end - begin == prod(entry.shape) * width)
        ):
            raise EngineError(f"{file.name}: {name} is not at the offset in the header")
    return 8 + length, entries
