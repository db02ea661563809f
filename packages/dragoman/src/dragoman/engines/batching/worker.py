"""The engine's steps, and the thread that runs them: it takes commands from a queue and
passes outputs to a callback.

No lock is held during a step, so submitting a command never blocks.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Tokens

from msgspec import Struct
from msgspec.structs import replace

from ...core.control import INITIAL_WEIGHT_VERSION
from ...core.engine import (
    Ended,
    Failed,
    PromptLogprobs,
    Rejected,
    Sampled,
    Scheduled,
    TokenOutput,
    WeightVersionSet,
)
from ...core.events import FinishReason
from .blocks import BLOCK_SIZE, BlockPool, StateSlots
from .model import Model, Runner, StepStates, VisionRunner
from .offload import BlockFiles
from .sampler import NO_TOKEN, build_logprob, log_softmax
from .scheduler import Chunk, Scheduler, SchedulerConfig
from .sequence import Sequence, is_allowed

# Steps, without the thread: every call of `step` computes one step for all running
# sequences.

_PROMPT_LOGPROBS_PER_BATCH = 128
"""Prompt tokens per batch of logprobs: limits the memory of [tokens, vocab] doubles."""


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

    def step(self) -> list[SequenceOutput]:
        """Compute a step and return its outputs. If it raises anything, call `recover`."""
        chunks = self.scheduler.schedule()
        if not chunks:
            return []
        if self._runner is None:
            # Built in the first step, and again after a sleep has freed its memory.
            self._runner = self._model.build_runner(
                self._pool.size + 1, self._slots.size if self._slots else 0
            )
        # Restored before the forward pass, which reads these blocks as cached.
        for load in self.scheduler.take_loads():
            self._runner.restore(load.block, load.contents)
        states = self._runner.forward(chunks)
        # Only now, so that after an exception above no sequence counts tokens that were
        # not computed.
        self.scheduler.commit(chunks)
        outputs: list[SequenceOutput] = []
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

    def recover(self) -> list[SequenceOutput]:
        """Recover from a step that raised: fail running sequences; waiting ones will
        run, with an empty cache.
        """
        failed = self.scheduler.reset()
        return [
            SequenceOutput(s.key, Failed(s.request.id, "The engine failed while computing a step."))
            for s in failed
        ]

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
            else:
                # The logits are finite, so the masks allow no token.
                end = Ended(sequence.request.id, FinishReason.STOP)
            if end:
                outputs.append(SequenceOutput(sequence.key, end))
                ended.append(sequence)
        # Removed last: if anything above raises, all of them still run, and `recover`
        # fails them.
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


log = logging.getLogger(__name__)

_UNLIMITED = 1 << 30

Post = Callable[[list[SequenceOutput]], None]


class AddSequence(Struct, frozen=True):
    sequence: Sequence


class AbortSequence(Struct, frozen=True):
    key: int


class Pause(Struct, frozen=True):
    """Pauses or resumes steps."""

    paused: bool


class StepTask(Struct, frozen=True):
    """A function to run between two steps.

    on_done: called on the worker thread with the exception that it raised, or None.
    """

    run: Callable[[Stepper], None]
    on_done: Callable[[Exception | None], None]


Command = AddSequence | AbortSequence | Pause | StepTask


class Worker:
    """A thread that computes steps until it is stopped.

    A step that raises fails only the sequences that ran in it: the next step begins
    with an empty cache.

    post: called on the worker thread, once per step, with all of its outputs.
    name: name of the thread.
    vision_runner: prepares images; None for a text-only model.
    """

    def __init__(
        self,
        stepper: Stepper,
        post: Post,
        clock: Callable[[], float],
        name: str,
        vision_runner: VisionRunner | None = None,
    ) -> None:
        self._stepper = stepper
        self._vision_runner = vision_runner
        self._post = post
        self._clock = clock
        self._commands: deque[Command] = deque()
        self._wake = threading.Event()
        self._stopping = False
        self._abandoned = False
        self._paused = False
        self._sequences: dict[int, Sequence] = {}
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.last_step_at = clock()
        """Monotonic time of the last step's end."""
        self.step_started_at: float | None = None
        """Monotonic time of the current step's start; None between steps."""
        self.num_running = 0
        """Number of sequences running at that time."""
        self.kv_cache_usage = 0.0
        """Share of the pool's blocks in use at that time, 0 to 1."""

    def start(self) -> None:
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def submit(self, command: Command) -> None:
        """Enqueue a command; it is handled before the next step. Never blocks."""
        self._commands.append(command)
        self._wake.set()

    def count_cached_tokens(self, prompt: Tokens[int], cache_salt: str) -> int:
        """See `core.engine.PrefixCache`. May be called on any thread."""
        return self._stepper.scheduler.count_cached_tokens(prompt, cache_salt)

    def stop(self) -> None:
        """Stop after the current step."""
        self._stopping = True
        self._wake.set()

    def abandon(self) -> None:
        """Stop without waiting: drop the outputs of the current step whenever it ends."""
        self._abandoned = True
        self.stop()

    def join(self, timeout: float) -> None:
        """Wait for the thread to end, at most `timeout` seconds."""
        self._thread.join(timeout)

    def _run(self) -> None:
        while not self._stopping:
            try:
                outputs = self._handle_commands()
                if not outputs and self._can_step:
                    outputs = self._run_step()
            except BaseException:  # a panic in a Rust library is not an Exception
                log.exception("a step failed")
                outputs = self._stepper.recover()
            if self._abandoned:
                return
            for output in outputs:
                if output.is_last:
                    self._sequences.pop(output.key, None)
            self.num_running = self._stepper.scheduler.num_running
            self.kv_cache_usage = self._stepper.kv_cache_usage
            self.last_step_at = self._clock()
            if outputs:
                self._post(outputs)
            has_more_blocks = self._offload(1)
            if not (has_more_blocks or self._can_step):
                self._wake.wait()
            # Cleared before the commands are read: a command that arrives in between
            # sets it again, so none is missed.
            self._wake.clear()
        # Blocks are written between steps only; what is left is written at the end.
        self._offload(_UNLIMITED)

    def _offload(self, max_blocks: int) -> bool:
        try:
            return self._stepper.offload(max_blocks)
        except BaseException:
            log.exception("the KV cache could not be saved to disk")
            return False

    def _handle_commands(self) -> list[SequenceOutput]:
        """Handle the commands that have arrived. Returns the failures of sequences
        whose images cannot be processed.
        """
        failures: list[SequenceOutput] = []
        while self._commands:
            match self._commands.popleft():
                case AddSequence(sequence):
                    # Before it is scheduled, so that a faulty image fails no other
                    # sequence.
                    try:
                        if self._vision_runner is not None and sequence.request.images:
                            self._vision_runner.prepare_images(sequence.request.images)
                    except BaseException:
                        log.exception(
                            "the images of %s could not be processed", sequence.request.id
                        )
                        failed = Failed(
                            sequence.request.id,
                            "The model failed to process an image of this request.",
                        )
                        failures.append(SequenceOutput(sequence.key, failed))
                        continue
                    self._sequences[sequence.key] = sequence
                    self._stepper.scheduler.add(sequence)
                case AbortSequence(key):
                    if aborted := self._sequences.pop(key, None):
                        self._stepper.scheduler.remove(aborted)
                case Pause(paused):
                    self._paused = paused
                case StepTask(run, on_done):
                    # An exception goes to the caller; it is not a failed step.
                    try:
                        run(self._stepper)
                    except Exception as error:
                        on_done(error)
                    else:
                        on_done(None)
        return failures

    def _run_step(self) -> list[SequenceOutput]:
        self.step_started_at = started_at = self._clock()
        try:
            outputs = self._stepper.step()
        finally:
            self.step_started_at = None
        # The step announces the sequences that it takes from the queue before its other
        # outputs.
        for index, output in enumerate(outputs):
            if not isinstance(output.output, Scheduled):
                break
            scheduled = replace(output.output, elapsed=self._clock() - started_at)
            outputs[index] = SequenceOutput(output.key, scheduled)
        return outputs

    @property
    def _can_step(self) -> bool:
        return self._stepper.scheduler.has_work and not self._paused
