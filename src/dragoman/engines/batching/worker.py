"""The worker thread. It receives commands through a queue and reports outputs through one callable.

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

from ...core.engine import Failed, Scheduled
from .model import VisionRunner
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
    """A thread that steps until it is stopped.

    A step that raises fails only the sequences that ran in it: the next step begins with an empty cache.

    post: called on the worker thread, once a step, with all of its outputs.
    name: of the thread.
    vision_runner: None for a text-only model.
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
        self.num_running = 0
        self.kv_cache_usage = 0.0
        """Sequences running at that time."""

    def start(self) -> None:
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def submit(self, command: Command) -> None:
        """Enqueue a command; it is handled before the next step. Never blocks."""
        self._commands.append(command)
        self._wake.set()

    def cached_tokens(self, prompt: Tokens[int], cache_salt: str) -> int:
        """As `core.engine.PrefixCache`. May be called on any thread."""
        return self._stepper.scheduler.count_cached_tokens(prompt, cache_salt)

    def stop(self) -> None:
        """Stop after the current step."""
        self._stopping = True
        self._wake.set()

    def abandon(self) -> None:
        """Stop without waiting: drop the outputs of the current step whenever it ends."""
        self._abandoned = True
        self.stop()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping:
            try:
                outputs = self._run_step()
            except BaseException:  # a panic of a library in Rust is no Exception
                log.exception("a step failed")
                outputs = self._stepper.recover()
            if self._abandoned:
                return
            self._report(outputs)
            self._wait_for_work()
        # Blocks are written between steps only; what is left is written at the end.
        self._offload(_UNLIMITED)

    def _wait_for_work(self) -> None:
        """Handle commands between two steps; blocks only while there is no work."""
        has_more = self._offload(1)
        if not (has_more or self._can_step):
            self._wake.wait()
        # Cleared before the commands are read: one that arrives in between sets it again, so that none is missed.
        self._wake.clear()

    def _offload(self, max_blocks: int) -> bool:
        try:
            return self._stepper.offload(max_blocks)
        except BaseException:
            log.exception("the KV cache could not be saved to disk")
            return False

    def _run_step(self) -> list[SequenceOutput]:
        failures: list[SequenceOutput] = []
        while self._commands:
            command = self._commands.popleft()
            if isinstance(command, AddSequence) and not self._prepare_images(command.sequence):
                failed = Failed(command.sequence.request.id, "The model failed to process an image of this request.")
                failures.append(SequenceOutput(command.sequence.key, failed))
            else:
                self._handle(command)
        if failures or not self._can_step:
            return failures
        began_at = self._clock()
        outputs = self._stepper.step()
        # The step announces the sequences that it takes from the queue before its other outputs.
        for index, output in enumerate(outputs):
            if not isinstance(output.output, Scheduled):
                break
            scheduled = replace(output.output, elapsed=self._clock() - began_at)
            outputs[index] = SequenceOutput(output.key, scheduled)
        return outputs

    def _prepare_images(self, sequence: Sequence) -> bool:
        """Prepare the images of a sequence before it is scheduled, so that their faults fail no other sequence."""
        if self._vision_runner is None or not sequence.request.images:
            return True
        try:
            self._vision_runner.prepare_images(sequence.request.images)
        except BaseException:
            log.exception("the images of %s could not be processed", sequence.request.id)
            return False
        return True

    @property
    def _can_step(self) -> bool:
        return self._stepper.scheduler.has_work and not self._paused

    def _handle(self, command: Command) -> None:
        match command:
            case AddSequence(sequence):
                self._sequences[sequence.key] = sequence
                self._stepper.scheduler.add(sequence)
            case AbortSequence(key):
                sequence = self._sequences.pop(key, None)
                if sequence:
                    self._stepper.scheduler.remove(sequence)
            case Pause(paused):
                self._paused = paused
            case StepTask():
                self._run_task(command)

    def _run_task(self, task: StepTask) -> None:
        """Run a task. Its exception goes to its caller and is not a failed step."""
        try:
            task.run(self._stepper)
        except Exception as error:
            task.on_done(error)
        else:
            task.on_done(None)

    def _report(self, outputs: list[SequenceOutput]) -> None:
        for output in outputs:
            if output.is_last:
                self._sequences.pop(output.key, None)
        self.num_running = self._stepper.scheduler.num_running
        self.kv_cache_usage = self._stepper.kv_cache_usage
        self.last_step_at = self._clock()
        if outputs:
            self._post(outputs)
