"""An RL executor as an engine of tokens: it joins what belongs together into its calls, and waits for them.

Templates, text, stop strings, tool calls and usage are the pipeline's work; the ids are the executor's, as they are.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable

from ...core.engine import Capabilities, Deliver, Ended, Failed, Feature, Health, Scheduled, TokenOutput, TokenRequest
from ...core.errors import ContextTooLong, EngineError, Overloaded, QueueFull, RequestError, Unsupported
from ...core.events import FinishReason
from ...core.request import Conversation, SamplingOptions
from .calls import Call, Member, calls_of, candidates_of, outputs
from .executor import Declared, Executor, Versioned

_ASKED = frozenset({*SamplingOptions.__struct_fields__, "min_tokens"})
_DONE_HERE = frozenset({"stop_token_ids", "ignore_eos", "truncate_prompt"})
"""Stop tokens end every answer, and the prompt is what the pipeline makes of it."""

log = logging.getLogger(__name__)


class RolloutEngine:
    """A `core.engine.TokenEngine`. A plain `generate` is called with all prompts that wait and are sampled alike."""

    def __init__(self, executor: Executor, *, vocab: int, max_model_len: int, max_waiting: int = 1024) -> None:
        self._executor = executor
        self._vocab, self._max_model_len, self._max_waiting = vocab, max_model_len, max_waiting
        self._several = inspect.iscoroutinefunction(executor.generate)
        """Calls may run side by side."""
        self._live: dict[str, Member] = {}
        self._arriving: list[Member] = []
        self._queue: list[Call] = []
        self._running: dict[asyncio.Task[None], tuple[Call, ...]] = {}
        self._up = False
        self._holders: set[object] = set()
        self._changed = asyncio.Event()
        self.closed: str | None = None
        """Why nothing new is taken at present."""

    @property
    def capabilities(self) -> Capabilities:
        """Of what the executor declares, what can be asked of it; and what the pipeline does for it."""
        declared = self._executor.capabilities if isinstance(self._executor, Declared) else Capabilities()
        features = (declared.features & {Feature.LOGPROBS}) | {Feature.TOKEN_IDS, Feature.TOOLS}
        return Capabilities(features, (declared.parameters & _ASKED) | _DONE_HERE)

    async def start(self) -> None:
        self._up = True

    async def stop(self) -> None:
        self._up = False
        tasks = list(self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._queue.clear()
        self._arriving.clear()
        live, self._live = self._live, {}
        for member in live.values():
            member.deliver(Failed(member.request.id, "The engine is shutting down."))
        self._changed.set()

    def health(self) -> Health:
        running = sum(call.n for calls in self._running.values() for call in calls)
        running = min(running, len(self._live))
        if not self._up:
            return Health(ready=False, reason="the engine is not running", waiting=len(self._live) - running)
        return Health(waiting=len(self._live) - running, running=running)

    def add(self, request: TokenRequest, deliver: Deliver) -> None:
        """As TokenEngine.add. Raises RequestError for ids that the vocabulary does not have."""
        if not self._up:
            raise EngineError("The engine is not running.")
        if self.closed is not None:
            raise Overloaded(self.closed, code="engine_paused")
        if len(request.prompt) >= self._max_model_len:
            raise ContextTooLong(limit=self._max_model_len, prompt=len(request.prompt), param="prompt")
        if not request.prompt or not 0 <= min(request.prompt) <= max(request.prompt) < self._vocab:
            message = f"The prompt is empty, or contains token ids that are not in 0 to {self._vocab - 1}."
            raise RequestError(message, param="prompt")
        _check_choice_of_tool(request)
        if len(self._live) >= self._max_waiting:
            raise QueueFull(f"{len(self._live)} sequences are already queued or running; retry later.")
        member = Member(request, deliver)
        self._live[request.id] = member
        if not self._arriving:
            # The choices of a request come one after the other, with nothing between them.
            asyncio.get_running_loop().call_soon(self._form)
        self._arriving.append(member)

    def abort(self, id: str) -> None:
        if self._live.pop(id, None) is None:
            return
        self._queue = [call for call in self._queue if self._wanted(call)]
        for task, calls in self._running.items():
            # A thread cannot be stopped, and nobody else may call meanwhile: what it makes is thrown away.
            if self._several and not any(map(self._wanted, calls)):
                task.cancel()
        self._changed.set()

    def end_all(self) -> int:
        """Whatever waits or runs ends now, with nothing said; how many there were."""
        live = list(self._live.values())
        for member in live:
            self.abort(member.request.id)
            member.deliver(Scheduled(member.request.id, 0))
            member.deliver(Ended(member.request.id, FinishReason.ABORT))
        return len(live)

    def hold(self, holder: object, *, held: bool) -> None:
        """No call begins while anybody holds it."""
        if held:
            self._holders.add(holder)
        else:
            self._holders.discard(holder)
        self._changed.set()
        self._go()

    async def until(self, so: Callable[[], bool]) -> None:
        while not so():
            self._changed.clear()
            await self._changed.wait()

    @property
    def idle(self) -> bool:
        """No call runs."""
        return not self._running

    @property
    def empty(self) -> bool:
        return not self._live

    def _wanted(self, call: Call) -> bool:
        return any(member.request.id in self._live for member in call.members)

    def _form(self) -> None:
        arrived, self._arriving = self._arriving, []
        self._queue += [call for call in calls_of(arrived, self.capabilities.parameters) if self._wanted(call)]
        self._go()

    def _go(self) -> None:
        while self._queue and not self._holders and self._up and (self._several or not self._running):
            first = self._queue[0]
            alike = [call for call in self._queue if (call.n, call.sampling) == (first.n, first.sampling)]
            batch = (first,) if self._several else tuple(alike)
            self._queue = [call for call in self._queue if call not in batch]
            task = asyncio.create_task(self._run(batch))
            self._running[task] = batch
            task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._changed.set()
        self._go()

    async def _run(self, calls: tuple[Call, ...]) -> None:
        members = [member for call in calls for member in call.members]
        for member in members:
            self._tell(member, Scheduled(member.request.id, 0))
        try:
            before = self.version
            found = await self._generate(calls)
            # Of what ran while the weights changed nobody knows which sampled what, unless it says so.
            version = before if before == self.version else None
            candidates = [candidate for each in candidates_of(found, calls, self._vocab) for candidate in each]
        except Exception as error:
            log.exception("the executor failed")
            message = error.message if isinstance(error, EngineError) else "The executor failed; see the server's log."
            for member in members:
                self._tell(member, Failed(member.request.id, message))
            return
        for member, candidate in zip(members, candidates, strict=True):
            for output in outputs(member, candidate, version):
                self._tell(member, output)

    async def _generate(self, calls: tuple[Call, ...]) -> object:
        prompts, n, sampling = [call.prompt for call in calls], calls[0].n, calls[0].sampling
        return await ask(lambda: self._executor.generate(prompts, n, sampling), here=self._several)

    @property
    def version(self) -> str | None:
        return self._executor.weight_version if isinstance(self._executor, Versioned) else None

    def _tell(self, member: Member, output: TokenOutput) -> None:
        """Nothing is delivered to one that was aborted, or twice."""
        if self._live.get(member.request.id) is not member:
            return
        if isinstance(output, Ended | Failed):
            del self._live[member.request.id]
            self._changed.set()
        member.deliver(output)


def _check_choice_of_tool(request: TokenRequest) -> None:
    """An executor samples freely: what it calls cannot be enforced. Raises Unsupported."""
    prompt = None if request.asked is None else request.asked.prompt
    if not isinstance(prompt, Conversation) or not prompt.tools or prompt.tool_choice.mode == "none":
        return
    if prompt.tool_choice.mode != "auto":
        raise Unsupported("This engine cannot enforce a call: use `auto` or `none`.", param="tool_choice")
    if not prompt.parallel_tool_calls:
        raise Unsupported("This engine cannot limit the number of calls.", param="parallel_tool_calls")


async def ask(call: Callable[[], object], *, here: bool) -> object:
    """What a method of an executor gives, which may be a coroutine. here: it does not block, so that it needs no
    thread."""
    made = call() if here else await asyncio.to_thread(call)
    return await made if inspect.isawaitable(made) else made
