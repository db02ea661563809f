"""Checks of MODEL that need neither the engine nor the weights."""

from __future__ import annotations

from pathlib import Path

from ..core.errors import EngineError
from ..settings import Settings
from .engine_choice import check_engine_installed, describe_others, read_directory_config
from .model_directory import check_directory
from .model_plan import ModelPlan, build_unknown_message


def check_plan(plan: ModelPlan) -> None:
    """Check MODEL without loading an engine.

    Raises:
        ValueError: MODEL names no known engine, or its path does not exist.
    """
    spec = plan.spec
    if plan.reference is not None:
        return
    if spec is None:
        if "/" not in plan.engine and not Path(plan.model).exists():
            raise ValueError(build_unknown_message(plan))
        check_directory(plan.model)
        return
    if not plan.argument and spec.needs_argument:
        placeholder = "MODEL" if spec.local is None else spec.local.format.placeholder
        raise ValueError(f"`{spec.name}` needs a model: {spec.name}:{placeholder}")
    if spec.local is not None and plan.argument:
        spec.local.format.check_path(plan.argument)
    if spec.check is not None:
        spec.check(plan.argument)


def check_local_model(plan: ModelPlan, settings: Settings) -> None:
    """Check a model in local files as far as possible without its weights.

    Raises:
        ValueError: there is no model at this path, or the engine is not installed.
        OSError, EngineError: a file cannot be read, or the engine does not support the
            model.
    """
    local = plan.local
    if plan.spec is None or local is None or not plan.argument:
        return
    path = plan.path
    check_engine_installed(plan.spec, plan.argument)
    local.format.check_path(plan.argument)
    _check_lfs_pointers(path)
    if local.check_architecture is not None:
        try:
            local.check_architecture(path, plan.argument, settings.trust_remote_code)
        except EngineError as error:
            others = "" if plan.names_engine else describe_others(read_directory_config(path))
            raise EngineError(
                f"{error}; for other models: {others}" if others else str(error)
            ) from error
    local.format.check_files(path)


_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
"""The begin of the file that git has for a large file without Git LFS:
https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md.
"""


def _check_lfs_pointers(path: Path) -> None:
    """Raise EngineError if a model's file is the pointer to a large file."""
    patterns = ("*.safetensors", "*.json", "*.model", "*.jinja")
    files = (
        [path]
        if path.is_file()
        else [file for pattern in patterns for file in sorted(path.glob(pattern))]
    )
    for file in files:
        if not file.is_file():
            continue
        with file.open("rb") as content:
            head = content.read(len(_LFS_POINTER))
        if head == _LFS_POINTER:
            raise EngineError(
                f"{file} is a Git LFS pointer and not the file itself; run `git lfs pull` in "
                f"{file.parent}"
            )
