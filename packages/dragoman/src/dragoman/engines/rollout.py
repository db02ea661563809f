"""A token engine over an RL trainer's executor: the executor's interface, its batched
calls, and their control.

The pipeline handles templates, text, stop strings, tool calls and usage; the executor's
token ids are passed unchanged.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, runtime_checkable

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from ..core.control import PauseMode, Weights
from ..core.engine import (
    Capabilities,
    Ended,
    Failed,
    Feature,
    Health,
    OutputCallback,
    Sampled,
    Scheduled,
    TokenLogprob,
    TokenOutput,
    TokenRequest,
    WeightVersionSet,
    check_prompt,
    check_unenforced_tool_choice,
)
from ..core.errors import EngineError, Overloaded, RequestError, Unsupported
from ..core.events import FinishReason
from ..core.request import Sampling
from .active import ActiveSequence, ActiveSequences

# The interface of an RL executor, with optional parts. Implementations need not import
# this package.


class RolloutSampling(Sampling, frozen=True, kw_only=True):
    """Sampling parameters: every field has its effective value, see `Sampling`.

    Parameters that the executor does not declare have neutral values, except max_tokens
    and stop_token_ids, which end every output: the stop token is the last of a
    candidate's tokens.

    logprobs: whether logprobs of sampled tokens are needed.
    seed: of the first candidate; candidate k, counted from 0, uses seed + k.
    """

    max_tokens: int
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    logprobs: bool = False


class Candidate(Struct, frozen=True):
    """One candidate; any object or mapping with these fields is accepted.

    token_ids: as sampled.
    logprobs: one per token, if requested.
    finish_reason: `stop`, `length` or `abort`; None derives it from the tokens.
    prompt_token_ids: if set, must equal the prompt.
    weight_version: of the weights that sampled it; None means the executor's.
    text: ignored; text is decoded from the ids.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None = None
    finish_reason: str | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    weight_version: str | None = None
    text: str | None = None


@runtime_checkable
class Executor(Protocol):
    """The required part of an executor. `generate` may be a coroutine function."""

    @property
    def tokenizer(self) -> str:
        """Path of a directory with tokenizer.json, the chat template and the model's
        configuration, without weights.
        """
        ...

    def generate(
        self, prompts: Sequence[tuple[int, ...]], n: int, sampling: RolloutSampling
    ) -> object:
        """Generate n candidates for each prompt: a list of `Candidate`-like objects per
        prompt, in order.
        """
        ...


@runtime_checkable
class DeclaresCapabilities(Protocol):
    @property
    def capabilities(self) -> Capabilities:
        """Supported parameters beyond max_tokens; the others are rejected. Without this
        property none is supported.
        """
        ...


@runtime_checkable
class Versioned(Protocol):
    @property
    def weight_version(self) -> str: ...


@runtime_checkable
class Updatable(Versioned, Protocol):
    def update_weights(self, weights: Weights, version: str | None) -> object:
        """Replace the weights, see `core.control.Trainable`. No call of `generate`
        runs, unless the executor is paused.

        Raises ValueError for weights that do not fit.
        """
        ...


@runtime_checkable
class Pausable(Protocol):
    def pause(self) -> object:
        """Suspend running calls until `resume`."""
        ...

    def resume(self) -> object: ...


_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.ABORT}


class ExecutorCall(Struct, frozen=True):
    """Candidates of one prompt with equal sampling."""

    sampling: RolloutSampling
    members: tuple[ActiveSequence, ...]

    @property
    def prompt(self) -> tuple[int, ...]:
        return self.members[0].request.prompt

    @property
    def n(self) -> int:
        return len(self.members)


def group_calls(members: Sequence[ActiveSequence], supported: frozenset[str]) -> list[ExecutorCall]:
    """Group sequences that arrived together: choices of a prompt are consecutive, and
    so are their seeds.

    supported: names of sampling parameters; the others are ignored.
    """
    calls: list[ExecutorCall] = []
    for member in members:
        sampling = build_sampling(member.request, supported)
        last = calls[-1] if calls else None
        if last is not None and last.prompt == member.request.prompt:
            # The sampling that the call's next candidate would have.
            seed = last.sampling.seed
            if sampling == (
                last.sampling if seed is None else replace(last.sampling, seed=seed + last.n)
            ):
                calls[-1] = ExecutorCall(last.sampling, (*last.members, member))
                continue
        calls.append(ExecutorCall(sampling, (member,)))
    return calls


def build_sampling(request: TokenRequest, supported: frozenset[str]) -> RolloutSampling:
    return RolloutSampling(
        **{name: value for name, value in asdict(request.sampling).items() if name in supported},
        max_tokens=request.max_tokens,
        min_tokens=request.min_tokens if "min_tokens" in supported else 0,
        stop_token_ids=tuple(sorted(request.stop_token_ids)),
        logprobs=request.logprobs is not None,
    )


def parse_candidates(
    output: object, calls: Sequence[ExecutorCall], vocab: int
) -> list[list[Candidate]]:
    """Parse and validate an executor's output. Raises EngineError if it is invalid."""
    try:
        groups = msgspec.convert(output, list[list[Candidate]], from_attributes=True)
    except msgspec.ValidationError as error:
        raise EngineError(f"The executor did not return lists of candidates: {error}") from error
    if [len(group) for group in groups] != [call.n for call in calls]:
        raise EngineError(
            f"The executor returned {list(map(len, groups))} candidates, not "
            f"{[call.n for call in calls]}."
        )
    pairs = [
        (call, candidate) for call, group in zip(calls, groups, strict=True) for candidate in group
    ]
    for call, candidate in pairs:
        ids = candidate.token_ids
        sampling = call.sampling
        if candidate.prompt_token_ids not in (None, call.prompt):
            raise EngineError("The executor answered a different prompt.")
        if len(ids) > sampling.max_tokens:
            raise EngineError(
                f"The executor returned {len(ids)} tokens; the maximum is {sampling.max_tokens}."
            )
        # An executor is the user's code; a wrong id would otherwise fail only when its
        # text is looked up.
        if ids and not 0 <= min(ids) <= max(ids) < vocab:
            raise EngineError(f"The executor returned token ids that are not in 0 to {vocab - 1}.")
        if sampling.logprobs and (
            candidate.logprobs is None or len(candidate.logprobs) != len(ids)
        ):
            raise EngineError("The executor did not return a logprob for each token.")
        if candidate.finish_reason is not None and candidate.finish_reason not in _REASONS:
            raise EngineError(
                f"The executor returned the finish reason {candidate.finish_reason[:40]!r}."
            )
    return groups


def build_outputs(
    member: ActiveSequence, candidate: Candidate, version: str | None
) -> Iterator[TokenOutput]:
    """Build a sequence's outputs from its candidate. version: that of the weights; None
    if unknown.
    """
    request = member.request
    ids = candidate.token_ids
    weight_version = candidate.weight_version or version
    if weight_version is not None and ids:
        yield WeightVersionSet(request.id, weight_version)
    logprobs = candidate.logprobs if request.logprobs is not None else None
    for index, id in enumerate(ids):
        yield Sampled(
            request.id, id, None if logprobs is None else TokenLogprob(logprobs[index], None, ())
        )
    stop = ids[-1] if ids and ids[-1] in request.stop_token_ids else None
    if candidate.finish_reason is not None:
        reason = _REASONS[candidate.finish_reason]
    else:
        reason = (
            FinishReason.LENGTH
            if stop is None and len(ids) >= request.max_tokens
            else FinishReason.STOP
        )
    yield Ended(request.id, reason, stop=stop)


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
    """A `core.engine.TokenEngine`. A synchronous `generate` is called with all waiting
    prompts of equal sampling.
    """

    def __init__(
        self, executor: Executor, *, vocab: int, max_model_len: int, max_waiting: int = 1024
    ) -> None:
        self._executor = executor
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
        declared = (
            self._executor.capabilities
            if isinstance(self._executor, DeclaresCapabilities)
            else Capabilities()
        )
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
        return self._executor.weight_version if isinstance(self._executor, Versioned) else None


async def call_executor(call: Callable[[], object], *, on_loop: bool) -> object:
    """Call an executor's method, which may be a coroutine function.

    on_loop: call it on the event loop, since it does not block; otherwise on a thread.
    """
    result = call() if on_loop else await asyncio.to_thread(call)
    return await result if inspect.isawaitable(result) else result


PAUSED = "Generation is paused; retry after it resumes."


class RolloutControl:
    """Implements `core.control.EngineControl` for an executor that can be paused."""

    def __init__(self, engine: RolloutEngine, executor: Pausable) -> None:
        self._engine = engine
        self._executor = executor
        self._pause_token: object | None = None

    @property
    def is_paused(self) -> bool:
        return self._pause_token is not None

    @property
    def sleep_level(self) -> int:
        return 0

    async def pause(self, mode: PauseMode = "abort", *, clear_cache: bool = True) -> None:
        """Pause. The executor manages its own cache."""
        del clear_cache
        # Identifies this pause: a `resume` or another pause during the wait below
        # replaces it.
        token = self._pause_token = object()
        self._engine.rejection = None if mode == "keep" else PAUSED
        if mode == "abort":
            self._engine.abort_all()
        elif mode == "wait":
            await self._engine.wait_until(
                lambda: self._engine.is_empty or self._pause_token is not token
            )
        if self._pause_token is token:
            self._engine.set_paused(self, paused=True)
            await call_executor(
                self._executor.pause, on_loop=inspect.iscoroutinefunction(self._executor.pause)
            )

    async def resume(self) -> None:
        if self._pause_token is None:
            return
        self._pause_token = None
        self._engine.rejection = None
        # The executor resumes first: no call may start while it is still paused.
        await call_executor(
            self._executor.resume, on_loop=inspect.iscoroutinefunction(self._executor.resume)
        )
        self._engine.set_paused(self, paused=False)

    async def sleep(self, level: int = 1, mode: PauseMode = "abort") -> None:
        del level, mode
        raise Unsupported(
            "Executors do not support sleep; the trainer controls them.", param="level"
        )

    async def wake_up(self) -> None:
        await self.resume()

    async def abort_all(self) -> int:
        return self._engine.abort_all()


class RolloutTraining:
    """Implements `core.control.Trainable` for an executor with replaceable weights."""

    def __init__(
        self, engine: RolloutEngine, executor: Updatable, control: RolloutControl | None
    ) -> None:
        self._engine = engine
        self._executor = executor
        self._control = control

    @property
    def weight_version(self) -> str:
        return self._executor.weight_version

    async def update_weights(self, weights: Weights, version: str | None = None) -> str:
        """Update the weights when no call is running, so that each call uses one
        version; at once if paused.
        """
        executor = self._executor
        # Without this pause new calls would start, and the wait for the running ones
        # might never end.
        self._engine.set_paused(self, paused=True)
        try:
            # The calls of a paused executor may be suspended: waiting for them could
            # deadlock.
            if self._control is None or not self._control.is_paused:
                await self._engine.wait_until(lambda: self._engine.is_idle)
            on_loop = inspect.iscoroutinefunction(executor.update_weights)
            await call_executor(lambda: executor.update_weights(weights, version), on_loop=on_loop)
        except ValueError as error:
            message = f"The weights were rejected: {error}"
            raise RequestError(message, param="weights", code="invalid_weights") from error
        finally:
            self._engine.set_paused(self, paused=False)
        return executor.weight_version

    async def set_weight_version(self, version: str) -> None:
        del version
        raise Unsupported("Executors set their own weight version.", param="new_version")
