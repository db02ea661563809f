"""Weight updates of a running vLLM through its Python API."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from tempfile import TemporaryDirectory

from ...core.errors import EngineError, RequestError
from ...core.weight_updates import (
    INITIAL_WEIGHT_VERSION,
    WeightHistory,
    Weights,
    WeightsInMemory,
    WeightsOnDisk,
)
from ..safetensors_reader import TensorLayout, Tensors
from .control import VllmControl
from .process import VllmProcess

log = logging.getLogger(__name__)

_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
"""Dtypes that vLLM converts to the model's dtype when it loads weights. Quantized
weights must keep their dtype.
"""


class VllmTrainable:
    """Replaces vLLM's weights at run time. Implements
    `core.weight_updates.Trainable`.

    directory: the checkpoint that vLLM starts with. An update must contain the same
        tensors.
    """

    def __init__(self, process: VllmProcess, control: VllmControl, directory: Path) -> None:
        self._process = process
        self._control = control
        self._directory = directory
        self._version = INITIAL_WEIGHT_VERSION
        self._num_updates = 0
        self._has_new_weights = False
        self.lost_version: str | None = None
        """The version of the weights that were lost at a restart. Requests are rejected
        until they are replaced.
        """

    @property
    def weight_version(self) -> str:
        return self._version

    @property
    def history(self) -> WeightHistory:
        version = self._version if self._has_new_weights else self.lost_version
        return WeightHistory(self._version, self._num_updates, version)

    async def reset(self) -> None:
        """Reset the state after a start of the engine, which loads the checkpoint."""
        await self.succeed(self.history)

    async def succeed(self, history: WeightHistory) -> None:
        # The count continues, so that a generated version never denotes two sets of
        # weights.
        self._num_updates = history.updates
        self.lost_version = history.run_time_version
        self._has_new_weights = False
        self._version = INITIAL_WEIGHT_VERSION
        if self.lost_version is not None:
            log.error(
                "the weights of version %s are lost; requests are rejected until weights are sent",
                self.lost_version,
            )
        elif history.version != INITIAL_WEIGHT_VERSION:
            # Only the name was changed: the checkpoint's weights are still those of
            # this version.
            await self._process.get_engine().update_weight_version(history.version)
            self._version = history.version

    async def update_weights(self, weights: Weights, version: str | None = None) -> str:
        async with self._control.update_lock:
            if self._control.sleep_level:
                raise RequestError(
                    "The engine is asleep: wake it up before its weights are updated.",
                    param="weights",
                )
            self._process.get_engine()
            with TemporaryDirectory(prefix="dragoman-weights-") as folder:
                # In a thread: the engine keeps generating while the weights are read
                # and checked.
                directory = await asyncio.to_thread(_stage, weights, self._directory, Path(folder))
                self._num_updates += 1
                new_version = (
                    f"{self._version.partition('+')[0]}+{self._num_updates}"
                    if version is None
                    else version
                )
                await self._replace(directory, new_version)
            return new_version

    async def _replace(self, directory: Path, version: str) -> None:
        llm = self._process.get_engine()
        was_paused = self._control.is_paused
        try:
            if not was_paused:
                await llm.pause_generation(mode="keep", clear_cache=False)
            await llm.collective_rpc("reload_weights", kwargs={"weights_path": str(directory)})
            # Running sequences are prefilled again, with the new weights.
            await llm.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
            await llm.update_weight_version(version)
        except BaseException as error:
            # It is unknown which tensors were replaced, so nothing may be sampled from
            # them. After a cancellation, as when a front end has died, the engine would
            # stay paused too.
            self._process.fail("vLLM failed while it replaced the weights")
            if not isinstance(error, Exception):
                raise
            raise EngineError(
                f"vLLM failed while it replaced the weights, and is restarted: {error}"
            ) from error
        self._version = version
        self._has_new_weights = True
        self.lost_version = None
        # A pause by an operator outlasts the update.
        if not was_paused:
            await llm.resume_generation()

    async def set_weight_version(self, version: str) -> None:
        async with self._control.update_lock:
            await self._process.get_engine().update_weight_version(version)
            self._version = version
            self.lost_version = None


def _stage(weights: Weights, checkpoint: Path, folder: Path) -> Path:
    """Check the tensors, and return a directory with their files.

    folder: an empty directory for files that vLLM cannot read where they are.

    Raises: RequestError for tensors that do not match, EngineError if files cannot be
        written.
    """
    try:
        match weights:
            case WeightsOnDisk(path):
                source = Path(path)
                _check_layout(Tensors(source).layout, Tensors(checkpoint).layout)
                if source.is_dir():
                    return source
                # vLLM loads directories, so a single file is put into one.
                (folder / "model.safetensors").symlink_to(source.resolve())
            case WeightsInMemory(files):
                _check_layout(Tensors(files).layout, Tensors(checkpoint).layout)
                for number, data in enumerate(files):
                    (folder / f"model-{number}.safetensors").write_bytes(data)
    except OSError as error:
        raise EngineError(f"the weights cannot be staged: {error}") from error
    return folder


def _check_layout(new: TensorLayout, expected: TensorLayout) -> None:
    """Raise RequestError for missing or unknown tensors, or other shapes: vLLM would
    silently load those that match.
    """
    for name, (dtype, shape) in expected.items():
        if name not in new:
            raise RequestError(f"The weights contain no tensor {name}.", param="weights")
        new_dtype, new_shape = new[name]
        if new_shape != shape:
            raise RequestError(f"{name} has shape {new_shape}, not {shape}.", param="weights")
        if new_dtype != dtype and not {dtype, new_dtype} <= _FLOATS:
            raise RequestError(f"{name} has dtype {new_dtype}, not {dtype}.", param="weights")
    unexpected = next((name for name in new if name not in expected), None)
    if unexpected is not None:
        raise RequestError(
            f"The weights contain an unexpected tensor {unexpected}.", param="weights"
        )
