"""The TokenEngine over llama.cpp's server: queueing, slots, delivery of outputs."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from bisect import insort
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from ...core.capabilities import CONSTRAINT_FEATURES, Capabilities, Feature
from ...core.engine import Health
from ...core.errors import DragomanError, EngineError, Overloaded, RequestError, Unsupported
from ...core.prompt_images import PromptImage
from ...core.token_engine import Failed, OutputCallback, Rejected, TokenRequest
from ..active_sequences import SHUTTING_DOWN, ActiveSequence, ActiveSequences
from ..batching import EngineConfig, check_request
from ..failure_message import describe_error
from .completion_state import (
    CompletionState,
    ContextExceeded,
    InvalidLogits,
    StepFailed,
    check_chunk,
)
from .image_prompt import PromptWriter
from .native_grammar import find_impossible_end
from .server_lifecycle import LlamaCppConnection
from .token_text import TokenText
from .wire import CompletionBody, CompletionChunk


def build_cache_keys(tokens: tuple[int, ...], images: Sequence[PromptImage]) -> tuple[int, ...]:
    """Build cache keys that are equal only for equal images: image positions get
    negative keys, unlike any token id.
    """
    if not images:
        return tokens
    keys = list(tokens)
    for image in images:
        keys[image.begin : image.end] = [~int.from_bytes(image.digest)] * (image.end - image.begin)
    return tuple(keys)


class SlotPool:
    """Assigns a prompt the llama.cpp slot with the longest common prefix.

    A slot caches its last sequence. Only requests with the same salt may reuse it.
    Slots are initially free and empty.
    """

    def __init__(self, count: int, *, caching: bool = True) -> None:
        self._caching = caching
        self._contents: list[tuple[str, tuple[int, ...]]] = [("", ())] * count
        self._free = list(range(count))
        """Least recently used first."""

    @property
    def num_free(self) -> int:
        return len(self._free)

    def acquire(self, prompt: Sequence[int], salt: str) -> tuple[int, bool]:
        """Acquire a free slot. Returns it, and whether its contents may be reused."""
        best = max(self._free, key=lambda slot: self._count_shared(slot, prompt, salt))
        can_reuse = self._count_shared(best, prompt, salt) > 0
        slot = best
        if not can_reuse:
            # The least recently used one, preferably adjacent to a slot in use:
            # llama.cpp computes a step in as many passes as there are runs of adjacent
            # slots in use.
            used = set(range(len(self._contents))) - set(self._free)
            slot = next((free for free in self._free if used & {free - 1, free + 1}), self._free[0])
        self._free.remove(slot)
        return slot, can_reuse

    def release(self, slot: int, tokens: tuple[int, ...], salt: str) -> None:
        """Release a slot. tokens: the cache keys of the sequence whose computed prefix
        it holds.
        """
        self._contents[slot] = (salt, tokens)
        self._free.append(slot)

    def count_cached_tokens(self, prompt: Sequence[int], salt: str) -> int:
        """See `PrefixCache.count_cached_tokens`, over free slots. The last token is
        always computed.
        """
        longest = max((self._count_shared(slot, prompt, salt) for slot in self._free), default=0)
        return min(longest, len(prompt) - 1)

    def clear_cache(self) -> None:
        self._contents = [("", ())] * len(self._contents)

    def _count_shared(self, slot: int, prompt: Sequence[int], salt: str) -> int:
        slot_salt, tokens = self._contents[slot]
        if not self._caching or slot_salt != salt:
            return 0
        return next(
            (n for n, (a, b) in enumerate(zip(tokens, prompt, strict=False)) if a != b),
            min(len(tokens), len(prompt)),
        )


_FEATURES = frozenset(
    {
        *CONSTRAINT_FEATURES,
        Feature.TOOLS,
        Feature.LOGPROBS,
        Feature.PROMPT_LOGPROBS,
        Feature.REASONING_BUDGET,
        Feature.TOKEN_IDS,
    }
)
_PARAMETERS = frozenset(
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
        "max_tokens",
        "min_tokens",
        "stop",
        "stop_token_ids",
        "include_stop",
        "ignore_eos",
        "truncate_prompt",
        "close_at_limit",
    }
)


def build_capabilities(vocab: int, *, images: bool = False) -> Capabilities:
    """Build the capabilities. vocab: number of token ids. images: whether a projector
    is loaded.
    """
    features = _FEATURES | {Feature.IMAGES} if images else _FEATURES
    return Capabilities(features, _PARAMETERS, max_logprobs=vocab)


log = logging.getLogger(__name__)

MARGIN_TOKENS = 8
"""Extra tokens per slot: llama.cpp generates somewhat ahead of what it has reported."""

MAX_REJECTIONS = 100
"""Times that a sequence is queued again after llama.cpp ran out of context, before it
fails.
"""

MAX_FAULTS = 3
"""Failed steps of a sequence after which it fails, even if it can be computed alone; and
sequences in a row that fail alone, after which the engine has failed.
"""

_RETRY_AFTER = 5.0
"""Seconds after which a client may ask a failed engine again."""

_CANNOT_RESUME_IMAGES = (
    "This answer to images cannot resume after preemption: llama.cpp accepts it only as text and "
    "would tokenize it differently."
)


class _QueuedSequence(ActiveSequence):
    """A waiting or running sequence.

    rank: scheduling order; lower runs first.
    has_begun: llama.cpp has sent an event for it in its current slot.
    is_suspect: it was in a step that failed, and has not been computed alone since.
    """

    def __init__(self, state: CompletionState, deliver: OutputCallback, number: int) -> None:
        super().__init__(state.request, deliver)
        self.state = state
        self.rank = (state.request.priority, number)
        self.task: asyncio.Task[None] | None = None
        self.num_rejections = 0
        self.num_faults = 0
        self.is_suspect = False
        self.has_begun = False

    @property
    def keys(self) -> tuple[int, ...]:
        """Its cache keys, see `build_cache_keys`."""
        return build_cache_keys(self.state.tokens, self.state.request.images)

    @property
    def num_tokens(self) -> int:
        return len(self.state.request.prompt) + len(self.state.output)


class LlamaCppEngine:
    """A `core.token_engine.TokenEngine` over a llama.cpp process, which may be running
    before the engine is started.

    Sequences queue here and get a slot each. When their tokens exceed the context, the
    one of lowest priority is preempted and resumed later, as in vLLM.

    llama.cpp fails all sequences of a step that it cannot compute, and one sequence's NaN
    makes those of others NaN. Then each is computed alone up to its next token, so that
    only the one that caused it fails; see `_isolate`.

    prompt_writer: encodes prompts with images; None for a text-only model.
    """

    def __init__(
        self,
        connection: LlamaCppConnection,
        token_text: TokenText,
        eog: frozenset[int],
        config: EngineConfig,
        clock: Callable[[], float] = time.monotonic,
        prompt_writer: PromptWriter | None = None,
    ) -> None:
        self._prompt_writer = prompt_writer
        self._ends_native_grammars: bool | None = None
        """See `_try_grammars`; None before the first request with a grammar."""
        self._grammar_lock = asyncio.Lock()
        self._connection = connection
        self._token_text = token_text
        self._eog = eog
        self._config = config
        self._clock = clock
        self._last_event_at = 0.0
        scheduler = config.scheduler
        # Tokens are counted after each event only if all sequences together can exceed
        # the cache.
        self._can_fill = config.num_kv_tokens < scheduler.max_num_seqs * config.max_model_len
        self._active: ActiveSequences[_QueuedSequence] = ActiveSequences()
        self._waiting: list[_QueuedSequence] = []
        self._running: list[_QueuedSequence] = []
        self._suspects: list[_QueuedSequence] = []
        """Sequences that wait to be computed alone."""
        self._isolation: asyncio.Task[None] | None = None
        """Ends the sequences of a failed step, before any is computed again."""
        self._is_cache_invalid = False
        """Whether the KV cache has NaN, which llama.cpp cannot clear."""
        self._num_failed_alone = 0
        """Sequences that failed alone since the last token of any."""
        self._failure: str | None = None
        """Why no sequence can be computed; None while the engine works."""
        self._slots = self._build_slots()
        self._num_arrived = 0
        self._capabilities = build_capabilities(len(token_text), images=prompt_writer is not None)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def num_kv_tokens(self) -> int:
        """Capacity of the KV cache, in tokens; at most what all sequences together can
        use.
        """
        return min(
            self._config.num_kv_tokens,
            self._config.scheduler.max_num_seqs * self._config.max_model_len,
        )

    @property
    def max_model_len(self) -> int:
        return self._config.max_model_len

    @property
    def pid(self) -> int | None:
        """Process id of llama.cpp, while it runs."""
        return self._connection.pid

    async def start(self) -> None:
        await self._connection.start()
        self._slots = self._build_slots()
        self._num_failed_alone = 0
        self._failure = None

    async def stop(self) -> None:
        await asyncio.gather(*self._fail_all(SHUTTING_DOWN), return_exceptions=True)
        await self._connection.stop()
        if self._isolation is not None:
            # It may be starting a process, which only it can name.
            await self._isolation
            await self._connection.stop()

    def health(self) -> Health:
        problem = self._failure or self._connection.problem
        failed = self._failure is not None or self._connection.is_broken
        config = self._config
        silent_seconds = self._clock() - self._last_event_at if self._running else 0.0
        if problem is None and silent_seconds > min(config.stall_after, config.step_timeout):
            problem = f"no message from llama.cpp for {silent_seconds:.0f} s"
            failed = silent_seconds > config.step_timeout
        usage = min(1.0, self._count_tokens(self._running) / self._config.num_kv_tokens)
        num_waiting = len(self._waiting) + len(self._suspects)
        return Health(problem is None, problem, num_waiting, len(self._running), failed, usage)

    def count_cached_tokens(self, prompt: Sequence[int], cache_salt: str) -> int:
        """See `PrefixCache.count_cached_tokens`."""
        return self._slots.count_cached_tokens(prompt, cache_salt)

    async def reset_prefix_cache(self) -> bool | None:
        """See `PrefixCache.reset_prefix_cache`."""
        self._slots.clear_cache()
        return True

    def add(self, request: TokenRequest, deliver: OutputCallback) -> None:
        """See `TokenEngine.add`."""
        if not self._connection.is_open:
            raise EngineError("The engine is not running.")
        if self._failure is not None:
            raise Overloaded(
                "The model's engine failed and is being restarted.", retry_after=_RETRY_AFTER
            )
        if request.images and self._prompt_writer is None:
            raise Unsupported(
                "This model was loaded without a projector and does not accept images.",
                param="messages",
            )
        check_request(request, len(self._token_text), self.max_model_len)
        check_supported(request)
        self._active.check_admission(
            request.id, self._config.scheduler.max_num_seqs + self._config.max_num_waiting
        )
        self._num_arrived += 1
        seed = request.sampling.seed
        remaining = self.max_model_len - len(request.prompt)
        sequence = _QueuedSequence(
            CompletionState(
                msgspec.structs.replace(request, max_tokens=min(request.max_tokens, remaining)),
                self._token_text,
                self._eog,
                seed=random.getrandbits(32) if seed is None else seed,
                context=self.max_model_len,
            ),
            deliver,
            self._num_arrived,
        )
        self._active.add(sequence)
        insort(self._waiting, sequence, key=lambda queued: queued.rank)
        self._admit()

    def abort(self, id: str) -> None:
        sequence = self._active.pop(id)
        if sequence is None:
            return
        if sequence.task is None:
            (self._suspects if sequence.is_suspect else self._waiting).remove(sequence)
        else:
            sequence.task.cancel()

    def _build_slots(self) -> SlotPool:
        scheduler = self._config.scheduler
        return SlotPool(scheduler.max_num_seqs, caching=scheduler.enable_prefix_caching)

    def _admit(self) -> None:
        """Admit waiting sequences while there are slots and room for their current
        tokens; suspects first, and each alone.
        """
        if self._isolation is not None:
            return
        if self._suspects:
            if not self._running:
                self._run(self._suspects.pop(0))
            return
        if any(sequence.is_suspect for sequence in self._running):
            return
        while self._waiting and self._slots.num_free:
            # Room for its tokens, and for some more of each sequence. A sequence alone
            # always fits.
            sequences = [*self._running, self._waiting[0]]
            needed = self._count_tokens(sequences) + MARGIN_TOKENS * len(sequences)
            if self._running and needed > self._config.num_kv_tokens:
                return
            self._run(self._waiting.pop(0))

    def _run(self, sequence: _QueuedSequence) -> None:
        """Run a sequence in a free slot."""
        # `health` measures the time without events from the first sequence on; idle
        # time does not count.
        if not self._running:
            self._last_event_at = self._clock()
        self._running.append(sequence)
        slot, cached = self._slots.acquire(sequence.keys, sequence.request.cache_salt)
        sequence.has_begun = False
        sequence.task = asyncio.create_task(self._serve(sequence, slot, cached))
        # A callback rather than code in the task: a task that is cancelled before its
        # first step never runs.
        sequence.task.add_done_callback(partial(self._on_task_done, sequence, slot))

    def _count_tokens(self, sequences: list[_QueuedSequence]) -> int:
        return sum(sequence.num_tokens for sequence in sequences)

    async def _serve(self, sequence: _QueuedSequence, slot: int, cached: bool) -> None:
        request = sequence.request
        state = sequence.state
        try:
            cached = not await self._try_grammars(state, slot) and cached
            while not state.is_finished:
                num_before = len(state.output)
                # After the first completion the slot holds this sequence's own tokens,
                # so they may be reused.
                body = state.build_body(slot, cached=cached)
                cached = True
                if request.images and self._prompt_writer is not None:
                    prompt = await self._prompt_writer.write(
                        self._connection.client, state.tokens, request.images
                    )
                    body = msgspec.structs.replace(body, prompt=prompt)
                await self._connection.client.complete(body, partial(self._receive, sequence))
                if not state.is_finished and not state.is_stale and len(state.output) == num_before:
                    raise EngineError("llama.cpp ended an answer without an explanation.")
        except ContextExceeded as error:
            sequence.num_rejections += 1
            if sequence.num_rejections > MAX_REJECTIONS:
                self._active.deliver(sequence, Failed(request.id, error.message))
        except StepFailed as error:
            self._isolate(sequence, error)
        except RequestError as error:
            self._active.deliver(
                sequence,
                Failed(request.id, _CANNOT_RESUME_IMAGES)
                if state.output
                else Rejected(request.id, error),
            )
        except DragomanError as error:
            self._active.deliver(sequence, Failed(request.id, error.message))
        except BaseException as error:
            # For example a matcher raised: only this sequence fails. Our own
            # cancellation ends the task.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            log.exception("%s failed", request.id)
            message = f"The engine failed: {describe_error(error)}"
            self._active.deliver(sequence, Failed(request.id, message))

    async def _try_grammars(self, state: CompletionState, slot: int) -> bool:
        """Try whether llama.cpp samples each end token at the end of a grammar. If not, a
        warning is logged, and only Dragoman applies grammars.

        Tried before the first grammar: llama.cpp then builds an index of its vocabulary,
        which takes two seconds for 262,144 tokens.

        slot: that of the sequence.

        Returns: whether the slot's contents were lost by the trial.

        Raises: as CompletionState.feed.
        """
        if not state.native_grammar:
            return False
        async with self._grammar_lock:
            is_first = self._ends_native_grammars is None
            if is_first:
                impossible = await find_impossible_end(self._eog, slot, self._complete_trial)
                self._ends_native_grammars = impossible is None
                self._last_event_at = self._clock()
                if impossible is not None:
                    log.warning(
                        "llama.cpp does not end a grammar with %s; Dragoman applies grammars "
                        "itself, which is slower",
                        self._token_text.get_bytes(impossible).decode(errors="replace"),
                    )
        if not self._ends_native_grammars:
            state.native_grammar = ""
        return is_first

    async def _complete_trial(self, body: CompletionBody) -> tuple[int, ...]:
        """Return the tokens of a completion; none if llama.cpp rejects it."""
        chunks: list[CompletionChunk] = []

        def receive(chunk: CompletionChunk) -> bool:
            chunks.append(chunk)
            return True

        await self._connection.client.complete(body, receive)
        try:
            check_chunk(chunks[0])
        except (StepFailed, ContextExceeded):
            raise
        except EngineError:
            return ()
        return chunks[0].tokens

    def _isolate(self, sequence: _QueuedSequence, error: StepFailed) -> None:
        """Let each running sequence be computed alone, after a step that failed for one
        of them. One that was already alone fails.
        """
        sequence.num_faults += 1
        if len(self._running) == 1 or sequence.num_faults > MAX_FAULTS:
            self._active.deliver(sequence, Failed(sequence.id, error.message))
            self._num_failed_alone += 1
            if self._num_failed_alone == MAX_FAULTS:
                self._failure = error.message
                self._fail_all(error.message)
                return
        for running in self._running:
            running.is_suspect = True
        self._is_cache_invalid |= isinstance(error, InvalidLogits)
        if self._isolation is None:
            log.warning(
                "%s: computing %d sequences apart from each other",
                error.message,
                len(self._running),
            )
            self._isolation = asyncio.create_task(self._end_step())

    def _fail_all(self, message: str) -> list[asyncio.Task[None]]:
        """Fail all sequences, and return the tasks of those that run, which end."""
        sequences = self._active.fail_all(message)
        # So that no waiting sequence takes a freed slot.
        self._waiting.clear()
        self._suspects.clear()
        tasks = [sequence.task for sequence in sequences if sequence.task is not None]
        for task in tasks:
            task.cancel()
        return tasks

    async def _end_step(self) -> None:
        """End all completions, so that their sequences wait again, and replace a process
        whose KV cache has NaN.
        """
        tasks = [running.task for running in self._running if running.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            if self._is_cache_invalid and self._connection.is_open:
                self._slots = self._build_slots()
                await self._connection.restart()
        except Exception:
            # `health` reports the engine as failed, which ends all sequences.
            log.exception("llama.cpp could not be started again")
        self._is_cache_invalid = False
        self._isolation = None
        if self._connection.is_open:
            self._admit()

    def _on_task_done(self, sequence: _QueuedSequence, slot: int, _: asyncio.Task[None]) -> None:
        request = sequence.request
        sequence.task = None
        self._running.remove(sequence)
        # If no event arrived, the slot's contents are unknown.
        self._slots.release(slot, sequence.keys if sequence.has_begun else (), request.cache_salt)
        if sequence in self._active:
            # Neither ended nor aborted: it was preempted.
            queue = self._suspects if sequence.is_suspect else self._waiting
            insort(queue, sequence, key=lambda queued: queued.rank)
        if self._connection.is_open:
            self._admit()

    def _receive(self, sequence: _QueuedSequence, chunk: CompletionChunk) -> bool:
        """Deliver what an event contains. Returns whether the rest of the completion is
        wanted.
        """
        self._last_event_at = self._clock()
        sequence.has_begun = True
        for output in sequence.state.feed(chunk):
            self._active.deliver(sequence, output)
        if chunk.tokens_predicted:
            self._num_failed_alone = 0
        if sequence.is_suspect and chunk.tokens_predicted:
            # It has been computed alone, so it did not cause the failed step.
            sequence.is_suspect = False
            if self._suspects and sequence.task is not None:
                sequence.task.cancel()
            elif not self._suspects:
                self._admit()
        if sequence.state.is_finished or sequence.state.is_stale:
            return False
        if not self._can_fill:
            return True
        # Preempt the sequence of lowest priority if the context is full; those that are
        # already being cancelled do not count. A single sequence always fits.
        remaining = [
            running
            for running in self._running
            if running.task is not None and not running.task.cancelling()
        ]
        if len(remaining) > 1 and self._count_tokens(remaining) > self._config.num_kv_tokens:
            task = max(remaining, key=lambda running: running.rank).task
            if task is not None:
                task.cancel()
        return True


def check_supported(request: TokenRequest) -> None:
    """Raise Unsupported for what llama.cpp cannot compute exactly."""
    sampling = request.sampling
    if request.images and request.prompt_logprobs is not None:
        raise Unsupported(
            "The llamacpp engine does not support prompt logprobs of prompts with images.",
            param="prompt_logprobs",
        )
    if sampling.repetition_penalty != 1 and (
        sampling.presence_penalty or sampling.frequency_penalty
    ):
        raise Unsupported(
            "The llamacpp engine does not support repetition_penalty together with "
            "presence_penalty or "
            "frequency_penalty: llama.cpp would penalize the prompt's tokens too.",
            param="repetition_penalty",
        )
