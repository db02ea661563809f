"""A model whose steps raise for some sequences, in the place of a library's fault."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dragoman.engines.batching import Chunk, Model, Runner
from dragoman.engines.batching.model_protocols import StepStates
from dragoman.engines.safetensors_reader import Tensors


class FaultyModel:
    """A model whose steps raise before or after the forward pass.

    find_fault: returns what a step of these chunks raises; None for nothing.
    after_forward: whether the keys and values of the step are written first.
    """

    def __init__(
        self,
        model: Model,
        find_fault: Callable[[Sequence[Chunk]], BaseException | None],
        *,
        after_forward: bool = False,
    ) -> None:
        self._model = model
        self.find_fault = find_fault
        self._after_forward = after_forward
        self.num_faults = 0

    @property
    def vocab(self) -> int:
        return self._model.vocab

    @property
    def max_positions(self) -> int:
        return self._model.max_positions

    @property
    def rope_window(self) -> int | None:
        return self._model.rope_window

    @property
    def has_state(self) -> bool:
        return self._model.has_state

    def prepare_weights(self, tensors: Tensors) -> Callable[[], None]:
        return self._model.prepare_weights(tensors)

    def prepare_discard(self) -> Callable[[], None] | None:
        return self._model.prepare_discard()

    def build_runner(self, num_blocks: int, num_state_slots: int = 0) -> Runner:
        return FaultyRunner(self, self._model.build_runner(num_blocks, num_state_slots))

    def check(self, chunks: Sequence[Chunk], *, after_forward: bool) -> None:
        if after_forward != self._after_forward:
            return
        fault = self.find_fault(chunks)
        if fault is not None:
            self.num_faults += 1
            raise fault


class FaultyRunner:
    """A runner of a FaultyModel."""

    def __init__(self, model: FaultyModel, runner: Runner) -> None:
        self._model = model
        self._runner = runner

    def save(self, block: int) -> bytes:
        return self._runner.save(block)

    def restore(self, block: int, contents: bytes) -> None:
        self._runner.restore(block, contents)

    def close(self) -> None:
        self._runner.close()

    def forward(self, chunks: Sequence[Chunk]) -> StepStates:
        self._model.check(chunks, after_forward=False)
        states = self._runner.forward(chunks)
        self._model.check(chunks, after_forward=True)
        return states


class NanModel(FaultyModel):
    """A model that writes NaN to the KV cache of one request, in its first step.

    id: the request's id.
    """

    def __init__(self, model: Model, id: str) -> None:
        super().__init__(model, lambda _: None)
        self._id = id

    def build_runner(self, num_blocks: int, num_state_slots: int = 0) -> Runner:
        return NanRunner(self, super().build_runner(num_blocks, num_state_slots), self._id)


class NanRunner(FaultyRunner):
    """A runner of a NanModel."""

    def __init__(self, model: FaultyModel, runner: Runner, id: str) -> None:
        super().__init__(model, runner)
        self._id = id

    def forward(self, chunks: Sequence[Chunk]) -> StepStates:
        states = super().forward(chunks)
        for chunk in chunks:
            if chunk.sequence.request.id == self._id and chunk.begin == 0:
                block = chunk.sequence.blocks[0]
                self.restore(block, _fill_with_nan(self.save(block)))
        return states


def _fill_with_nan(contents: bytes) -> bytes:
    """Replace the numbers of a saved block, which are float32, with or without a header
    of safetensors.
    """
    size = int.from_bytes(contents[:8], "little") + 8
    begin = size if contents[8:9] == b"{" else 0
    return contents[:begin] + np.full((len(contents) - begin) // 4, np.nan, np.float32).tobytes()


def raise_for(
    *ids: str, position: int = 0, error: BaseException | None = None
) -> Callable[[Sequence[Chunk]], BaseException | None]:
    """Build a fault that the steps of these requests have from a position on."""
    raised = error or RuntimeError("index out of range\nand a second line")

    def find(chunks: Sequence[Chunk]) -> BaseException | None:
        is_hit = any(chunk.sequence.request.id in ids and chunk.end > position for chunk in chunks)
        return raised if is_hit else None

    return find
