"""A self-check at startup: the paged KV cache and the state slots must reproduce the
model's own logits.

It rejects models with state that is in neither of them, with attention that cannot be
paged, and with results that depend on the other sequences of a batch.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Callable
from itertools import pairwise, zip_longest

import numpy as np
from numpy.typing import NDArray

from ...core.errors import EngineError
from ...core.token_engine import TokenRequest
from .block_pool import BLOCK_SIZE
from .engine import build_rng
from .model_protocols import Model, Runner
from .scheduler import Chunk
from .sequence import Sequence

Floats = NDArray[np.float32]

_SHORT = 21
_LONG = 72
"""Tokens of the trial's prompts. Windows, chunks and RoPE limits of the model should be
reduced to less than _LONG.
"""
_SHORT_CUTS = (BLOCK_SIZE + 1, _SHORT - 1)
_LONG_CUTS = (2 * BLOCK_SIZE - 1, 2 * BLOCK_SIZE + 1, _LONG - 1)
"""Ends of chunks: across the end of a block, within a block, and before a single last
token.
"""
_NUM_CACHED_BLOCKS = 2
"""Blocks of the long prompt that are reused as a cached prefix."""
_NUM_DECODED = 3
"""Last tokens of both prompts that are computed one by one in the same steps, in slots
of other sequences.
"""
_SLOTS = (0, 2)
"""State slots of the short and the long prompt; exchanged when both are computed again.
"""


def build_trial_prompts(vocab: int, max_positions: int) -> tuple[list[int], list[int]]:
    """Build the prompts of the trial: a short and a long one, computed in the same
    steps.
    """
    short = [(31 * position + 7) % vocab for position in range(min(_SHORT, max_positions))]
    return short, [17 * position % vocab for position in range(min(_LONG, max_positions))]


def check_paging(
    model: Model,
    build_runner: Callable[[int, int], Runner],
    expected: abc.Sequence[Floats],
    *,
    kind: str,
    tolerance: float,
) -> None:
    """Compare paged logits with the model's own, without and with a cached prefix, or
    in reused state slots.

    build_runner: builds a runner over numbers of blocks and state slots.
    expected: [tokens, vocab] logits of the model without paging, for each of
        `build_trial_prompts`.
    kind: the model's type, for the error message.
    tolerance: relative to the largest logit.

    Raises: EngineError.
    """
    try:
        trial = _Trial(model)
        runner = build_runner(trial.num_blocks, max(_SLOTS) + 1 if model.has_state else 0)
        actual = trial.compute_in_chunks(runner)
        cached = None if model.has_state else trial.compute_after_prefix(runner)
        reused = trial.compute_in_reused_slots(runner) if model.has_state else ()
    except Exception as error:  # the library's code may raise anything
        raise EngineError(f"{kind} cannot be batched: {_describe_fault(error)}") from error
    for logits, reference, name in zip(actual, expected, ("a short", "a long"), strict=True):
        if not _is_near(logits, reference, tolerance):
            raise EngineError(
                f"{kind} cannot be batched: its output with paged attention differs, for {name} "
                f"prompt beside another"
            )
    if cached is not None and not _is_near(cached, expected[1][-len(cached) :], tolerance):
        raise EngineError(
            f"{kind} cannot be batched: its output with paged attention differs after a cached "
            f"prefix"
        )
    for logits, reference in zip(reused, expected, strict=False):
        if not _is_near(logits, reference, tolerance):
            raise EngineError(
                f"{kind} cannot be batched: its output differs token by token in a reused state "
                f"slot"
            )


def _is_near(actual: Floats, expected: Floats, tolerance: float) -> bool:
    # False for NaN.
    return bool(np.abs(actual - expected).max() <= tolerance * np.abs(expected).max())


class _Trial:
    """The sequences of the self-check and their blocks."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.num_blocks = 1
        short, long = build_trial_prompts(model.vocab, model.max_positions)
        self._short = self._build_sequence(short)
        self._long = self._build_sequence(long)
        if model.has_state:
            self._short.state_slot, self._long.state_slot = _SLOTS
        num_cached = min(_NUM_CACHED_BLOCKS, (len(long) - 1) // BLOCK_SIZE)
        self._next_short = self._build_sequence(short)
        self._next_long = self._build_sequence(long, self._long.blocks[:num_cached])
        self._num_cached_tokens = num_cached * BLOCK_SIZE

    def _build_sequence(self, prompt: list[int], shared: abc.Sequence[int] = ()) -> Sequence:
        request = TokenRequest(id="trial", prompt=tuple(prompt), max_tokens=1, prompt_logprobs=0)
        sequence = Sequence(
            0,
            request,
            vocab=self._model.vocab,
            max_model_len=len(prompt) + 1,
            rng_factory=build_rng,
        )
        if self._model.rope_window is not None and len(prompt) > self._model.rope_window:
            sequence.use_long_factors()
        count = -(-len(prompt) // BLOCK_SIZE) - len(shared)
        sequence.blocks = [*shared, *range(self.num_blocks, self.num_blocks + count)]
        self.num_blocks += count
        return sequence

    def compute_in_chunks(self, runner: Runner) -> list[Floats]:
        """Compute both prompts in chunks, in the same steps. Returns the logits of
        each.
        """
        return self._compute(runner, _cut(self._short, _SHORT_CUTS), _cut(self._long, _LONG_CUTS))

    def compute_in_reused_slots(self, runner: Runner) -> list[Floats]:
        """Compute both prompts again, each in the other's state slot, with single
        tokens of both in the same steps. Returns the logits of each.
        """
        self._long.state_slot, self._short.state_slot = _SLOTS
        chunks = [
            _cut(sequence, tuple(sequence.num_tokens - left for left in range(_NUM_DECODED, 0, -1)))
            for sequence in (self._short, self._long)
        ]
        return self._compute(runner, *chunks)

    def _compute(self, runner: Runner, short: list[Chunk], long: list[Chunk]) -> list[Floats]:
        spans: tuple[list[Floats], list[Floats]] = ([], [])
        for step in zip_longest(short, long):
            scheduled = [chunk for chunk in step if chunk is not None]
            states = runner.forward(scheduled)
            for index, chunk in enumerate(scheduled):
                spans[chunk.sequence is self._long].append(
                    states.compute_span_logits(index, 0, chunk.num_tokens)
                )
        return [np.concatenate(rows) for rows in spans]

    def compute_after_prefix(self, runner: Runner) -> Floats:
        """Compute the long prompt over its cached prefix, in a batch with the short
        one. Returns the new logits.
        """
        long = Chunk(self._next_long, self._num_cached_tokens, self._next_long.num_tokens)
        states = runner.forward([Chunk(self._next_short, 0, self._next_short.num_tokens), long])
        return states.compute_span_logits(1, 0, long.num_tokens)


def _cut(sequence: Sequence, cuts: tuple[int, ...]) -> list[Chunk]:
    ends = [cut for cut in cuts if 0 < cut < sequence.num_tokens]
    return [Chunk(sequence, begin, end) for begin, end in pairwise((0, *ends, sequence.num_tokens))]


def _describe_fault(error: Exception) -> str:
    """Return one line about an exception that a paged computation raised."""
    message = (
        error.message if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
    )
    first_line = message.strip().partition("\n")[0]
    # The library's own computation of the same prompts has succeeded before.
    if isinstance(error, TypeError | AttributeError):
        return (
            f"its layers read the library's attention mask or cache, which paged attention does "
            f"not have ({first_line})"
        )
    return first_line


def find_reason(error: Exception) -> str:
    """Return the first line of the message of an exception that a library raised while
    it loaded a model.
    """
    first, *other_lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [
        type(error).__name__
    ]
    if first.startswith("Unrecognized configuration class"):
        return "it is not a causal language model; transformers generates text only with those"
    if first.endswith(":") and other_lines:
        # A list of names follows, one per line.
        first = f"{first} {other_lines[0].removesuffix(',')}" + (
            ", ..." if other_lines[0].endswith(",") else ""
        )
    # The message of a KeyError is only the key.
    return f"{type(error).__name__}: {first}" if isinstance(error, KeyError) else first
