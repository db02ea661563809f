"""The run of one prompt on a token engine, which yields batches of events."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Protocol

from ..constraints.closing_matcher import ClosingMatcher
from ..core.errors import ConnectionDropped, DragomanError, EngineError, QueueFull
from ..core.events import (
    Event,
    Finished,
    FinishReason,
    PromptTokens,
    Started,
    Token,
    Usage,
    WeightSpan,
)
from ..core.token_engine import (
    Ended,
    Failed,
    PromptLogprobs,
    Rejected,
    Sampled,
    Scheduled,
    TokenLogprob,
    TokenOutput,
    WeightVersionSet,
)
from .detokenizer import TextAssembler
from .engine_calls import EngineCall
from .engine_progress import Progress
from .output_queue import DeliveryRounds, OutputQueue
from .request_preparation import TokenJob
from .request_queue import QueuedRequest

log = logging.getLogger(__name__)

_DIRECT_OUTPUTS: frozenset[type[TokenOutput]] = frozenset({Scheduled, Sampled, Ended})
"""The types of the last output in a delivery for which a receiver may be called."""


class BatchReceiver(Protocol):
    """Consumer of a run's batches that is called directly, instead of being resumed for
    each batch.
    """

    @property
    def is_ready(self) -> bool:
        """Whether it can take a batch now. Otherwise the batch waits in the queue."""
        ...

    def receive(self, batch: list[Event]) -> None: ...


class TokenRun:
    """One prompt's response from a token engine: n sequences in, one stream of
    canonical events out.

    `stream_batches` may be called once; closing its generator aborts every sequence.

    Parts of the job are released as soon as they are no longer needed, since many runs
    wait for tokens at once.
    """

    __slots__ = (
        "_cached_tokens",
        "_choices",
        "_choices_by_id",
        "_direct_failure",
        "_engine",
        "_eos",
        "_failure",
        "_generates_nothing",
        "_has_started",
        "_job",
        "_limit_reason",
        "_n_unfinished",
        "_observers",
        "_pending_outputs",
        "_progress",
        "_prompt_tokens",
        "_queue",
        "_queue_was_full",
        "_queued_request",
        "_receiver",
        "_rounds",
        "_ticket",
        "_written_tokens",
    )

    def __init__(self, job: TokenJob, progress: Progress, rounds: DeliveryRounds) -> None:
        self._job: TokenJob | None = job
        self._progress = progress
        self._rounds = rounds
        self._receiver: BatchReceiver | None = None
        self._observers: tuple[Callable[[list[Event]], None], ...] = ()
        self._direct_failure: Exception | None = None
        self._engine = job.engine
        self._eos = job.eos
        self._ticket = job.queue_ticket
        self._queued_request: QueuedRequest | None = None
        self._generates_nothing = job.generates_nothing
        self._limit_reason = job.limit_reason
        self._prompt_tokens = len(job.prompt)
        self._queue: OutputQueue[TokenOutput] = OutputQueue()
        self._choices = tuple([_Choice(job, number) for number in range(len(job.requests))])
        # By sequence id; None if there is only one sequence.
        self._choices_by_id = (
            {choice.id: choice for choice in self._choices} if len(self._choices) > 1 else None
        )
        self._failure: DragomanError | None = None
        self._has_started = self._queue_was_full = False
        self._cached_tokens: int | None = None
        self._written_tokens: int | None = None
        self._n_unfinished = len(job.requests)
        # While prompt logprobs are pending, output of other choices waits too:
        # PromptTokens precedes all text.
        self._pending_outputs: list[TokenOutput] | None = [] if job.scores_prompt else None

    async def stream_batches(self) -> AsyncGenerator[list[Event]]:
        progress = self._progress
        self._queued_request = place = self._ticket.enqueue()
        # After `enqueue`, which may raise: then there is nothing to end.
        progress.begin(self._fail)
        try:
            await place.wait_for_turn()
            with EngineCall():
                self._submit_all()
            while self._n_unfinished:
                await self._queue.wait_for_items()
                if self._direct_failure is not None:
                    raise self._direct_failure
                progress.events += 1
                batch = self._handle_outputs(self._queue.take_all())
                if batch:
                    yield batch
                # Release this batch before waiting for the next one.
                del batch
                if self._failure is not None:
                    raise self._failure
            yield [Finished(self._build_usage())]
        finally:
            for choice in self._choices:
                if choice.pipeline.has_finished:
                    continue
                try:
                    self._engine.abort(choice.id)
                except BaseException:
                    # `abort` does not block, so this cannot be our own cancellation.
                    # The response has already ended.
                    log.exception("an engine failed to abort %s", choice.id)
            progress.end(self._fail)
            place.leave(sum([choice.n_sampled for choice in self._choices]))
            # Called after `leave`, which would end the fast rejections that `mark_full`
            # begins.
            if self._queue_was_full:
                self._ticket.queue.mark_full()

    def attach(self, receiver: BatchReceiver) -> None:
        """Deliver batches to `receiver` while the consumer of `stream_batches` waits.

        The receiver must be that consumer, with nothing between the two that buffers
        batches.
        """
        self._receiver = receiver
        self._queue.receive_directly(self._rounds, self._deliver_directly)

    def add_observer(self, observe: Callable[[list[Event]], None]) -> None:
        """Call `observe` with each batch that a receiver gets, as generators between
        run and consumer do not see it.
        """
        self._observers += (observe,)

    def _deliver_directly(self) -> None:
        queue = self._queue
        receiver = self._receiver
        outputs = (
            queue.take_awaited(_DIRECT_OUTPUTS)
            if receiver is not None and receiver.is_ready
            else None
        )
        if not outputs or receiver is None:
            queue.wake()
            return
        try:
            first = outputs[0]
            if len(outputs) == 1 and type(first) is Sampled and self._pending_outputs is None:
                # The common case, in which `_handle_outputs` does the same in three
                # more calls.
                batch = self._handle_token(self._find_choice(first.id), first.token, first.logprobs)
            else:
                batch = self._handle_outputs(outputs)
            self._progress.events += 1
            if batch:
                for observe in self._observers:
                    observe(batch)
                receiver.receive(batch)
        # The error concerns this response only, and must not fail the engine's step.
        except Exception as error:
            self._direct_failure = error
        if not self._n_unfinished or self._failure is not None or self._direct_failure is not None:
            queue.wake()

    def _fail(self, error: EngineError) -> None:
        # Through the queue, so that output that arrived before the failure is sent
        # before the error.
        self._queue.put(Failed(self._choices[0].id, error.message))

    def _submit_all(self) -> None:
        """Submit all sequences. Raises the engine's error if it rejects one."""
        job = self._job
        deliver = self._queue.put
        assert job is not None
        try:
            for request in job.requests:
                self._engine.add(request, deliver)
        # The engine's own queue may be shorter than ours. Whether it is full is known
        # only by trying.
        except QueueFull:
            self._queue_was_full = True
            raise

    def _find_choice(self, id: str) -> _Choice:
        return self._choices[0] if self._choices_by_id is None else self._choices_by_id[id]

    def _handle_outputs(self, outputs: list[TokenOutput]) -> list[Event]:
        if len(outputs) == 1:  # The common case.
            return self._handle_output(outputs[0])
        return [event for output in outputs for event in self._handle_output(output)]

    def _handle_output(self, output: TokenOutput) -> list[Event]:
        if self._pending_outputs is not None:
            if isinstance(output, WeightVersionSet | Sampled | Ended):
                self._pending_outputs.append(output)
                return []
        elif isinstance(output, Sampled):  # The common case.
            choice = (
                self._choices[0] if self._choices_by_id is None else self._choices_by_id[output.id]
            )
            return self._handle_token(choice, output.token, output.logprobs)
        match output:
            case Scheduled():
                return self._handle_scheduled(output)
            case PromptLogprobs(_, scores):
                pending = self._pending_outputs or []
                self._pending_outputs = None
                return [
                    *self._build_prompt_events(scores),
                    *(
                        event
                        for pending_output in pending
                        for event in self._handle_output(pending_output)
                    ),
                ]
            case Failed() | Rejected() if not self._n_unfinished:
                # The response is complete. The engine has failed before it handled the
                # abort of a stop string.
                pass
            case Failed(_, message, is_cut):
                # The events of this delivery are sent first. Output that waits for
                # prompt logprobs is dropped.
                self._failure = ConnectionDropped(message) if is_cut else EngineError(message)
            case Rejected(_, error):
                self._failure = error
                # An engine in another process rejects after `add`.
                self._queue_was_full = self._queue_was_full or isinstance(error, QueueFull)
            case Ended():
                return self._handle_end(output)
            case WeightVersionSet(id, version):
                self._find_choice(id).record_weight_change(version)
        return []

    def _handle_scheduled(self, scheduled: Scheduled) -> list[Event]:
        if self._has_started:
            return []
        self._has_started = True
        self._cached_tokens = scheduled.cached_tokens
        self._written_tokens = scheduled.written_tokens
        if self._queued_request is not None:
            self._queued_request.start()
        edited = () if self._job is None else self._job.applied_edits
        events: list[Event] = [
            Started(
                self._prompt_tokens,
                self._cached_tokens,
                len(self._choices),
                edited=edited,
                written_tokens=self._written_tokens,
                elapsed=scheduled.elapsed,
            )
        ]
        if self._pending_outputs is None:
            events += self._build_prompt_events(None)
            if self._generates_nothing:
                events += self._finish_empty()
        return events

    def _build_prompt_events(self, scores: Sequence[TokenLogprob | None] | None) -> list[Event]:
        """Build the prompt's events, if the client requests them. Releases the job's
        prompt.
        """
        job = self._job
        self._job = None
        if job is None or not job.returns_prompt:
            return []
        scored_ids = zip(job.prompt, scores or [None] * len(job.prompt), strict=True)
        tokens: list[Token] = [job.vocabulary.build_token(id, score) for id, score in scored_ids]
        return [PromptTokens(0, job.prompt_text, tuple(tokens))]

    def _finish_empty(self) -> list[Event]:
        """End all choices without generation, as max_tokens is 0."""
        events: list[Event] = []
        for choice in self._choices:
            self._engine.abort(choice.id)
            events += self._finish_choice(choice, FinishReason.LENGTH, None)
        return events

    def _handle_token(self, choice: _Choice, token: int, score: TokenLogprob | None) -> list[Event]:
        pipeline = choice.pipeline
        # The engine may have sampled on before it handled the abort of a choice that a
        # stop string ended.
        if pipeline.has_finished:
            return []
        if self._generates_nothing:
            # max_tokens is 0 and the prompt is scored: the engine had to sample one
            # token, which is discarded. Without prompt logprobs the sequence has
            # already ended when it was scheduled.
            return self._finish_empty()
        choice.n_sampled += 1
        delta = choice.assembler.feed(token, score)
        # The token completes no character, or is hidden: its text, if any, comes with a
        # later token.
        if delta is None:
            return []
        events = pipeline.feed(delta)
        if pipeline.has_matched_stop:
            self._engine.abort(choice.id)
            events += self._finish_choice(choice, FinishReason.STOP, None)
        return events

    def _handle_end(self, ended: Ended) -> list[Event]:
        choice = self._find_choice(ended.id)
        if choice.pipeline.has_finished:
            return []
        # OpenAI's and vLLM's `stop_reason` is null for the end of the turn, and names
        # only stops that the request set.
        reason = ended.reason
        stop = None if ended.stop in self._eos else ended.stop
        # The grammar was closed because of the token limit, so the response is
        # truncated, although it is valid.
        if reason is FinishReason.STOP and (choice.was_closed or ended.was_closed):
            reason = FinishReason.LENGTH
            stop = None
        # Engines know one limit, which the pipeline has computed from two.
        if reason is FinishReason.LENGTH:
            reason = self._limit_reason
        return self._finish_choice(choice, reason, stop, ended.kv_transfer_params)

    def _finish_choice(
        self,
        choice: _Choice,
        reason: FinishReason,
        stop: int | None,
        kv_transfer_params: str | None = None,
    ) -> list[Event]:
        self._n_unfinished -= 1
        final_events = choice.assembler.finish(
            reason, stop, kv_transfer_params, choice.build_weight_spans()
        )
        return [event for raw_event in final_events for event in choice.pipeline.feed(raw_event)]

    def _build_usage(self) -> Usage:
        pipelines = [choice.pipeline for choice in self._choices]
        completion = sum([pipeline.n_tokens for pipeline in pipelines])
        return Usage(
            self._prompt_tokens,
            completion,
            self._cached_tokens,
            sum([pipeline.n_reasoning_tokens for pipeline in pipelines]),
            self._written_tokens,
        )


class _Choice:
    """One sequence and its event pipeline.

    n_sampled: number of sampled tokens.
    """

    __slots__ = ("_closing", "_weight_changes", "assembler", "id", "n_sampled", "pipeline")

    def __init__(self, job: TokenJob, number: int) -> None:
        self.id = job.requests[number].id
        self.assembler = TextAssembler(
            job.vocabulary,
            number,
            visible_ids=job.visible_control_ids,
            skips_special=job.skips_special,
        )
        self.pipeline = job.choice_pipelines[number]
        self.n_sampled = 0
        self._weight_changes: tuple[tuple[str, int], ...] = ()
        matcher = job.requests[number].matcher
        self._closing = matcher if isinstance(matcher, ClosingMatcher) else None

    @property
    def was_closed(self) -> bool:
        """Whether the response was forced to end by its token limit."""
        return self._closing is not None and self._closing.was_closed

    def record_weight_change(self, version: str) -> None:
        """Record the weights version that samples the next tokens."""
        self._weight_changes += ((version, self.n_sampled),)

    def build_weight_spans(self) -> tuple[WeightSpan, ...] | None:
        """Return the weights versions that sampled the tokens; None if the engine does
        not report them.
        """
        if not self._weight_changes:
            return None
        ends = [*(start for _, start in self._weight_changes[1:]), self.n_sampled]
        spans = zip(self._weight_changes, ends, strict=True)
        return tuple(WeightSpan(version, start, end) for (version, start), end in spans)
