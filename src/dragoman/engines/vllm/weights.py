"""Weight updates of a running vLLM, by the calls that vLLM has for them."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from tempfile import TemporaryDirectory

from ...core.control import INITIAL_WEIGHT_VERSION, WeightHistory, Weights, WeightsInMemory, WeightsOnDisk
from ...core.errors import EngineError, RequestError
from ..arrays.weights import TensorLayout, Tensors
from .control import VllmControl
from .process import VllmProcess

log = logging.getLogger(__name__)

_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
"""Dtypes that vLLM converts to the model's own while it loads. Quantised weights have to be as at the start."""


class VllmTrainable:
    """As `core.control.SucceedingTrainable`.

    directory: the checkpoint that vLLM starts with; an update has the same tensors.
    """

    def __init__(self, process: VllmProcess, control: VllmControl, directory: Path) -> None:
        self._process, self._control, self._directory = process, control, directory
        self._version = INITIAL_WEIGHT_VERSION
        self._num_updates = 0
        self._has_new_weights = False
        self.lost_version: str | None = None
        """The version of weights that were lost at a restart, and that nobody has replaced since. Until then requests
        are rejected."""

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
        # Updates are counted on, so that no generated name names two sets of weights.
        self._num_updates, self.lost_version, self._has_new_weights = history.updates, history.run_time_version, False
        self._version = INITIAL_WEIGHT_VERSION
        if self.lost_version is not None:
            log.error(
                "the weights of version %s are lost; requests are rejected until weights are sent", self.lost_version
            )
        elif history.version != INITIAL_WEIGHT_VERSION:
            # These are still the weights that were given this name.
            await self._process.get_engine().update_weight_version(history.version)
            self._version = history.version

    async def update_weights(self, weights: Weights, version: str | None = None) -> str:
        async with self._control.update_lock:
            if self._control.sleep_level:
                raise RequestError("The engine is asleep: wake it up before its weights are updated.", param="weights")
            self._process.get_engine()
            with TemporaryDirectory(prefix="dragoman-weights-") as folder:
                # Reading and checking goes on beside the steps.
                directory = await asyncio.to_thread(_stage, weights, self._directory, Path(folder))
                self._num_updates += 1
                new_version = f"{self._version.partition('+')[0]}+{self._num_updates}" if version is None else version
                await self._replace(directory, new_version)
            return new_version

    async def _replace(self, directory: Path, version: str) -> None:
        llm, was_paused = self._process.get_engine(), self._control.is_paused
        if not was_paused:
            await llm.pause_generation(mode="keep", clear_cache=False)
        try:
            await llm.collective_rpc("reload_weights", kwargs={"weights_path": str(directory)})
            # Running sequences are prefilled again, with the new weights.
            await llm.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
            await llm.update_weight_version(version)
        except Exception as error:
            # As it is unknown which tensors were replaced, nothing must be sampled with them.
            self._process.fail("vLLM failed while it replaced the weights")
            raise EngineError(f"vLLM failed while it replaced the weights, and is restarted: {error}") from error
        self._version, self._has_new_weights, self.lost_version = version, True, None
        # A pause that an operator has asked for outlasts the update.
        if not was_paused:
            await llm.resume_generation()

    async def set_weight_version(self, version: str) -> None:
        async with self._control.update_lock:
            await self._process.get_engine().update_weight_version(version)
            self._version, self.lost_version = version, None


def _stage(weights: Weights, checkpoint: Path, folder: Path) -> Path:
    """Check the tensors, and return a directory of their files. Raises RequestError, EngineError.

    folder: an empty directory for files that vLLM cannot read where they are.
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
    """Raises RequestError for tensors that are missing, unknown or of another shape: vLLM would load what fits."""
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
        raise RequestError(f"The weights contain an unexpected tensor {unexpected}.", param="weights")
