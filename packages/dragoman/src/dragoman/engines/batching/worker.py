"""The thread that runs the engine's steps: it takes commands from a queue and passes
outputs to a callback.

No lock is held during a step, so submitting a command never blocks.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections import abc, deque
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from ...core.token_engine import (
    Failed,
    Scheduled,
)
from ..failure_message import describe_error
from .model_protocols import VisionRunner
from .sequence import Sequence
from .stepper import SequenceOutput, Stepper

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

    A step that raises fails only the sequence that caused it, see `Stepper.recover`. If
    no step can be computed any more, all sequences fail and the thread ends.

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
        self.failure: str | None = None
        """Why no step can be computed any more; None while the engine works."""

    def start(self) -> None:
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def submit(self, command: Command) -> None:
        """Enqueue a command; it is handled before the next step. Never blocks."""
        self._commands.append(command)
        self._wake.set()

    def count_cached_tokens(self, prompt: abc.Sequence[int], cache_salt: str) -> int:
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
            except BaseException as error:  # a panic in a Rust library is not an Exception
                log.exception("a step failed")
                # Its frames have the tensors of the step.
                traceback.clear_frames(error.__traceback__)
                outputs = self._recover(error)
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

    def _recover(self, error: BaseException) -> list[SequenceOutput]:
        """Recover from a step that raised; if that is impossible, fail all sequences
        and stop.
        """
        outputs = self._stepper.recover(error)
        self.failure = self._stepper.failure
        if self.failure is None:
            return outputs
        self._stopping = True
        self._handle_commands()
        ended = {output.key for output in outputs if output.is_last}
        return outputs + [
            SequenceOutput(key, Failed(sequence.request.id, self.failure))
            for key, sequence in self._sequences.items()
            if key not in ended
        ]

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
                    except BaseException as error:
                        log.exception(
                            "the images of %s could not be processed", sequence.request.id
                        )
                        failed = Failed(
                            sequence.request.id,
                            f"The model failed to process an image: {describe_error(error)}",
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
