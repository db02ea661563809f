"""Imports torch, transformers and safetensors, which only this package needs.

They are imported only when the engine is selected, and are deliberately untyped.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, TypeAlias

from ...core.errors import EngineError

Tensor: TypeAlias = Any
Network: TypeAlias = Any
"""A `PreTrainedModel`."""
Device: TypeAlias = Any

try:
    safetensors: Any = import_module("safetensors")
    import_module("safetensors.torch")
    torch: Any = import_module("torch")
    library: Any = import_module("transformers")
except ImportError as error:
    raise EngineError(
        f"{error}; this engine needs `pip install 'dragoman[transformers]'`"
    ) from error
