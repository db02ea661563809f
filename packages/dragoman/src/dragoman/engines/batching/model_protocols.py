"""Protocols that a model implements for the batching engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ...core.errors import RequestError
from ...core.prompt_images import PreparedImage, PromptImage
from ...core.token_engine import TokenLogprob
from ..safetensors_reader import Tensors
from .sampler import SamplingState
from .scheduler import Chunk

Floats = NDArray[np.float32]


class SampledRows(Protocol):
    """The tokens of a step's sequences, sampled from one row of logits each.

    tokens: NO_TOKEN where none is possible.
    """

    @property
    def tokens(self) -> Sequence[int]: ...

    def compute_logprobs(self, tokens: Sequence[int]) -> list[TokenLogprob | None]:
        """Compute the logprobs that each request asks for; None for a request without
        logprobs and for NO_TOKEN.

        tokens: the sampled tokens, or replacements of them.
        """
        ...

    def is_finite(self, row: int) -> bool:
        """Whether all logits of a row are finite, before masks and penalties."""
        ...


class StepStates(Protocol):
    """Hidden states of one step's chunks; valid until the next step."""

    def compute_last_logits(self, indices: Sequence[int]) -> Floats:
        """Compute [n, vocab] logits after the last token of each chunk, given by index
        in the step. A fresh array.
        """
        ...

    def sample(
        self, indices: Sequence[int], states: Sequence[SamplingState], masks: Sequence[bytes | None]
    ) -> SampledRows:
        """Sample the token after the last token of each chunk, given by index in the
        step.

        states: sampling states of the chunks' sequences.
        masks: allowed tokens of each sequence, as `Matcher.mask` returns them; None
            allows all.

        A row's result does not depend on the other rows.
        """
        ...

    def compute_span_logits(self, index: int, begin: int, end: int) -> Floats:
        """Compute [end - begin, vocab] logits after tokens begin to end of one chunk,
        relative to the chunk's start.
        """
        ...


class Runner(Protocol):
    """A model with a KV cache: blocks of BLOCK_SIZE tokens, written at the slots of
    each sequence.

    Called from one thread at a time.
    """

    def forward(self, chunks: Sequence[Chunk]) -> StepStates:
        """Compute these tokens and write their keys and values. Their blocks are
        already allocated; all tokens before a chunk were computed earlier, or are
        computed in this step by another chunk (a shared prefix).
        """
        ...

    def save(self, block: int) -> bytes:
        """Serialize the contents of a computed block."""
        ...

    def restore(self, block: int, contents: bytes) -> None:
        """Load a block from the output of `save`, of this process or another one with
        the same model.
        """
        ...

    def close(self) -> None:
        """Free the pool's memory. The runner is not used again."""
        ...


class VisionRunner(Protocol):
    """The vision encoder of a model. Called on the worker thread."""

    def prepare_images(self, images: Sequence[PromptImage]) -> None:
        """Prepare the images of a sequence before it runs. An exception fails only that
        sequence.
        """
        ...


class Model(Protocol):
    """A loaded model.

    vocab: number of token ids.
    max_positions: the longest context that it can compute, tokens.
    rope_window: longest sequence with the short RoPE factors (longrope), tokens: when a
        sequence grows beyond it, its keys are computed again with the long factors.
        None if all lengths have the same factors.
    has_state: whether a running sequence has state besides keys and values (recurrent
        or convolutional layers). It then owns the slot `Sequence.state_slot`, and each
        of its chunks follows the last one or begins at token 0.
    """

    @property
    def vocab(self) -> int: ...

    @property
    def max_positions(self) -> int: ...

    @property
    def rope_window(self) -> int | None: ...

    @property
    def has_state(self) -> bool: ...

    def build_runner(self, num_blocks: int, num_state_slots: int = 0) -> Runner:
        """Build a runner over new pools.

        num_blocks: including block 0, which is never allocated and stays zeros.
        num_state_slots: 0 if the model has no state besides keys and values.

        The runner computes with the model's weights at the time of each step.
        """
        ...

    def prepare_weights(self, tensors: Tensors) -> Callable[[], None]:
        """Read and validate new weights for this model: all of its tensors by their
        names in the checkpoint.

        The returned function swaps them in and cannot fail; it is called between two
        steps. This may be called on another thread, while steps are computed. Raises
        EngineError, naming the tensor.
        """
        ...

    def prepare_discard(self) -> Callable[[], None] | None:
        """Return a function that frees the weights' memory between two steps until new
        weights are loaded; None if the model does not support that.
        """
        ...


def place_images(
    prompt: Sequence[int], token: int, images: Sequence[PreparedImage], counts: Sequence[int]
) -> tuple[PromptImage, ...]:
    """Find the span of every image; implements
    `core.prompt_images.ImageProcessor.locate`.

    token: the image placeholder id, which has no other use.
    counts: placeholder tokens of each image.
    """
    positions = np.flatnonzero(np.asarray(prompt) == token).tolist()
    if len(positions) != sum(counts):
        raise RequestError(
            "The prompt does not contain every image exactly once.", param="messages"
        )
    placements: list[PromptImage] = []
    # A placeholder does not tell which image it belongs to, but placeholders are in the
    # order of the images.
    start = 0
    for image, count in zip(images, counts, strict=True):
        begin = positions[start]
        end = positions[start + count - 1] + 1
        placements.append(PromptImage(begin, end, image.digest, image.model_inputs))
        start += count
    return tuple(placements)
