"""Reading safetensors: all three dtypes, and files with false headers."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from dragoman.core.errors import EngineError
from dragoman.engines.safetensors_reader import Tensors

from ..tiny.models import write_tensors

NUMBERS = np.array([[1.5, -2.0, 0.0], [0.25, 640.0, -0.5]], np.float32)


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [
        ("F32", NUMBERS),
        ("F16", NUMBERS.astype(np.float16)),
        ("BF16", (NUMBERS.view(np.uint32) >> 16).astype(np.uint16)),
    ],
)
def test_tensors_convert_every_dtype_to_float32(
    tmp_path: Path, dtype: str, stored: np.ndarray
) -> None:
    write_tensors(tmp_path / "model.safetensors", {"a": stored}, dtype)
    taken = Tensors(tmp_path).take("a", 2, 3)
    assert taken.dtype == np.float32
    assert np.array_equal(taken, NUMBERS)


def test_tensors_are_read_from_multiple_files(tmp_path: Path) -> None:
    write_tensors(tmp_path / "model-1.safetensors", {"a": NUMBERS})
    write_tensors(tmp_path / "model-2.safetensors", {"b": NUMBERS})
    tensors = Tensors(tmp_path)
    assert np.array_equal(tensors.take("a", 2, 3), tensors.take("b", 2, 3))
    tensors.check_all_used()


def test_tensors_missing_unused_or_misshaped_raise_error(tmp_path: Path) -> None:
    write_tensors(tmp_path / "model.safetensors", {"extra.bias": NUMBERS, "b": NUMBERS})
    tensors = Tensors(tmp_path)
    with pytest.raises(EngineError, match="no tensor c"):
        tensors.take("c", 2, 3)
    with pytest.raises(EngineError, match="shape"):
        tensors.take("b", 3, 2)
    with pytest.raises(EngineError, match=r"extra\.bias"):
        tensors.check_all_used()


def test_tensors_in_empty_directory_raise_error(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no safetensors"):
        Tensors(tmp_path)


@pytest.mark.parametrize(
    "header",
    [
        b'{"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 4000]}}',
        b'{"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [8, 24]}}',
        b'{"a": {"dtype": "F32", "shape": [-2, -3], "data_offsets": [24, 48]}}',
        b'{"a": 1}',
        b"[]",
        b"\xff\xfe",
    ],
)
def test_tensors_with_invalid_header_raise_error(tmp_path: Path, header: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(
        struct.pack("<Q", len(header)) + header + bytes(24)
    )
    with pytest.raises(EngineError):
        Tensors(tmp_path)


@pytest.mark.parametrize("content", [b"", b"abc", struct.pack("<Q", 1 << 60) + b"{}"])
def test_tensors_in_truncated_file_raise_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(EngineError, match="not a safetensors file"):
        Tensors(tmp_path)


def test_tensors_with_other_dtype_are_rejected_only_when_used(tmp_path: Path) -> None:
    header = b'{"a": {"dtype": "I64", "shape": [3], "data_offsets": [0, 24]}}'
    (tmp_path / "model.safetensors").write_bytes(
        struct.pack("<Q", len(header)) + header + bytes(24)
    )
    with pytest.raises(EngineError, match="dtype I64"):
        Tensors(tmp_path).take("a", 3)
    tensors = Tensors(tmp_path)
    tensors.drop("a")
    tensors.check_all_used()
