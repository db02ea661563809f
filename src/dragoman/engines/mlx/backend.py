"""mlx and mlx-lm, needed only by this package. Imported when the engine is selected.

Deliberately untyped here: values are checked where they are used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, TypeAlias

from ...core.errors import EngineError

Array: TypeAlias = Any
Network: TypeAlias = Any
"""A model of mlx-lm: called with [rows, tokens] ids and a list of caches, it gives [rows, tokens, vocab] logits."""

try:
    mx: Any = import_module("mlx.core")
    tree_flatten: Any = import_module("mlx.utils").tree_flatten
    load_model: Any = import_module("mlx_lm.utils").load_model
    caches: Any = import_module("mlx_lm.models.cache")
except ImportError as error:
    raise EngineError(f"{error}; this engine needs `pip install '.[mlx]'`") from error
