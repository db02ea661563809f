"""The formats of models in files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from ..pipeline.served_model import ModelDetails


class ModelFormat(Struct, frozen=True, kw_only=True):
    """A format of models in files.

    Attributes:
        name: Its name, such as `safetensors`.
        placeholder: What MODEL's argument is, for messages.
        check_path: Raises ValueError if there is no model at a path; the message says
            what to do.
        find_name: Finds a model's name, which it has if the settings do not name it.
        check_files: Checks the files as far as possible without the weights. Raises
            OSError, EngineError.
        list_weights: Lists the files of the weights.
        read_details: Reads what the files say about the model.
        read_context: Reads the longest context, in tokens; None if unknown. Raises
            OSError, EngineError.
    """

    name: str
    placeholder: str
    check_path: Callable[[str], None]
    find_name: Callable[[Path], str]
    check_files: Callable[[Path], None]
    list_weights: Callable[[Path], Sequence[Path]]
    read_details: Callable[[Path], ModelDetails]
    read_context: Callable[[Path], int | None]
