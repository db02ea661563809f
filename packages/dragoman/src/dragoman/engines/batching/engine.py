"""The batching engine: a TokenEngine on the event loop, over a Worker on a thread."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import abc
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from ...core.capabilities import CONSTRAINT_FEATURES, Capabilities, Feature
from ...core.engine import Health
from ...core.errors import EngineError, Overloaded, ProcessUnusable, RequestError, Unsupported
from ...core.request_checks import check_ids, check_prompt
from ...core.token_engine import OutputCallback, Sampled, TokenRequest
from ..active_sequences import SHUTTING_DOWN, ActiveSequence, ActiveSequences
from ..failure_message import describe_error
from .adapter_registry import AdapterRegistry
from .control import BatchingControl, Rejection
from .engine_config import EngineConfig
from .kv_offload import BlockFiles
from .model_protocols import Model, VisionRunner
from .sampler import SAMPLING_PARAMETERS, RngFactory
from .sequence import Sequence
from .stepper import SequenceOutput, Stepper
from .worker import AbortSequence, AddSequence, Pause, StepTask, Worker

_FEATURES = frozenset(
    {
        *CONSTRAINT_FEATURES,
        Feature.TOOLS,
        Feature.LOGPROBS,
        Feature.PROMPT_LOGPROBS,
        Feature.LOGPROB_TOKEN_IDS,
        Feature.REASONING_BUDGET,
        Feature.TOKEN_IDS,
    }
)
_RETRY_AFTER = 1.0
"""Seconds after which a client may retry when the engine has failed."""
_PARAMETERS = SAMPLING_PARAMETERS | {
    "max_tokens",
    "stop",
    "include_stop",
    "ignore_eos",
    "truncate_prompt",
    "close_at_limit",
}


def build_capabilities(vocab: int, *, lora: bool = False, images: bool = False) -> Capabilities:
    """Build the capabilities.

    vocab: number of token ids.
    lora, images: whether the model supports adapters and image inputs.
    """
    optional = {Feature.LORA: lora, Feature.IMAGES: images}
    return Capabilities(
        features=_FEATURES | {feature for feature, supported in optional.items() if supported},
        parameters=_PARAMETERS | {"lora"} if lora else _PARAMETERS,
        max_logprobs=vocab,
    )


class _KeyedSequence(ActiveSequence):
    """A sequence and its key on the worker thread, where an aborted one may still have
    its id.
    """

    __slots__ = ("key",)

    def __init__(self, request: TokenRequest, deliver: OutputCallback, key: int) -> None:
        super().__init__(request, deliver)
        self.key = key


class BatchingEngine:
    """A `core.token_engine.TokenEngine` with continuous batching on its own thread.

    A step that raises fails the sequence that caused it; the engine goes on, unless it
    cannot compute any step: then it has failed, and needs a restart. A request with
    prompt_logprobs does not read the prefix cache.

    name: name of the worker thread.
    adapters: the registry of LoRA adapters; None if the model does not support them.
    files: offloads blocks to files beyond the pool and beyond this process; None
        disables offloading.
    vision_runner: prepares images; None for a text-only model.
    """

    def __init__(
        self,
        model: Model,
        config: EngineConfig,
        rng_factory: RngFactory,
        clock: Callable[[], float] = time.monotonic,
        *,
        name: str = "engine",
        adapters: AdapterRegistry | None = None,
        files: BlockFiles | None = None,
        vision_runner: VisionRunner | None = None,
    ) -> None:
        # A sequence alone in the cache has to fit, or preempting all others would not
        # let it finish.
        if config.max_model_len > config.num_kv_tokens:
            raise EngineError(
                f"max_model_len {config.max_model_len} is more than the {config.num_kv_tokens} "
                f"tokens of num_kv_tokens"
            )
        self._model = model
        self._config = config
        self._rng_factory = rng_factory
        self._clock = clock
        self._name = name
        self._adapters = adapters
        self._files = files
        self._vision_runner = vision_runner
        self._loop: asyncio.AbstractEventLoop | None = None
        self._worker: Worker | None = None
        self._has_failed = False
        self._active: ActiveSequences[_KeyedSequence] = ActiveSequences()
        self._num_arrived = 0
        self._busy_since = 0.0
        self._paused = False
        self._pending_tasks: set[asyncio.Future[None]] = set()
        self._idle_waiters: list[asyncio.Future[None]] = []
        self.control = BatchingControl(self, model)
        """Pause, sleep and weight updates."""
        self.rejection: Rejection | None = None
        """The reason why new requests are currently rejected; None while they are
        accepted.
        """
        self._capabilities = build_capabilities(
            model.vocab, lora=adapters is not None, images=vision_runner is not None
        )

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def num_kv_tokens(self) -> int:
        """Capacity of the KV cache, in tokens."""
        return self._config.num_kv_tokens

    @property
    def max_model_len(self) -> int:
        return self._config.max_model_len

    @property
    def vocab_size(self) -> int:
        return self._model.vocab

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        # The files belong to the startup weights; other weights give other keys and
        # values.
        files = None if self.control.has_new_weights else self._files
        if files:
            await asyncio.to_thread(files.open)
        version = self.control.weight_version
        stepper = Stepper(
            self._model, self._config.scheduler, self._config.num_kv_tokens, files, version
        )
        if self._config.allocates_at_start:
            stepper.allocate()
        if self._has_failed:
            await _check_recovery(stepper, self._config.step_timeout)
            self._has_failed = False
        self._worker = Worker(stepper, self._post, self._clock, self._name, self._vision_runner)
        # A pause outlasts a restart of the engine.
        self._worker.submit(Pause(self._paused))
        self._worker.start()

    async def stop(self) -> None:
        worker = self._worker
        self._worker = None
        if worker is None:
            return
        self._has_failed = worker.failure is not None
        worker.stop()
        remaining_seconds = self._config.step_timeout - self._compute_stalled_seconds(worker)
        if remaining_seconds > 0:
            await asyncio.to_thread(worker.join, remaining_seconds)
        if worker.is_alive:
            # Python cannot kill a thread. If the hung step ever ends, its outputs are
            # dropped.
            worker.abandon()
            self._has_failed = True
        if self._files:
            await asyncio.to_thread(self._files.close)
        self._active.fail_all()
        for future in [*self._pending_tasks, *self._idle_waiters]:
            if not future.done():
                future.set_exception(EngineError(SHUTTING_DOWN))

    def health(self) -> Health:
        worker = self._worker
        num_active = len(self._active)
        if worker is None:
            return Health(ready=False, reason="the engine is not running", waiting=num_active)
        if worker.failure is not None:
            return Health(ready=False, reason=worker.failure, waiting=num_active, failed=True)
        # The worker's loop catches everything, so this is a bug or the interpreter is
        # exiting; only a restart helps.
        if not worker.is_alive:
            return Health(
                ready=False, reason="the engine's thread has died", waiting=num_active, failed=True
            )
        # The worker's count is that of its last step; requests may have ended since.
        running = min(worker.num_running, num_active)
        stalled_seconds = self._compute_stalled_seconds(worker)
        config = self._config
        if stalled_seconds > min(config.stall_after, config.step_timeout):
            has_failed = stalled_seconds > config.step_timeout
            reason = f"no step completed for {stalled_seconds:.0f} s"
            return Health(
                ready=False,
                reason=reason,
                waiting=num_active - running,
                running=running,
                failed=has_failed,
            )
        return Health(
            waiting=num_active - running, running=running, kv_cache_usage=worker.kv_cache_usage
        )

    def _compute_stalled_seconds(self, worker: Worker) -> float:
        """Compute the seconds since the last step ended while there was work.

        A step that hangs counts even if its clients have left or the engine was paused
        meanwhile.
        """
        step_started_at = worker.step_started_at
        now = self._clock()
        step_seconds = 0.0 if step_started_at is None else now - step_started_at
        has_work = self._active and not self._paused
        return max(
            step_seconds, now - max(worker.last_step_at, self._busy_since) if has_work else 0.0
        )

    def count_cached_tokens(self, prompt: abc.Sequence[int], cache_salt: str) -> int:
        """See `PrefixCache.count_cached_tokens`."""
        return 0 if self._worker is None else self._worker.count_cached_tokens(prompt, cache_salt)

    async def reset_prefix_cache(self) -> None:
        """See `PrefixCache.reset_prefix_cache`; before the next step."""
        await self.run_between_steps(lambda stepper: stepper.scheduler.clear_cache())

    def add(self, request: TokenRequest, deliver: OutputCallback) -> None:
        """See `TokenEngine.add`.

        Raises:
            RequestError: a token id is outside the vocabulary, or the adapter is not
                loaded.
            ContextTooLong: the prompt leaves no room for output tokens.
            Unsupported: the engine does not support a field of the request.
            QueueFull: the limit of active sequences is reached.
            Overloaded: the engine has failed.
            EngineError: the engine is not running, is paused or asleep.
        """
        if self._worker is None:
            raise EngineError("The engine is not running.")
        if self._worker.failure is not None:
            raise Overloaded(
                "The model's engine failed and is being restarted.", retry_after=_RETRY_AFTER
            )
        if self.rejection is not None:
            raise self.rejection.build_error()
        check_request(request, self.vocab_size, self.max_model_len)
        for param in request.extras.list_set_fields():
            if param != "lora" or self._adapters is None:
                raise Unsupported(f"This engine does not support {param}.", param=param)
        name = request.extras.lora
        adapter = None
        if name is not None and self._adapters is not None:
            adapter = self._adapters.find(name)
            if adapter is None:
                raise RequestError(f"The LoRA adapter `{name}` is not loaded.", param="model")
        if request.images and self._vision_runner is None:
            raise Unsupported("This engine does not accept images.", param="messages")
        self._active.check_admission(
            request.id, self._config.scheduler.max_num_seqs + self._config.max_num_waiting
        )
        # No step ends while the engine is idle: without this its first request would
        # count as stalled at once.
        if not self._active:
            self._busy_since = self._clock()
        self._num_arrived += 1
        # Outputs are matched by key, not by id: the client may use an id again while
        # outputs of the aborted request are still in flight.
        key = self._num_arrived
        sequence = Sequence(
            key,
            request,
            vocab=self.vocab_size,
            max_model_len=self.max_model_len,
            rng_factory=self._rng_factory,
            adapter=adapter,
        )
        self._active.add(_KeyedSequence(request, deliver, key))
        self._worker.submit(AddSequence(sequence))

    def abort(self, id: str) -> None:
        sequence = self._active.pop(id)
        if sequence is not None:
            if self._worker:
                self._worker.submit(AbortSequence(sequence.key))
            self._notify_if_idle()

    def abort_all(self) -> int:
        """Abort all waiting and running sequences; they end with the output so far.
        Returns how many there were.
        """
        return self._active.abort_all(self.abort)

    async def wait_until_idle(self) -> None:
        """Wait until no sequence is waiting or running. Raises EngineError if the
        engine stops first.
        """
        while self._active:
            idle: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle_waiters.append(idle)
            await idle

    def set_paused(self, *, paused: bool) -> None:
        """Pause or resume steps, effective from the next step."""
        self._paused = paused
        self._busy_since = self._clock()
        if self._worker is not None:
            self._worker.submit(Pause(paused))

    async def run_between_steps(self, work: Callable[[Stepper], None]) -> None:
        """Run `work` on the worker thread, after all earlier tasks. Raises what it
        raises.
        """
        if self._worker is None:
            raise EngineError("The engine is not running.")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        # `stop` fails the tasks in this set that the worker did not reach, or their
        # callers would wait forever.
        self._pending_tasks.add(done)
        self._worker.submit(StepTask(work, partial(_complete_future, loop, done)))
        try:
            await done
        finally:
            self._pending_tasks.discard(done)

    def _notify_if_idle(self) -> None:
        if not self._active and self._idle_waiters:
            waiters = self._idle_waiters
            self._idle_waiters = []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def _post(self, outputs: list[SequenceOutput]) -> None:
        """Hand outputs to the event loop. Called on the worker thread."""
        try:
            if self._loop:
                self._loop.call_soon_threadsafe(self._dispatch, outputs)
        except RuntimeError:
            # The loop was closed without `stop`: no receiver is left.
            if self._worker:
                self._worker.stop()

    def _dispatch(self, outputs: list[SequenceOutput]) -> None:
        for sequence_output in outputs:
            output = sequence_output.output
            sequence = self._active.get(output.id)
            # The sequence was aborted while its output was in flight from the worker
            # thread.
            if sequence is None or sequence.key != sequence_output.key:
                continue
            if type(output) is Sampled:
                sequence.send(output)
            else:
                self._active.deliver(sequence, output)
        self._notify_if_idle()


async def _check_recovery(stepper: Stepper, max_seconds: float) -> None:
    """Raise ProcessUnusable if a failed model cannot compute a token again.

    max_seconds: time after which the computation counts as hung.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def compute() -> None:
        error = None
        try:
            stepper.compute_probe()
        except BaseException as raised:  # a panic in a Rust library is not an Exception
            error = ProcessUnusable(
                f"The engine does not recover in this process: {describe_error(raised)}"
            )
            error.__cause__ = raised
        _complete_future(loop, done, error)

    # A daemon thread of its own: on a device that hangs it never ends.
    threading.Thread(target=compute, name="engine-probe", daemon=True).start()
    try:
        async with asyncio.timeout(max_seconds):
            await done
    except TimeoutError:
        raise ProcessUnusable(
            f"The engine does not recover in this process: no token within {max_seconds:g} s"
        ) from None


def _complete_future(
    loop: asyncio.AbstractEventLoop, done: asyncio.Future[None], error: Exception | None
) -> None:
    """Complete the future of a StepTask on its event loop. Called on the worker thread."""

    def complete() -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    with suppress(RuntimeError):
        # The loop was closed without `stop`: no task awaits the future.
        loop.call_soon_threadsafe(complete)


def build_rng(seed: int | None) -> Callable[[], float]:
    """Build a random generator for one sequence. Seeded with text, since
    `random.Random` drops the sign of a number.
    """
    return random.Random(None if seed is None else str(seed)).random


def check_request(request: TokenRequest, vocab: int, max_model_len: int) -> None:
    """Validate a request. Raises RequestError for ids outside the vocabulary,
    ContextTooLong like `check_prompt`.
    """
    check_prompt(request.prompt, vocab, max_model_len)
    if request.max_tokens < 1:
        raise RequestError("max_tokens must be at least 1", param="max_tokens")
    sampling = request.sampling
    check_ids([id for id, _ in sampling.logit_bias], vocab, "logit_bias")
    check_ids(sampling.allowed_token_ids or (), vocab, "allowed_token_ids")
