"""The thread that computes. It hears of work through a queue and tells of results through one callable.

Nothing that is held during a step is needed to give it work: whoever does never waits.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Tokens

from msgspec import Struct

from ...core.engine import Failed
from .model import Sight
from .sequence import Sequence
from .stepper import Output, Stepper

log = logging.getLogger(__name__)

_ALL = 1 << 30

Post = Callable[[list[Output]], None]


class Add(Struct, frozen=True):
    sequence: Sequence


class Abort(Struct, frozen=True):
    key: int


class Hold(Struct, frozen=True):
    """Whether steps rest until further notice."""

    held: bool


class Task(Struct, frozen=True):
    """To be done between two steps. done: called with what it raised, or None, on the worker's thread."""

    work: Callable[[Stepper], None]
    done: Callable[[Exception | None], None]


Order = Add | Abort | Hold | Task


class Worker:
    """Steps until it is told to stop. post: called on the thread, once a step, with all that came of it.

    A step that raises fails the sequences that ran in it and nobody else: the next step begins on an empty
    cache. name: of the thread. sight: None for a model that sees nothing.
    """

    def __init__(
        self, stepper: Stepper, post: Post, clock: Callable[[], float], name: str, sight: Sight | None = None
    ) -> None:
        self._stepper = stepper
        self._sight = sight
        self._post = post
        self._clock = clock
        self._inbox: deque[Order] = deque()
        self._wake = threading.Event()
        self._stopping = False
        self._abandoned = False
        self._held = False
        self._sequences: dict[int, Sequence] = {}
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.last_step = clock()
        """When a step ended last."""
        self.running = 0
        """Sequences that were running then."""

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def submit(self, order: Order) -> None:
        """Obeyed before the next step. Never blocks."""
        self._inbox.append(order)
        self._wake.set()

    def cached_tokens(self, prompt: Tokens[int], cache_salt: str) -> int:
        """As `core.engine.PrefixCache`. May be asked on any thread."""
        return self._stepper.scheduler.cached_tokens(prompt, cache_salt)

    def stop(self) -> None:
        """End after the present step."""
        self._stopping = True
        self._wake.set()

    def abandon(self) -> None:
        """Do nothing more, and tell nobody, whenever the present step may end."""
        self._abandoned = True
        self.stop()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping:
            try:
                outputs = self._turn()
            except Exception:
                log.exception("a step failed")
                outputs = self._stepper.recover()
            if self._abandoned:
                return
            self._report(outputs)
            self._rest()
        self._spill(_ALL)

    def _rest(self) -> None:
        """Between two steps: nothing is waited for as long as there is something to do."""
        more = self._spill(1)
        if not (more or self._may_step):
            self._wake.wait()
        self._wake.clear()

    def _spill(self, most: int) -> bool:
        try:
            return self._stepper.spill(most)
        except Exception:
            log.exception("the KV cache could not be saved to disk")
            return False

    def _turn(self) -> list[Output]:
        blind: list[Output] = []
        while self._inbox:
            order = self._inbox.popleft()
            if isinstance(order, Add) and not self._sees(order.sequence):
                failed = Failed(order.sequence.request.id, "The model failed to process an image of this request.")
                blind.append(Output(order.sequence.key, failed))
            else:
                self._obey(order)
        return blind or (self._stepper.step() if self._may_step else [])

    def _sees(self, sequence: Sequence) -> bool:
        """Before it is scheduled: whatever is wrong with its images, nobody else's step fails of it."""
        if self._sight is None or not sequence.request.images:
            return True
        try:
            self._sight.look(sequence.request.images)
        except Exception:
            log.exception("the images of %s could not be processed", sequence.request.id)
            return False
        return True

    @property
    def _may_step(self) -> bool:
        return self._stepper.scheduler.has_work and not self._held

    def _obey(self, order: Order) -> None:
        match order:
            case Add(sequence):
                self._sequences[sequence.key] = sequence
                self._stepper.scheduler.add(sequence)
            case Abort(key):
                sequence = self._sequences.pop(key, None)
                if sequence:
                    self._stepper.scheduler.remove(sequence)
            case Hold(held):
                self._held = held
            case Task():
                self._perform(order)

    def _perform(self, task: Task) -> None:
        """What it raises is told to who ordered it, and is no failure of a step."""
        try:
            task.work(self._stepper)
        except Exception as error:
            task.done(error)
        else:
            task.done(None)

    def _report(self, outputs: list[Output]) -> None:
        for output in outputs:
            if output.last:
                self._sequences.pop(output.key, None)
        self.running = self._stepper.scheduler.num_running
        self.last_step = self._clock()
        if outputs:
            self._post(outputs)
