"""The engine's steps, without a thread: every call of `step` computes one step for all
running sequences.
"""

from __future__ import annotations

import logging
from collections import abc
from collections.abc import Callable

from msgspec import Struct

from ...core.events import FinishReason
from ...core.token_engine import (
    Ended,
    Failed,
    PromptLogprobs,
    Rejected,
    Sampled,
    Scheduled,
    TokenOutput,
    TokenRequest,
    WeightVersionSet,
)
from ...core.weight_updates import INITIAL_WEIGHT_VERSION
from ..failure_message import describe_error
from .block_pool import BLOCK_SIZE, BlockPool
from .kv_offload import BlockFiles
from .model_protocols import Model, Runner, StepStates
from .sampler import NO_TOKEN, build_logprob, log_softmax
from .scheduler import Chunk, Scheduler, SchedulerConfig
from .sequence import Sequence, is_allowed
from .state_slots import StateSlots

_PROMPT_LOGPROBS_PER_BATCH = 128
"""Prompt tokens per batch of logprobs: limits the memory of [tokens, vocab] doubles."""


log = logging.getLogger(__name__)


class SequenceOutput(Struct, frozen=True, gc=False):
    """An output of a sequence, identified by its key."""

    key: int
    output: TokenOutput

    @property
    def is_last(self) -> bool:
        return isinstance(self.output, (Ended, Failed, Rejected))


class Stepper:
    """A model, its scheduler and its KV cache, which holds at least one sequence of
    maximum length.

    version: the name of the model's weights.
    """

    def __init__(
        self,
        model: Model,
        config: SchedulerConfig,
        num_kv_tokens: int,
        files: BlockFiles | None = None,
        version: str = INITIAL_WEIGHT_VERSION,
    ) -> None:
        self._pool = BlockPool(-(-num_kv_tokens // BLOCK_SIZE) + 1)
        self._model = model
        self._runner: Runner | None = None
        self._files = files
        num_slots = (
            config.max_num_seqs if config.num_state_slots is None else config.num_state_slots
        )
        self._slots = StateSlots(num_slots) if model.has_state else None
        self.scheduler = Scheduler(config, self._pool, files, model.rope_window, self._slots)
        self.version = version
        self._chunks: list[Chunk] = []
        self._outputs: list[SequenceOutput] = []
        self.failure: str | None = None
        """Why no further step can be computed; None while the engine works."""

    def step(self) -> list[SequenceOutput]:
        """Compute a step and return its outputs. If it raises anything, call `recover`."""
        outputs: list[SequenceOutput] = []
        self._outputs = outputs
        self._chunks = []
        self._chunks = chunks = self.scheduler.schedule()
        if not chunks:
            return []
        runner = self._get_runner()
        # Restored before the forward pass, which reads these blocks as cached.
        for load in self.scheduler.take_loads():
            runner.restore(load.block, load.contents)
        states = runner.forward(chunks)
        # Only now, so that after an exception above no sequence counts tokens that were
        # not computed.
        self.scheduler.commit(chunks)
        for sequence in [chunk.sequence for chunk in chunks if not chunk.sequence.is_announced]:
            sequence.is_announced = True
            written = self.scheduler.count_written_tokens(sequence)
            scheduled = Scheduled(sequence.request.id, sequence.cached_tokens, written)
            outputs.append(SequenceOutput(sequence.key, scheduled))
        for index, chunk in enumerate(chunks):
            outputs += self._compute_prompt_logprobs(chunk, states, index)
        indices = [
            index for index, chunk in enumerate(chunks) if chunk.end == chunk.sequence.num_tokens
        ]
        if indices:
            outputs += self._sample([chunks[index].sequence for index in indices], states, indices)
        return outputs

    def allocate(self) -> None:
        """Allocate the KV cache, which otherwise exists from the first step on."""
        self._get_runner()

    def _get_runner(self) -> Runner:
        if self._runner is None:
            # Built in the first step, and again after a sleep has freed its memory.
            self._runner = self._model.build_runner(
                self._pool.size + 1, self._slots.size if self._slots else 0
            )
        return self._runner

    @property
    def kv_cache_usage(self) -> float:
        """Share of the blocks that sequences hold."""
        return 1 - self._pool.num_free / self._pool.size

    def offload(self, max_blocks: int = 1) -> bool:
        """Write at most `max_blocks` computed blocks to the store. Returns whether more
        could be written.
        """
        if self._files is None or self._runner is None:
            return False
        return self._files.offload(self._pool.find_block, self._runner.save, max_blocks)

    def replace_weights(self, version: str) -> None:
        """Recompute running sequences with new weights. Offload ends: its files belong
        to the startup weights.
        """
        self.version = version
        self._files = None
        self.scheduler.restart_all()
        self.scheduler.disable_offload()

    def close(self) -> None:
        """Free the pool's memory; the next step allocates it again and recomputes
        running sequences.
        """
        self.scheduler.restart_all()
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def recover(self, error: BaseException) -> list[SequenceOutput]:
        """Recover from a step that raised `error`: all running sequences are computed
        again, with an empty cache, and the halves of the step apart from each other,
        until the one that raises is alone and fails.

        If the model cannot compute a token of its own either, `failure` is set, and all
        running sequences fail.

        Returns the outputs of the step before the error, and the failures.
        """
        outputs = self._outputs
        chunks = self._chunks
        self._outputs = []
        message = f"The engine failed while computing a step: {describe_error(error)}"
        if not chunks:
            # The scheduler itself raised, and would do so again.
            return outputs + _fail(self.scheduler.reset(), message)
        try:
            self.scheduler.restart_all()
            self.compute_probe()
        except BaseException:
            log.exception("the model cannot compute a token either")
            self.failure = message
            return outputs + _fail([chunk.sequence for chunk in chunks], message)
        if len(chunks) > 1:
            self.scheduler.isolate(chunks)
            return outputs
        (chunk,) = chunks
        self.scheduler.remove(chunk.sequence)
        return outputs + _fail([chunk.sequence], message)

    def compute_probe(self) -> None:
        """Compute one token of no request, while no sequence runs. Raises what the model
        raises.
        """
        request = TokenRequest(id="probe", prompt=(0,), max_tokens=1)
        sequence = Sequence(
            -1, request, vocab=self._model.vocab, max_model_len=2, rng_factory=_build_no_rng
        )
        sequence.blocks = self._pool.allocate(1)
        sequence.state_slot = self._slots.allocate() if self._slots else None
        states = self._get_runner().forward([Chunk(sequence, 0, 1)])
        states.compute_last_logits([0])
        self._pool.release(sequence.blocks)
        if self._slots and sequence.state_slot is not None:
            self._slots.release(sequence.state_slot)

    def _compute_prompt_logprobs(
        self, chunk: Chunk, states: StepStates, index: int
    ) -> list[SequenceOutput]:
        """Compute the logprob of each prompt token that follows a token of the chunk."""
        sequence = chunk.sequence
        scores = chunk.sequence.prompt_logprobs
        if scores is None:
            return []
        stop = min(chunk.end, sequence.num_prompt_tokens - 1)
        # A preempted sequence computes some tokens for the second time; their logprobs
        # are known.
        for begin in range(max(chunk.begin, len(scores) - 1), stop, _PROMPT_LOGPROBS_PER_BATCH):
            end = min(begin + _PROMPT_LOGPROBS_PER_BATCH, stop)
            rows = log_softmax(
                states.compute_span_logits(index, begin - chunk.begin, end - chunk.begin)
            )
            targets = sequence.tokens[begin + 1 : end + 1]
            count = sequence.request.prompt_logprobs or 0
            scores += [
                build_logprob(row, token, count) for row, token in zip(rows, targets, strict=True)
            ]
        if len(scores) < sequence.num_prompt_tokens:
            return []
        sequence.prompt_logprobs = None
        return [SequenceOutput(sequence.key, PromptLogprobs(sequence.request.id, tuple(scores)))]

    def _sample(
        self, sequences: list[Sequence], states: StepStates, indices: list[int]
    ) -> list[SequenceOutput]:
        """Sample a token for each sequence. indices: indices of their chunks in the
        step.
        """
        masks = [sequence.matcher.mask() if sequence.matcher else None for sequence in sequences]
        rows = states.sample(indices, [sequence.sampling for sequence in sequences], masks)
        tokens = list(rows.tokens)
        for row, sequence in enumerate(sequences):
            if sequence.reasoning_budget:
                tokens[row] = _apply_reasoning_budget(sequence, masks[row], tokens[row])
            if sequence.matcher and tokens[row] != NO_TOKEN:
                tokens[row] = sequence.matcher.replace(tokens[row])
        scores = rows.compute_logprobs(tokens)
        outputs: list[SequenceOutput] = []
        ended: list[Sequence] = []
        invalid: list[Sequence] = []
        for row, (sequence, token, value) in enumerate(zip(sequences, tokens, scores, strict=True)):
            if token != NO_TOKEN:
                if sequence.version != self.version:
                    sequence.version = self.version
                    outputs.append(
                        SequenceOutput(
                            sequence.key, WeightVersionSet(sequence.request.id, self.version)
                        )
                    )
                outputs.append(
                    SequenceOutput(sequence.key, Sampled(sequence.request.id, token, value))
                )
                end = sequence.append(token)
            elif sequence.matcher and sequence.matcher.is_broken:
                end = sequence.build_grammar_failure()
            elif not rows.is_finite(row):
                end = Failed(sequence.request.id, "The model returned invalid probabilities.")
                invalid.append(sequence)
            else:
                # The logits are finite, so the masks allow no token.
                end = Ended(sequence.request.id, FinishReason.STOP)
            if end:
                outputs.append(SequenceOutput(sequence.key, end))
                ended.append(sequence)
        # Removed last: if anything above raises, all of them still run, and are computed
        # again.
        for sequence in invalid:
            self.scheduler.discard(sequence)
        for sequence in ended:
            self.scheduler.remove(sequence)
        return outputs


def _apply_reasoning_budget(sequence: Sequence, mask: bytes | None, token: int) -> int:
    """Return the token that a spent reasoning budget forces, unless the grammar rejects
    it; else `token`.
    """
    forced = sequence.reasoning_budget.forced_token if sequence.reasoning_budget else None
    if forced is None:
        return token
    if is_allowed(mask, forced):
        return forced
    if sequence.reasoning_budget:
        sequence.reasoning_budget.reject_forced()
    return token


def _fail(sequences: abc.Sequence[Sequence], message: str) -> list[SequenceOutput]:
    return [
        SequenceOutput(sequence.key, Failed(sequence.request.id, message)) for sequence in sequences
    ]


def _build_no_rng(seed: int | None) -> Callable[[], float]:
    """Build the random generator of a sequence that is never sampled."""
    del seed
    return float
