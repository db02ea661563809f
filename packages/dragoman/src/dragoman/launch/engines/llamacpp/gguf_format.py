"""Models in GGUF files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ...model_file import check_file
from ...model_format import ModelFormat

if TYPE_CHECKING:
    from ....pipeline.served_model import ModelDetails


def _check_files(path: Path) -> None:
    from ....engines.llamacpp import read_metadata  # noqa: PLC0415 - numpy takes long to import; also below

    read_metadata(path)


def _list_weights(path: Path) -> list[Path]:
    from ....engines.llamacpp import find_parts  # noqa: PLC0415

    return [part for part in find_parts(path) if part.exists()]


def _read_details(path: Path) -> ModelDetails:
    from .details import read_gguf_details  # noqa: PLC0415

    return read_gguf_details(path)


def _read_context(path: Path) -> int | None:
    from ....engines.llamacpp import read_metadata  # noqa: PLC0415

    metadata = read_metadata(path)
    return metadata.get_number(metadata.build_architecture_key("context_length"))


GGUF = ModelFormat(
    name="gguf",
    placeholder="FILE",
    check_path=check_file,
    find_name=lambda path: path.stem,
    check_files=_check_files,
    list_weights=_list_weights,
    read_details=_read_details,
    read_context=_read_context,
)
