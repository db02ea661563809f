"""The architectures that the library mlx-lm supports."""

from __future__ import annotations

from ...architecture_check import (
    MIN_NAMES,
    ArchitectureConfig,
    Library,
    find_root,
    knows,
    read_names,
)


def _supports(config: ArchitectureConfig) -> bool:
    # mlx-lm has a module for each model type, and utils.py maps further types to them.
    root = find_root("mlx_lm")
    names = read_names("mlx_lm", "utils.py")
    modules = [] if root is None else [file.stem for file in root.glob("models/*.py")]
    known = None if names is None or len(modules) < MIN_NAMES else names.union(modules)
    return knows(known, [config.model_type])


MLX = Library("mlx-lm", _supports, has_code=lambda config: bool(config.model_file))
