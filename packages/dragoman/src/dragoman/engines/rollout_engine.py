"""A token engine over an RL trainer's executor.

The pipeline handles templates, text, stop strings, tool calls and usage; the executor's
token ids are passed unchanged.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable

from ..core.capabilities import Capabilities, Feature
from ..core.engine import Health
from ..core.errors import EngineError, Overloaded
from ..core.request_checks import check_prompt, check_unenforced_tool_choice
from ..core.token_engine import (
    Failed,
    OutputCallback,
    Scheduled,
    TokenRequest,
)
from .active_sequences import ActiveSequence, ActiveSequences
from .rollout_calls import ExecutorCall, build_outputs, call_executor, group_calls, parse_candidates
from .rollout_executor import Executor, ExecutorParts, find_weight_version

_EXECUTOR_PARAMETERS = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "seed",
        "logit_bias",
        "allowed_token_ids",
        "bad_words",
        "min_tokens",
    }
)
"""The fields of RolloutSampling that an executor may declare."""
_PIPELINE_PARAMETERS = frozenset({"stop_token_ids", "ignore_eos", "truncate_prompt"})
"""Parameters that need no support by the executor: stop tokens end every output, and
the pipeline builds the prompt.
"""

log = logging.getLogger(__name__)


class RolloutEngine:
    """A `core.token_engine.TokenEngine`. A synchronous `generate` is called with all
    waiting prompts of equal sampling.
    """

    def __init__(
        self, executor: Executor, *, vocab: int, max_model_len: int, max_waiting: int = 1024
    ) -> None:
        self._executor = executor
        self.parts = ExecutorParts.find(executor)
        self._vocab = vocab
        self._max_model_len = max_model_len
        self._max_waiting = max_waiting
        self._is_concurrent = inspect.iscoroutinefunction(executor.generate)
        """Whether calls may run concurrently."""
        self._active: ActiveSequences[ActiveSequence] = ActiveSequences()
        self._arriving: list[ActiveSequence] = []
        self._queue: list[ExecutorCall] = []
        self._running: dict[asyncio.Task[None], tuple[ExecutorCall, ...]] = {}
        self._is_started = False
        self._pause_owners: set[object] = set()
        self._changed = asyncio.Event()
        self.rejection: str | None = None
        """Why new requests are rejected at present; None while they are accepted."""

    @property
    def capabilities(self) -> Capabilities:
        """The supported part of what the executor declares, plus what the pipeline
        implements.
        """
        declares = self.parts.declares
        declared = Capabilities() if declares is None else declares.capabilities
        features = (declared.features & {Feature.LOGPROBS}) | {Feature.TOKEN_IDS, Feature.TOOLS}
        return Capabilities(
            features, (declared.parameters & _EXECUTOR_PARAMETERS) | _PIPELINE_PARAMETERS
        )

    async def start(self) -> None:
        self._is_started = True

    async def stop(self) -> None:
        self._is_started = False
        self._active.fail_all()
        self._queue.clear()
        self._arriving.clear()
        tasks = list(self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._changed.set()

    def health(self) -> Health:
        running = sum(call.n for calls in self._running.values() for call in calls)
        # A call on a thread continues after its members are aborted; they no longer
        # count as requests.
        running = min(running, len(self._active))
        if not self._is_started:
            return Health(
                ready=False, reason="the engine is not running", waiting=len(self._active) - running
            )
        return Health(waiting=len(self._active) - running, running=running)

    def add(self, request: TokenRequest, deliver: OutputCallback) -> None:
        """Add a request, see `TokenEngine.add`. Raises RequestError for ids outside the
        vocabulary.
        """
        if not self._is_started:
            raise EngineError("The engine is not running.")
        if self.rejection is not None:
            raise Overloaded(self.rejection, code="engine_paused")
        check_prompt(request.prompt, self._vocab, self._max_model_len)
        check_unenforced_tool_choice(request)
        self._active.check_admission(request.id, self._max_waiting)
        member = ActiveSequence(request, deliver)
        self._active.add(member)
        if not self._arriving:
            # The choices of a request are added within one iteration of the event loop,
            # so one call can hold them all.
            asyncio.get_running_loop().call_soon(self._form_calls)
        self._arriving.append(member)

    def abort(self, id: str) -> None:
        if self._active.pop(id) is None:
            return
        self._queue = [call for call in self._queue if self._is_active(call)]
        for task, calls in self._running.items():
            # Python cannot stop a thread, and calls must not overlap: its output is
            # discarded.
            if self._is_concurrent and not any(map(self._is_active, calls)):
                task.cancel()
        self._changed.set()

    def abort_all(self) -> int:
        """Abort all waiting and running sequences, without output. Returns their
        number.
        """
        return self._active.abort_all(self.abort)

    def set_paused(self, owner: object, *, paused: bool) -> None:
        """Pause or resume on behalf of an owner. No call starts while any owner has
        paused.
        """
        if paused:
            self._pause_owners.add(owner)
        else:
            self._pause_owners.discard(owner)
        self._changed.set()
        self._start_calls()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            # There is no await between the check and this, so no change can be missed.
            self._changed.clear()
            await self._changed.wait()

    @property
    def is_idle(self) -> bool:
        """Whether no call is running."""
        return not self._running

    @property
    def is_empty(self) -> bool:
        return not self._active

    def _is_active(self, call: ExecutorCall) -> bool:
        return any(member in self._active for member in call.members)

    def _form_calls(self) -> None:
        arrived = self._arriving
        self._arriving = []
        self._queue += [
            call
            for call in group_calls(arrived, self.capabilities.parameters)
            if self._is_active(call)
        ]
        self._start_calls()

    def _start_calls(self) -> None:
        while (
            self._queue
            and not self._pause_owners
            and self._is_started
            and (self._is_concurrent or not self._running)
        ):
            first = self._queue[0]
            compatible = [
                call for call in self._queue if (call.n, call.sampling) == (first.n, first.sampling)
            ]
            batch = (first,) if self._is_concurrent else tuple(compatible)
            self._queue = [call for call in self._queue if call not in batch]
            task = asyncio.create_task(self._run(batch))
            self._running[task] = batch
            task.add_done_callback(self._on_call_done)

    def _on_call_done(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._changed.set()
        self._start_calls()

    async def _run(self, calls: tuple[ExecutorCall, ...]) -> None:
        members = [member for call in calls for member in call.members]
        for member in members:
            self._active.deliver(member, Scheduled(member.request.id, 0, 0))
        try:
            version_before = self.weight_version
            prompts = [call.prompt for call in calls]
            n = calls[0].n
            sampling = calls[0].sampling
            result = await call_executor(
                lambda: self._executor.generate(prompts, n, sampling), on_loop=self._is_concurrent
            )
            # If the weights changed during a call, the version is unknown unless the
            # candidate reports it.
            version = version_before if version_before == self.weight_version else None
            candidates = [
                candidate
                for group in parse_candidates(result, calls, self._vocab)
                for candidate in group
            ]
        except BaseException as error:
            # Only the cancellation of this task ends it; any other exception is the
            # executor's failure.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            log.exception("the executor failed")
            message = (
                error.message
                if isinstance(error, EngineError)
                else "The executor failed; see the server's log."
            )
            for member in members:
                self._active.deliver(member, Failed(member.request.id, message))
            return
        for member, candidate in zip(members, candidates, strict=True):
            for output in build_outputs(member, candidate, version):
                self._active.deliver(member, output)

    @property
    def weight_version(self) -> str | None:
        return find_weight_version(self._executor)
