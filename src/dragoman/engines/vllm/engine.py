"""vLLM's AsyncLLM as a TokenEngine: requests in, what it says of each handed on. Knows nothing of HTTP or text."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from ...core.engine import (
    Capabilities,
    Deliver,
    Ended,
    Failed,
    Health,
    Refused,
    Scheduled,
    TokenOutput,
    TokenRequest,
    check_prompt,
)
from ...core.errors import DragomanError, EngineError, Overloaded, QueueFull, RequestError
from ...core.events import FinishReason
from ...core.metrics import EngineStats
from . import backend
from .adapters import AdapterTable
from .asking import prompt, refusal, sampling_params
from .backend import AsyncLLM, SamplingParams
from .control import Steering
from .facts import Facts
from .reading import Reader
from .stats import Counters

log = logging.getLogger(__name__)


class _Live:
    """A request that vLLM has, or is about to get. sent: it has it. silent: nobody wants to hear of it any more."""

    def __init__(self, request: TokenRequest, deliver: Deliver) -> None:
        self.request, self.deliver, self.reader = request, deliver, Reader(request)
        self.silent = self.sent = False


class VllmEngine:
    """A `core.engine.TokenEngine`, `core.engine.AdapterLoader` and `core.metrics.Monitored`.

    arguments: of vLLM's AsyncEngineArgs. It may be started again after a stop, with nothing of what was before.
    """

    def __init__(self, arguments: Mapping[str, Any], facts: Facts, max_num_waiting: int) -> None:
        self._arguments, self._facts, self._max_num_waiting = arguments, facts, max_num_waiting
        self._capabilities = facts.capabilities()
        self._counters = Counters()
        self._adapters = AdapterTable()
        self.steering = Steering(self._running, self._end_all, sleeps=facts.sleeps)
        self._llm: AsyncLLM | None = None
        self._live: dict[str, _Live] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def max_model_len(self) -> int:
        return self._facts.max_model_len

    def stats(self) -> Sequence[EngineStats]:
        """As Monitored.stats: what vLLM's own scheduler counts."""
        return self._counters.all()

    async def start(self) -> None:
        """Reads the weights, which may take minutes. Raises EngineError."""
        try:
            self._llm = llm = await asyncio.to_thread(self._launch)
            # The first order to the core; from here on this event loop hears what it says, and of its death.
            await llm.get_supported_tasks()
            self.steering.awake()
            for adapter in self._adapters.known():
                await llm.add_lora(adapter)
        except Exception as error:
            # Whatever a worker of vLLM raised arrives here, often as no more than an Exception with its text.
            await self._shut()
            raise EngineError(f"vLLM failed to start: {error}") from error

    def _launch(self) -> AsyncLLM:
        arguments = backend.arguments.AsyncEngineArgs(**self._arguments)
        return backend.async_llm.AsyncLLM.from_engine_args(arguments, stat_loggers=[self._counters.logger()])

    async def stop(self) -> None:
        live, self._live = self._live, {}
        for one in live.values():
            one.silent = True
            one.deliver(Failed(one.request.id, "The engine is shutting down."))
        await self._shut()

    async def _shut(self) -> None:
        llm, self._llm = self._llm, None
        if llm is not None:
            await asyncio.to_thread(llm.shutdown)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def health(self) -> Health:
        running = sum(one.reader.begun for one in self._live.values())
        waiting = len(self._live) - running
        if self._llm is None:
            return Health(ready=False, reason="the engine is not running", waiting=waiting)
        if self._llm.errored:
            return Health(ready=False, reason="vLLM's engine core has died", waiting=waiting, failed=True)
        return Health(waiting=waiting, running=running)

    def add(self, request: TokenRequest, deliver: Deliver) -> None:
        """As TokenEngine.add; what vLLM itself refuses, RequestError or Refused, names the field."""
        llm = self._running()
        if request.id in self._live:
            raise ValueError(f"a sequence {request.id!r} is already running")
        check_prompt(request.prompt, self._facts.vocab_size, self.max_model_len)
        params = sampling_params(request, self._facts.eos, self._facts.marks)
        if self.health().waiting >= self._max_num_waiting:
            raise QueueFull(f"{self._max_num_waiting} sequences are already queued; retry later.")
        live = self._live[request.id] = _Live(request, deliver)
        self._spawn(self._run(llm, live, params))

    def abort(self, id: str) -> None:
        live = self._live.pop(id, None)
        if live is None:
            return
        live.silent = True
        if self._llm is not None and not self._llm.errored:
            # Not by cancelling the task: that loses a request whose way to vLLM has begun.
            self._spawn(self._abort(self._llm, id))

    async def _abort(self, llm: AsyncLLM, id: str) -> None:
        try:
            await llm.abort(id)
        except backend.ServerError:
            log.debug("vLLM died before it could abort %s", id)

    def cached_tokens(self, prompt: Sequence[int], cache_salt: str) -> None:
        """As PrefixCache.cached_tokens: vLLM does not tell before it has been asked to generate."""

    async def reset_prefix_cache(self) -> bool:
        """As PrefixCache.reset_prefix_cache: False while something runs."""
        return await self._running().reset_prefix_cache()

    def _running(self) -> AsyncLLM:
        if self._llm is None or self._llm.errored:
            raise EngineError("The engine is not running.")
        return self._llm

    def _end_all(self) -> list[str]:
        """What waits or runs now. Those whose way to vLLM has not begun end here."""
        ids: list[str] = []
        for id, live in list(self._live.items()):
            ids.append(id)
            if not live.sent:
                self._tell(live, Scheduled(id, 0))
                self._tell(live, Ended(id, FinishReason.ABORT))
                live.silent = True
                del self._live[id]
        return ids

    async def _run(self, llm: AsyncLLM, live: _Live, params: SamplingParams) -> None:
        """Hand on all that vLLM says, and what it fails with."""
        if live.silent:
            return
        request, live.sent = live.request, True
        try:
            stream = llm.generate(
                prompt(request),
                params,
                request.id,
                lora_request=self._adapters.asked_by(request),
                priority=request.priority if self._facts.prioritised else 0,
            )
            async for output in stream:
                for each in live.reader.read(output):
                    self._tell(live, each)
        except backend.ClientError as error:
            self._tell(live, Refused(request.id, refusal(error)))
        except backend.RetryableError as error:
            self._tell(live, Refused(request.id, Overloaded(str(error), code="engine_paused")))
        except backend.BusyError as error:
            self._tell(live, Refused(request.id, Overloaded(str(error))))
        except DragomanError as error:
            self._tell(live, Refused(request.id, error))
        except Exception:
            log.exception("vLLM failed on %s", request.id)
            self._tell(live, Failed(request.id, "The engine failed while computing this request."))
        finally:
            if self._live.get(request.id) is live:
                del self._live[request.id]

    def _tell(self, live: _Live, output: TokenOutput) -> None:
        """A receiver that raises takes nothing away from the others."""
        if live.silent:
            return
        try:
            live.deliver(output)
        except Exception as error:
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"the receiver of {live.request.id} raised", "exception": error}
            )

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def load_adapter(self, name: str, path: str) -> None:
        """As AdapterLoader.load_adapter."""
        if not self._facts.adapters:
            raise RequestError("vLLM was started without LoRA; set `enable_lora` in --vllm-args.", param="lora_name")
        adapter = self._adapters.new(name, path)
        if self._llm is not None:
            try:
                # Here a bad one is refused; in the middle of a step it would take the engine with it.
                await self._llm.add_lora(adapter)
            except backend.ServerError as error:
                raise EngineError("The engine failed while it loaded the adapter.") from error
            except Exception as error:  # as in `start`
                raise RequestError(f"vLLM cannot load the adapter: {error}", param="lora_path") from error
        self._adapters.put(name, adapter)

    def put_adapter(self, name: str, path: str) -> None:
        """One of the beginning: it is loaded when the engine starts."""
        self._adapters.put(name, self._adapters.new(name, path))

    def unload_adapter(self, name: str) -> None:
        """As AdapterLoader.unload_adapter."""
        self._adapters.drop(name)
