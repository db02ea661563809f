"""What the engine asks of a model. Knows nothing of how it computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ...core.vision import PromptImage
from ..arrays.weights import Tensors
from .scheduler import Chunk

Floats = NDArray[np.float32]


class StepStates(Protocol):
    """What one step made of its chunks; good until the next step."""

    def compute_last_logits(self, indices: Sequence[int]) -> Floats:
        """[n, vocab] logits after the last token of each of these chunks, by their place in the step. A fresh array."""
        ...

    def compute_span_logits(self, index: int, begin: int, end: int) -> Floats:
        """[end - begin, vocab] logits after tokens begin to end of one chunk, counted from the chunk's beginning."""
        ...


class Runner(Protocol):
    """A model with a pool of keys and values: blocks of BLOCK_SIZE tokens, which it writes where a sequence holds them.

    Called from one thread at a time.
    """

    def forward(self, chunks: Sequence[Chunk]) -> StepStates:
        """Compute these tokens, writing their keys and values. Every block of theirs is held already; all that
        precedes a chunk in its sequence was computed before, or is computed in this step by another chunk
        (a prefix that is shared)."""
        ...

    def save(self, block: int) -> bytes:
        """What a block holds that was computed."""
        ...

    def restore(self, block: int, contents: bytes) -> None:
        """Let a block hold what `save` gave of another, or another process of the same model."""
        ...

    def close(self) -> None:
        """Give the pool's memory back. It is not used again."""
        ...


class VisionRunner(Protocol):
    """What a model sees with. Called on the thread that computes."""

    def prepare_images(self, images: Sequence[PromptImage]) -> None:
        """Be ready for the images of a sequence that will run. Whatever it raises fails that sequence alone."""
        ...


class Model(Protocol):
    """Weights. vocab: token ids. max_positions: the longest context that it can compute, in tokens."""

    @property
    def vocab(self) -> int: ...

    @property
    def max_positions(self) -> int: ...

    def build_runner(self, num_blocks: int) -> Runner:
        """Over a new pool. num_blocks: including block 0, which is never given to a sequence and stays zeros.

        It computes with whatever weights the model has at the time.
        """
        ...

    def prepare_weights(self, tensors: Tensors) -> Callable[[], None]:
        """Read and check other weights for this model: all of its tensors by their names in the checkpoint.

        What is returned puts them in place and cannot fail; it is called between two steps. This may be called on
        another thread, while steps are computed. Raises EngineError, naming the tensor.
        """
        ...

    def prepare_discard(self) -> Callable[[], None] | None:
        """What gives the weights' memory back, between two steps, until they are renewed; None where that cannot be."""
        ...
