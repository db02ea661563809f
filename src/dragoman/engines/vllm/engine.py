"""vLLM's AsyncLLM as a TokenEngine. Independent of HTTP and text."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from ...core.control import build_lost_weights_error
from ...core.engine import (
    Capabilities,
    Ended,
    Failed,
    Health,
    OutputCallback,
    Rejected,
    Scheduled,
    TokenOutput,
    TokenRequest,
    check_prompt,
)
from ...core.errors import DragomanError, EngineError, Overloaded, QueueFull, RequestError
from ...core.events import FinishReason
from ...core.metrics import EngineStats
from ...core.trace_context import CURRENT_SPAN
from . import backend
from .backend import AsyncLLM, SamplingParams, VllmFeatures
from .request import VllmOutputReader, build_prompt, build_request_error, build_sampling_params, read_routing
from .stats import VllmProcess
from .weights import AdapterTable, VllmControl, VllmTrainable

log = logging.getLogger(__name__)


class _ActiveRequest:
    """A request in vLLM, or about to be. is_sent: vLLM has it. is_silenced: its outputs are dropped."""

    def __init__(self, request: TokenRequest, deliver: OutputCallback) -> None:
        self.request, self.deliver, self.reader = request, deliver, VllmOutputReader(request)
        self.is_silenced = self.is_sent = False


class VllmEngine:
    """A `core.engine.TokenEngine`, `core.engine.AdapterLoader` and `core.metrics.StatsSource`.

    process, adapters: of this engine alone.
    directory: the checkpoint that vLLM loads.
    """

    def __init__(
        self,
        process: VllmProcess,
        adapters: AdapterTable,
        features: VllmFeatures,
        directory: Path,
        max_num_waiting: int,
    ) -> None:
        self._process, self._adapters = process, adapters
        self._features, self._max_num_waiting = features, max_num_waiting
        self._capabilities = features.build_capabilities()
        self.control = VllmControl(process.get_engine, self._abort_running, can_sleep=features.can_sleep)
        self.trainable = VllmTrainable(process, self.control, directory)
        self._active: dict[str, _ActiveRequest] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def max_model_len(self) -> int:
        return self._features.max_model_len

    def stats(self) -> Sequence[EngineStats]:
        """As StatsSource.stats: what vLLM's own scheduler counts."""
        return self._process.counters.list_all()

    async def start(self) -> None:
        """Start vLLM and load the weights, which may take minutes. Raises EngineError."""
        await self._process.start()
        self.control.reset()
        await self.trainable.reset()

    async def stop(self) -> None:
        requests, self._active = self._active, {}
        for active in requests.values():
            active.is_silenced = True
            active.deliver(Failed(active.request.id, "The engine is shutting down."))
        await self._shut_down()

    async def _shut_down(self) -> None:
        await self._process.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def health(self) -> Health:
        running = sum(active.reader.has_started for active in self._active.values())
        return self._process.get_health(waiting=len(self._active) - running, running=running)

    def add(self, request: TokenRequest, deliver: OutputCallback) -> None:
        """As TokenEngine.add; vLLM's own validation errors name the field."""
        llm = self._process.get_engine()
        if self.trainable.lost_version is not None:
            raise build_lost_weights_error(self.trainable.lost_version)
        if request.id in self._active:
            raise ValueError(f"a sequence {request.id!r} is already running")
        check_prompt(request.prompt, self._features.vocab_size, self.max_model_len)
        params = build_sampling_params(request, self._features.eos_id, self._features.reasoning_delimiters)
        if self.health().waiting >= self._max_num_waiting:
            raise QueueFull(f"{self._max_num_waiting} sequences are already queued; retry later.")
        active = self._active[request.id] = _ActiveRequest(request, deliver)
        self._create_task(self._run(llm, active, params))

    def abort(self, id: str) -> None:
        active = self._active.pop(id, None)
        if active is None:
            return
        active.is_silenced = True
        if self._process.is_running:
            # Cancelling the task instead would leak a request that is being added to vLLM.
            self._create_task(self._abort(self._process.get_engine(), id))

    async def _abort(self, llm: AsyncLLM, id: str) -> None:
        try:
            await llm.abort(id)
        except backend.ServerError:
            log.debug("vLLM died before it could abort %s", id)

    def cached_tokens(self, prompt: Sequence[int], cache_salt: str) -> None:
        """As PrefixCache.cached_tokens: None, since vLLM reports it only with the generated output."""

    async def reset_prefix_cache(self) -> bool:
        """As PrefixCache.reset_prefix_cache: False while requests run."""
        return await self._process.get_engine().reset_prefix_cache()

    def _abort_running(self) -> list[str]:
        """Abort all requests; those not sent to vLLM yet end here. Returns the ids of the others."""
        ids: list[str] = []
        for id, active in list(self._active.items()):
            ids.append(id)
            if not active.is_sent:
                self._deliver(active, Scheduled(id, 0, 0))
                self._deliver(active, Ended(id, FinishReason.ABORT))
                active.is_silenced = True
                del self._active[id]
        return ids

    async def _run(self, llm: AsyncLLM, active: _ActiveRequest, params: SamplingParams) -> None:
        """Deliver vLLM's outputs and errors."""
        # Aborted before the first step of this task: vLLM has never seen the request.
        if active.is_silenced:
            return
        request, active.is_sent = active.request, True
        span = CURRENT_SPAN.get() if self._features.has_tracing else None
        try:
            stream = llm.generate(
                build_prompt(request),
                params,
                request.id,
                lora_request=self._adapters.find_for(request),
                priority=request.priority if self._features.has_priorities else 0,
                trace_headers=None if span is None else span.build_headers(),
                **read_routing(request),
            )
            async for output in stream:
                for token_output in active.reader.read(output, self.trainable.weight_version):
                    self._deliver(active, token_output)
        except backend.ClientError as error:
            self._deliver(active, Rejected(request.id, build_request_error(error)))
        except backend.RetryableError as error:
            self._deliver(active, Rejected(request.id, Overloaded(str(error), code="engine_paused")))
        except backend.BusyError as error:
            self._deliver(active, Rejected(request.id, Overloaded(str(error))))
        except DragomanError as error:
            self._deliver(active, Rejected(request.id, error))
        except BaseException:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise  # our own cancellation
            log.exception("vLLM failed on %s", request.id)
            self._deliver(active, Failed(request.id, "The engine failed while computing this request."))
        finally:
            # After an abort the id may belong to a later request already.
            if self._active.get(request.id) is active:
                del self._active[request.id]

    def _deliver(self, active: _ActiveRequest, output: TokenOutput) -> None:
        """Deliver an output. A receiver that raises does not affect other requests."""
        if active.is_silenced:
            return
        try:
            active.deliver(output)
        except Exception as error:
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"the receiver of {active.request.id} raised", "exception": error}
            )

    def _create_task(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def load_adapter(self, name: str, path: str) -> None:
        """As AdapterLoader.load_adapter."""
        if not self._features.has_lora:
            raise RequestError("vLLM was started without LoRA; set `enable_lora` in --vllm-args.", param="lora_name")
        adapter = self._adapters.create(name, path)
        if self._process.is_running:
            try:
                # An invalid adapter is rejected here; during a step it would crash the engine.
                await self._process.get_engine().add_lora(adapter)
            except backend.ServerError as error:
                raise EngineError("The engine failed while it loaded the adapter.") from error
            except Exception as error:  # as in `start`
                raise RequestError(f"vLLM cannot load the adapter: {error}", param="lora_path") from error
        # Only now, so that no request uses an adapter that vLLM has rejected.
        self._adapters.register(name, adapter)

    def add_adapter(self, name: str, path: str) -> None:
        """Add an adapter to load at startup."""
        self._adapters.register(name, self._adapters.create(name, path))

    def on_adapter_drop(self, report: Callable[[str], None]) -> None:
        """Have `report` called with the name of each adapter that a start of vLLM leaves out."""
        self._adapters.on_drop = report

    async def unload_adapter(self, name: str) -> None:
        """As AdapterLoader.unload_adapter."""
        self._adapters.remove(name)
