"""The event loop's side: a TokenEngine over a Worker. Knows nothing of HTTP or text, nor what model computes."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Tokens
from contextlib import suppress
from functools import partial

import msgspec
from msgspec import Struct

from ...core.engine import (
    Capabilities,
    Deliver,
    Ended,
    Failed,
    Health,
    PromptScored,
    Sampled,
    Scheduled,
    TokenOutput,
    TokenRequest,
    check_prompt,
)
from ...core.errors import EngineError, QueueFull, RequestError, Unsupported
from ...core.events import FinishReason
from .adapters import Adapter, AdapterShelf
from .capabilities import capabilities
from .model import Model, Sight
from .offload import BlockFiles
from .sampling import Draws
from .scheduler import SchedulerConfig
from .sequence import Sequence
from .steering import Closed, Steering
from .stepper import Output, Stepper
from .worker import Abort, Add, Hold, Task, Worker


class EngineConfig(Struct, frozen=True):
    """max_model_len: tokens of prompt and answer together. num_kv_tokens: what the pool of keys and values
    holds; its memory is taken as it is used. max_num_waiting: how many may queue before Overloaded is raised.
    stall_after: seconds without a step, while there is work, after which the engine is not ready. step_timeout: those
    after which the step hangs, and the engine has failed.
    """

    max_model_len: int
    num_kv_tokens: int = 131072
    max_num_waiting: int = 1024
    stall_after: float = 60.0
    step_timeout: float = 300.0
    scheduler: SchedulerConfig = SchedulerConfig()


class _Live:
    """A sequence that has not ended, and what it has been told."""

    __slots__ = ("announced", "deliver", "id", "prompt_tokens", "unscored")

    def __init__(self, request: TokenRequest, deliver: Deliver) -> None:
        self.id, self.deliver = request.id, deliver
        self.announced = False
        self.unscored = request.prompt_logprobs is not None
        self.prompt_tokens = len(request.prompt)

    def note(self, output: TokenOutput) -> None:
        self.announced = True
        if isinstance(output, PromptScored):
            self.unscored = False

    def ending(self) -> list[TokenOutput]:
        """What it is told when it ends from outside: an abort is no failure; scores are missing."""
        outputs: list[TokenOutput] = [] if self.announced else [Scheduled(self.id, 0)]
        if self.unscored:
            outputs.append(PromptScored(self.id, (None,) * self.prompt_tokens))
        return [*outputs, Ended(self.id, FinishReason.ABORT)]


class BatchingEngine:
    """Continuous batching on one thread of its own. A `core.engine.TokenEngine`.

    A step that raises fails the sequences in it; the engine goes on. With prompt_logprobs the prefix cache is not
    read. name: of the thread. adapters: those that the model can take up beside its weights; None where it cannot.
    files: where blocks are kept beyond the pool, and beyond this process.
    sight: what it sees with; None where it does not.
    """

    def __init__(
        self,
        model: Model,
        config: EngineConfig,
        draws: Draws,
        clock: Callable[[], float] = time.monotonic,
        *,
        name: str = "engine",
        adapters: AdapterShelf | None = None,
        files: BlockFiles | None = None,
        sight: Sight | None = None,
    ) -> None:
        if config.max_model_len > config.num_kv_tokens:
            raise EngineError(
                f"max_model_len {config.max_model_len} is more than the {config.num_kv_tokens} tokens of num_kv_tokens"
            )
        self._model = model
        self._config = config
        self._draws = draws
        self._clock = clock
        self._name = name
        self._adapters = adapters
        self._files = files
        self._sight = sight
        self._loop: asyncio.AbstractEventLoop | None = None
        self._worker: Worker | None = None
        self._live: dict[int, _Live] = {}
        self._keys: dict[str, int] = {}
        self._arrived = 0
        self._busy_since = 0.0
        self._held = False
        self._waiting: set[asyncio.Future[None]] = set()
        self._emptied: list[asyncio.Future[None]] = []
        self.steering = Steering(self, model)
        """Orders of an administrator."""
        self.closed: Closed | None = None
        """Why nothing new is taken at present."""
        self._capabilities = capabilities(model.vocab, lora=adapters is not None, images=sight is not None)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def max_model_len(self) -> int:
        return self._config.max_model_len

    @property
    def vocab_size(self) -> int:
        return self._model.vocab

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        # Other weights than those of the files make other keys and values.
        files = None if self.steering.renewed else self._files
        if files:
            await asyncio.to_thread(files.open)
        version = self.steering.weight_version
        stepper = Stepper(self._model, self._config.scheduler, self._config.num_kv_tokens, files, version)
        self._worker = Worker(stepper, self._post, self._clock, self._name, self._sight)
        self._worker.submit(Hold(self._held))
        self._worker.start()

    async def stop(self) -> None:
        worker, self._worker = self._worker, None
        if worker is None:
            return
        if self._silence(worker) > self._config.step_timeout:
            # A thread cannot be killed. If its step ever ends, nobody hears of it.
            worker.abandon()
        else:
            worker.stop()
            await asyncio.to_thread(worker.join)
        if self._files:
            await asyncio.to_thread(self._files.close)
        live, self._live = self._live, {}
        self._keys.clear()
        for one in live.values():
            self._tell(one, Failed(one.id, "The engine is shutting down."))
        for waiting in [*self._waiting, *self._emptied]:
            if not waiting.done():
                waiting.set_exception(EngineError("The engine is shutting down."))

    def health(self) -> Health:
        worker, live = self._worker, len(self._live)
        if worker is None:
            return Health(ready=False, reason="the engine is not running", waiting=live)
        if not worker.alive:
            return Health(ready=False, reason="the engine's thread has died", waiting=live, failed=True)
        running = min(worker.running, live)
        silent, config = self._silence(worker), self._config
        if silent > min(config.stall_after, config.step_timeout):
            hangs, reason = silent > config.step_timeout, f"no step completed for {silent:.0f} s"
            return Health(ready=False, reason=reason, waiting=live - running, running=running, failed=hangs)
        return Health(waiting=live - running, running=running)

    def _silence(self, worker: Worker) -> float:
        """Seconds for which there has been work to do, and no step has ended."""
        if not self._live or self._held:
            return 0.0
        return self._clock() - max(worker.last_step, self._busy_since)

    def cached_tokens(self, prompt: Tokens[int], cache_salt: str) -> int:
        """As PrefixCache.cached_tokens."""
        return 0 if self._worker is None else self._worker.cached_tokens(prompt, cache_salt)

    async def reset_prefix_cache(self) -> None:
        """As PrefixCache.reset_prefix_cache; before the next step."""
        await self.between_steps(lambda stepper: stepper.scheduler.forget())

    def add(self, request: TokenRequest, deliver: Deliver) -> None:
        """As TokenEngine.add. RequestError if a token id is not of this vocabulary, ContextTooLong if the
        prompt leaves no room for an answer."""
        if self._worker is None:
            raise EngineError("The engine is not running.")
        if self.closed is not None:
            raise self.closed.error()
        if request.id in self._keys:
            raise ValueError(f"a sequence {request.id!r} is already running")
        check_request(request, self.vocab_size, self.max_model_len)
        adapter = self._adapter(request)
        if request.images and self._sight is None:
            raise Unsupported("This engine does not accept images.", param="messages")
        if len(self._live) >= self._config.scheduler.max_num_seqs + self._config.max_num_waiting:
            raise QueueFull(f"{len(self._live)} sequences are already queued or running; retry later.")
        if not self._live:
            self._busy_since = self._clock()
        self._arrived += 1
        key, most = self._arrived, self.max_model_len
        sequence = Sequence(key, request, vocab=self.vocab_size, max_model_len=most, draws=self._draws, adapter=adapter)
        self._keys[request.id] = key
        self._live[key] = _Live(request, deliver)
        self._worker.submit(Add(sequence))

    def _adapter(self, request: TokenRequest) -> Adapter | None:
        """Raises Unsupported for what else a request brings, RequestError for an adapter that has just gone."""
        extras = dict(request.extras)
        asked = extras.pop("lora", None) if self._adapters else None
        if extras:
            raise Unsupported(f"This engine does not support {next(iter(extras))}.", param=next(iter(extras)))
        if asked is None or self._adapters is None:
            return None
        name = msgspec.json.decode(asked, type=str)
        found = self._adapters.find(name)
        if found is None:
            raise RequestError(f"The adapter `{name}` is not loaded.", param="model")
        return found

    def abort(self, id: str) -> None:
        key = self._keys.pop(id, None)
        if key is not None:
            del self._live[key]
            if self._worker:
                self._worker.submit(Abort(key))
            self._look_whether_empty()

    def end_all(self) -> int:
        """Whatever waits or runs ends now with what it has said; how many there were."""
        live = list(self._live.values())
        for one in live:
            self.abort(one.id)
            for output in one.ending():
                self._tell(one, output)
        return len(live)

    async def drained(self) -> None:
        """Return when nothing waits or runs. Raises EngineError if the engine stops before."""
        while self._live:
            emptied: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._emptied.append(emptied)
            await emptied

    def hold(self, *, held: bool) -> None:
        """Whether steps rest, from the next one on."""
        self._held, self._busy_since = held, self._clock()
        if self._worker is not None:
            self._worker.submit(Hold(held))

    async def between_steps(self, work: Callable[[Stepper], None]) -> None:
        """Have this done on the worker's thread, after all that was ordered before. Raises what it raises."""
        if self._worker is None:
            raise EngineError("The engine is not running.")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._waiting.add(done)
        self._worker.submit(Task(work, partial(_settle, loop, done)))
        try:
            await done
        finally:
            self._waiting.discard(done)

    def _look_whether_empty(self) -> None:
        if not self._live and self._emptied:
            emptied, self._emptied = self._emptied, []
            for each in emptied:
                if not each.done():
                    each.set_result(None)

    def _post(self, outputs: list[Output]) -> None:
        """Called on the worker's thread."""
        try:
            if self._loop:
                self._loop.call_soon_threadsafe(self._dispatch, outputs)
        except RuntimeError:
            # The loop was closed without `stop`: there is nobody left to compute for.
            if self._worker:
                self._worker.stop()

    def _dispatch(self, outputs: list[Output]) -> None:
        for output in outputs:
            one = self._live.get(output.key)
            if one is None:
                continue
            if type(output.output) is not Sampled:
                one.note(output.output)
            if output.last:
                del self._live[output.key]
                del self._keys[one.id]
            self._tell(one, output.output)
        self._look_whether_empty()

    def _tell(self, one: _Live, output: TokenOutput) -> None:
        """A receiver that raises takes nothing away from the others."""
        try:
            one.deliver(output)
        except Exception as error:
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"the receiver of {one.id} raised", "exception": error}
            )


def _settle(loop: asyncio.AbstractEventLoop, done: asyncio.Future[None], error: Exception | None) -> None:
    """Called on the worker's thread."""

    def tell() -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    with suppress(RuntimeError):
        # The loop was closed without `stop`: nobody waits any more.
        loop.call_soon_threadsafe(tell)


def seeded(seed: int | None) -> Callable[[], float]:
    """A generator of its own for a sequence. The text of a seed tells -1 from 1, where the number would not."""
    return random.Random(None if seed is None else str(seed)).random


def check_request(request: TokenRequest, vocab: int, max_model_len: int) -> None:
    """Raises RequestError for what no engine over this vocabulary can take, ContextTooLong as `check_prompt`."""
    check_prompt(request.prompt, vocab, max_model_len)
    if request.max_tokens < 1:
        raise RequestError("max_tokens must be at least 1", param="max_tokens")
    sampling = request.sampling
    _check_ids((id for id, _ in sampling.logit_bias), vocab, "logit_bias")
    _check_ids(sampling.allowed_token_ids or (), vocab, "allowed_token_ids")


def _check_ids(ids: Iterable[int], vocab: int, param: str) -> None:
    for id in ids:
        if not 0 <= id < vocab:
            raise RequestError(f"{param} names token {id}, which is not in 0 to {vocab - 1}.", param=param)
