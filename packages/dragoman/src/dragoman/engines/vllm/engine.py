"""vLLM's AsyncLLM as a TokenEngine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from ...core.capabilities import Capabilities
from ...core.engine import Health
from ...core.engine_stats import EngineStats
from ...core.errors import DragomanError, EngineError, Overloaded, RequestError
from ...core.request_checks import check_prompt
from ...core.token_engine import Failed, OutputCallback, Rejected, TokenRequest
from ...core.weight_updates import build_lost_weights_error
from ..active_sequences import ActiveSequence, ActiveSequences
from . import backend
from .backend import AdapterTable, AsyncLLM, SamplingParams
from .control import VllmControl
from .features import VllmFeatures
from .output_reader import VllmOutputReader
from .process import VllmProcess
from .request import build_prompt, build_request_error, build_sampling_params, read_routing
from .weight_updates import VllmTrainable

log = logging.getLogger(__name__)


class _VllmSequence(ActiveSequence):
    """A sequence that runs in vLLM or is about to be sent to it.

    is_sent: whether vLLM has received the request.
    """

    def __init__(self, request: TokenRequest, deliver: OutputCallback) -> None:
        super().__init__(request, deliver)
        self.reader = VllmOutputReader(request)
        self.is_sent = False


class VllmEngine:
    """Implements `core.token_engine.TokenEngine`, `core.engine.AdapterLoader` and
    `core.engine_stats.StatsSource` with vLLM.

    process, adapters: not shared with another engine.
    directory: the checkpoint that vLLM loads.
    max_num_waiting: queued requests above which further ones are rejected.
    """

    def __init__(
        self,
        process: VllmProcess,
        adapters: AdapterTable,
        features: VllmFeatures,
        directory: Path,
        max_num_waiting: int,
    ) -> None:
        self._process = process
        self._adapters = adapters
        self._features = features
        self._max_num_waiting = max_num_waiting
        self._capabilities = features.build_capabilities()
        self.control = VllmControl(
            process.get_engine, self._abort_running, can_sleep=features.can_sleep
        )
        self.trainable = VllmTrainable(process, self.control, directory)
        self._active: ActiveSequences[_VllmSequence] = ActiveSequences()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def max_model_len(self) -> int:
        return self._features.max_model_len

    def stats(self) -> Sequence[EngineStats]:
        """Implements StatsSource.stats: the counters of vLLM's own scheduler."""
        return self._process.counters.list_all()

    async def start(self) -> None:
        """Start vLLM and load the weights, which may take minutes. Raises EngineError."""
        await self._process.start()
        self.control.reset()
        await self.trainable.reset()

    async def stop(self) -> None:
        self._active.fail_all()
        await self._process.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def health(self) -> Health:
        running = self._active.num_started
        return self._process.get_health(waiting=len(self._active) - running, running=running)

    def add(self, request: TokenRequest, deliver: OutputCallback) -> None:
        """Implements TokenEngine.add. Validation errors of vLLM name the field of the
        request.
        """
        llm = self._process.get_engine()
        if self.trainable.lost_version is not None:
            raise build_lost_weights_error(self.trainable.lost_version)
        check_prompt(request.prompt, self._features.vocab_size, self.max_model_len)
        params = build_sampling_params(
            request, self._features.eos_id, self._features.reasoning_delimiters
        )
        self._active.check_admission(request.id, self._max_num_waiting, self.health().waiting)
        sequence = _VllmSequence(request, deliver)
        self._active.add(sequence)
        self._create_task(self._run(llm, sequence, params))

    def abort(self, id: str) -> None:
        if self._active.pop(id) is not None and self._process.is_running:
            # Cancelling the task instead would leak a request that is being added to
            # vLLM.
            self._create_task(self._abort(self._process.get_engine(), id))

    async def _abort(self, llm: AsyncLLM, id: str) -> None:
        try:
            await llm.abort(id)
        except backend.ServerError:
            log.debug("vLLM died before it could abort %s", id)

    def count_cached_tokens(self, prompt: Sequence[int], cache_salt: str) -> None:
        """Implements PrefixCache.count_cached_tokens: None, since vLLM reports the
        number only with the output.
        """

    async def reset_prefix_cache(self) -> bool:
        """Implements PrefixCache.reset_prefix_cache: returns False while requests run."""
        return await self._process.get_engine().reset_prefix_cache()

    def _abort_running(self) -> list[str]:
        """Abort the requests that vLLM has not received yet. Returns the ids of all
        requests, for vLLM to abort.
        """
        sequences = list(self._active)
        for sequence in sequences:
            if not sequence.is_sent:
                self._active.pop(sequence.id)
                sequence.send_abort()
        return [sequence.id for sequence in sequences]

    async def _run(self, llm: AsyncLLM, sequence: _VllmSequence, params: SamplingParams) -> None:
        """Send the request to vLLM and deliver its outputs and errors."""
        # Aborted before this task ran: vLLM has never seen the request.
        if sequence not in self._active:
            return
        request = sequence.request
        sequence.is_sent = True
        trace = request.trace if self._features.has_tracing else None
        try:
            stream = llm.generate(
                build_prompt(request),
                params,
                request.id,
                lora_request=self._adapters.find_for(request),
                priority=request.priority if self._features.has_priorities else 0,
                trace_headers=None if trace is None else trace.build_headers(),
                **read_routing(request),
            )
            async for output in stream:
                for token_output in sequence.reader.read(output, self.trainable.weight_version):
                    self._active.deliver(sequence, token_output)
        except backend.ClientError as error:
            self._active.deliver(sequence, Rejected(request.id, build_request_error(error)))
        except backend.RetryableError as error:
            self._active.deliver(
                sequence, Rejected(request.id, Overloaded(str(error), code="engine_paused"))
            )
        except backend.BusyError as error:
            self._active.deliver(sequence, Rejected(request.id, Overloaded(str(error))))
        except DragomanError as error:
            self._active.deliver(sequence, Rejected(request.id, error))
        except BaseException:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise  # our own cancellation
            log.exception("vLLM failed on %s", request.id)
            self._active.deliver(
                sequence, Failed(request.id, "The engine failed while computing this request.")
            )
        finally:
            # After an abort the id may belong to a later request already.
            if sequence in self._active:
                self._active.pop(request.id)

    def _create_task(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def load_adapter(self, name: str, path: str) -> None:
        """Implements AdapterLoader.load_adapter."""
        if not self._features.has_lora:
            raise RequestError(
                "vLLM was started without LoRA; set `enable_lora` in --vllm-args.",
                param="lora_name",
            )
        adapter = self._adapters.create(name, path)
        if self._process.is_running:
            try:
                # An invalid adapter is rejected here; during a step it would crash the
                # engine.
                await self._process.get_engine().add_lora(adapter)
            except backend.ServerError as error:
                raise EngineError("The engine failed while it loaded the adapter.") from error
            except Exception as error:  # vLLM's workers raise many types
                raise RequestError(
                    f"vLLM cannot load the adapter: {error}", param="lora_path"
                ) from error
        # Registered last, so that no request uses an adapter that vLLM has rejected.
        self._adapters.register(name, adapter)

    def add_adapter(self, name: str, path: str) -> None:
        """Add an adapter to load at startup."""
        self._adapters.register(name, self._adapters.create(name, path))

    def on_adapter_drop(self, report: Callable[[str], None]) -> None:
        """Call `report` with the name of each adapter that vLLM could not load when it
        started.
        """
        self._adapters.on_drop = report

    async def unload_adapter(self, name: str) -> None:
        """Implements AdapterLoader.unload_adapter."""
        self._adapters.remove(name)
