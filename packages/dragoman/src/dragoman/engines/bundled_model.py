"""The small Llama that comes with the package: its directory."""

from __future__ import annotations

from pathlib import Path


def find_bundled_model() -> Path:
    """Find the model bundled with this package."""
    # Importing `engines.tiny` would import numpy, which servers that only use the
    # tokenizer do not need.
    return Path(__file__).with_name("tiny") / "data"
