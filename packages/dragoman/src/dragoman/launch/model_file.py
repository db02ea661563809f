"""The check of MODEL's argument that is the path of a file."""

from __future__ import annotations

from pathlib import Path


def check_file(text: str) -> None:
    """Raise ValueError if there is no file at a path that is not empty."""
    if text and Path(text).is_dir():
        raise ValueError(f"{text} is a directory; name the file in it")
    if text and not Path(text).is_file():
        raise ValueError(f"{text} does not exist")
