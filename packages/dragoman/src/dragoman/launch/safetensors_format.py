"""Models in a directory with config.json, tokenizer.json and *.safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .model_format import ModelFormat

if TYPE_CHECKING:
    from ..pipeline.served_model import ModelDetails


def _check_path(text: str) -> None:
    from .model_directory import check_directory  # noqa: PLC0415 - most commands check no model; also below

    check_directory(text)


def _check_files(path: Path) -> None:
    from .model_directory import check_directory_files  # noqa: PLC0415

    check_directory_files(path)


def _find_name(path: Path) -> str:
    return path.resolve().name


def _list_weights(path: Path) -> list[Path]:
    return sorted(path.glob("*.safetensors"))


def _read_details(path: Path) -> ModelDetails:
    from .model_details import read_details  # noqa: PLC0415

    return read_details(path)


def _read_context(path: Path) -> int | None:
    from .model_details import read_context  # noqa: PLC0415

    return read_context(path)


SAFETENSORS = ModelFormat(
    name="safetensors",
    placeholder="DIRECTORY",
    check_path=_check_path,
    find_name=_find_name,
    check_files=_check_files,
    list_weights=_list_weights,
    read_details=_read_details,
    read_context=_read_context,
)
