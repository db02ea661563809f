"""The run of one prompt on a token engine: outputs in, batches of events out."""

from __future__ import annotations

import logging
from collections.abc import Sequence

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
    OutputCallback,
    PromptLogprobs,
    Rejected,
    Sampled,
    Scheduled,
    TokenLogprob,
    TokenOutput,
    TokenRequest,
    WeightVersionSet,
)
from .detokenizer import TextAssembler
from .request_preparation import TokenJob
from .request_queue import QueuedRequest

log = logging.getLogger(__name__)


class TokenRun:
    """One prompt's response from a token engine: n sequences in, one stream of
    canonical events out. The driver waits for the outputs.

    Parts of the job are released as soon as they are no longer needed, since many runs
    wait for tokens at once.

    id: the id of the first sequence.
    failure: the error that ends the response after the events of `feed`.
    has_ended: whether all choices are finished.
    queue_was_full: whether the engine has rejected a sequence because its own queue was
        full.
    """

    __slots__ = (
        "_applied_edits",
        "_cached_tokens",
        "_choices",
        "_choices_by_id",
        "_deltas",
        "_engine",
        "_eos",
        "_generates_nothing",
        "_has_started",
        "_has_tokens_of_answer",
        "_job",
        "_limit_reason",
        "_n_unfinished",
        "_pending_outputs",
        "_place",
        "_prompt_tokens",
        "_written_tokens",
        "failure",
        "has_ended",
        "queue_ticket",
        "queue_was_full",
    )

    def __init__(self, job: TokenJob) -> None:
        self._job: TokenJob | None = job
        self._applied_edits = job.applied_edits
        self._engine = job.engine
        self._eos = job.eos
        self.queue_ticket = job.queue_ticket
        self._place: QueuedRequest | None = None
        self._generates_nothing = job.generates_nothing
        self._limit_reason = job.limit_reason
        self._prompt_tokens = len(job.prompt)
        choices: list[_Choice] = []
        for number, request in enumerate(job.requests):
            choices.append(_Choice(job, request, number))
        self._choices = choices
        self._deltas = job.vocabulary.deltas
        # By sequence id; None if there is only one sequence.
        self._choices_by_id = (
            {choice.id: choice for choice in choices} if len(choices) > 1 else None
        )
        self.failure: DragomanError | None = None
        self.queue_was_full = False
        self._has_started = False
        self._cached_tokens: int | None = None
        self._written_tokens: int | None = None
        self._n_unfinished = len(choices)
        self.has_ended = False
        # While prompt logprobs are pending, output of other choices waits too:
        # PromptTokens precedes all text.
        self._pending_outputs: list[TokenOutput] | None = (
            None if job.requests[0].prompt_logprobs is None else []
        )
        # Whether sampled tokens are the answer's, and become text at once.
        self._has_tokens_of_answer = not job.generates_nothing and self._pending_outputs is None

    @property
    def id(self) -> str:
        return self._choices[0].id

    @property
    def prompt_tokens(self) -> int | None:
        """Tokens of the prompt; None until the engine starts."""
        return self._prompt_tokens if self._has_started else None

    @property
    def cached_tokens(self) -> int | None:
        return self._cached_tokens

    @property
    def n_tokens(self) -> int:
        """Number of tokens that the engine has sampled."""
        count = 0
        for choice in self._choices:
            count += choice.n_sampled
        return count

    @property
    def can_wait(self) -> bool:
        """Whether sampled tokens may be fed late, as none of them ends a sequence."""
        return self._choices[0].pipeline.stops is None and not self._generates_nothing

    def submit(self, deliver: OutputCallback, place: QueuedRequest) -> None:
        """Submit all sequences. Raises the engine's error if it rejects one.

        place: the request's place in the queue, which learns when the engine starts.
        """
        self._place = place
        job = self._job
        assert job is not None
        try:
            for request in job.requests:
                self._engine.add(request, deliver)
        # The engine's own queue may be shorter than ours. Whether it is full is known
        # only by trying.
        except QueueFull:
            self.queue_was_full = True
            raise
        if not job.returns_prompt:
            # Many requests of a burst wait in the engine's queue, which has what it
            # needs: the prompt and the request take 2 KB of each.
            self._job = None

    def abort(self) -> None:
        """Abort the sequences that have not finished."""
        for choice in self._choices:
            if choice.pipeline.has_finished:
                continue
            try:
                self._engine.abort(choice.id)
            except BaseException:
                # `abort` does not block, so this cannot be our own cancellation. The
                # response has already ended.
                log.exception("an engine failed to abort %s", choice.id)

    def feed(self, outputs: list[TokenOutput]) -> list[Event]:
        """Handle the outputs of a delivery."""
        events: list[Event] = []
        for output in outputs:
            if type(output) is not Sampled or not self._has_tokens_of_answer:
                events += self._handle_output(output)
                continue
            # Nearly every output: handled here, without a call.
            choice = (
                self._choices[0] if self._choices_by_id is None else self._choices_by_id[output.id]
            )
            pipeline = choice.pipeline
            # The engine may have sampled on before it handled the abort of a choice
            # that a stop string ended.
            if pipeline.has_finished:
                continue
            choice.n_sampled += 1
            delta = (
                self._deltas.get(output.token)
                if choice.is_aligned and output.logprobs is None
                else None
            ) or choice.feed(output.token, output.logprobs)
            # The token completes no character, or is hidden: its text, if any, comes
            # with a later token.
            if delta is None:
                continue
            if pipeline.is_transparent:
                pipeline.n_tokens += len(delta.tokens)
                events.append(delta)
                continue
            events += pipeline.feed(delta)
            if pipeline.has_matched_stop:
                self._engine.abort(choice.id)
                events += self._finish_choice(choice, FinishReason.STOP, None)
        return events

    def _find_choice(self, id: str) -> _Choice:
        return self._choices[0] if self._choices_by_id is None else self._choices_by_id[id]

    def _handle_output(self, output: TokenOutput) -> list[Event]:
        if self._pending_outputs is not None and isinstance(
            output, WeightVersionSet | Sampled | Ended
        ):
            self._pending_outputs.append(output)
            # The prompt's logprobs come before the end of the first sequence, unless it
            # has never run.
            has_run = not isinstance(output, Ended) or output.id != self.id
            return [] if has_run else self._handle_pending(None)
        match output:
            case Scheduled():
                return self._handle_scheduled(output)
            case Ended():
                return self._handle_end(output)
            case Sampled(id):
                # max_tokens is 0 and the prompt is scored: the engine had to sample one
                # token, which is discarded. Without prompt logprobs the sequence has
                # already ended when it was scheduled.
                if not self._find_choice(id).pipeline.has_finished:
                    return self._finish_empty()
            case PromptLogprobs(_, scores):
                return self._handle_pending(scores)
            case Failed() | Rejected() if self.has_ended:
                # The response is complete. The engine has failed before it handled the
                # abort of a stop string.
                pass
            case Failed(_, message, is_cut):
                # The events of this delivery are sent first. Output that waits for
                # prompt logprobs is dropped.
                self.failure = ConnectionDropped(message) if is_cut else EngineError(message)
            case Rejected(_, error):
                self.failure = error
                # An engine in another process rejects after `add`.
                self.queue_was_full = self.queue_was_full or isinstance(error, QueueFull)
            case WeightVersionSet(id, version):
                self._find_choice(id).record_weight_change(version)
        return []

    def _handle_pending(self, scores: Sequence[TokenLogprob | None] | None) -> list[Event]:
        """Handle the outputs that wait for the prompt's logprobs. scores: None if there
        are none.
        """
        pending = self._pending_outputs or []
        self._pending_outputs = None
        self._has_tokens_of_answer = not self._generates_nothing
        events = [] if self._has_started else [self._start()]
        events += self._build_prompt_events(scores)
        return events + self.feed(pending)

    def _handle_scheduled(self, scheduled: Scheduled) -> list[Event]:
        if self._has_started:
            return []
        self._cached_tokens = scheduled.cached_tokens
        self._written_tokens = scheduled.written_tokens
        events: list[Event] = [self._start(scheduled.elapsed)]
        if self._pending_outputs is None:
            if self._job is not None:
                events += self._build_prompt_events(None)
            if self._generates_nothing:
                events += self._finish_empty()
        return events

    def _start(self, elapsed: float = 0.0, *, ends_empty: bool = False) -> Event:
        """Start the response. elapsed: as of `Scheduled`."""
        self._has_started = True
        if self._place is not None:
            self._place.start()
        return Started(
            self._prompt_tokens,
            self._cached_tokens,
            len(self._choices),
            edited=self._applied_edits,
            written_tokens=self._written_tokens,
            elapsed=elapsed,
            ends_empty=ends_empty,
        )

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

    def _handle_end(self, ended: Ended) -> list[Event]:
        choice = self._choices[0] if self._choices_by_id is None else self._choices_by_id[ended.id]
        if choice.pipeline.has_finished:
            return []
        events: list[Event] = []
        if not self._has_started:
            # It has ended in the engine's queue.
            job = self._job
            returns_prompt = job is not None and job.returns_prompt
            events.append(self._start(ends_empty=len(self._choices) == 1 and not returns_prompt))
            events += self._build_prompt_events(None)
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
        events += self._finish_choice(choice, reason, stop, ended.kv_transfer_params)
        return events

    def _finish_choice(
        self,
        choice: _Choice,
        reason: FinishReason,
        stop: int | None,
        kv_transfer_params: str | None = None,
    ) -> list[Event]:
        self._n_unfinished -= 1
        self.has_ended = not self._n_unfinished
        weights = choice.build_weight_spans() if choice.weight_changes else None
        events: list[Event] = []
        for event in choice.finish(reason, stop, kv_transfer_params, weights):
            events += choice.pipeline.feed(event)
        return events

    def build_finished(self) -> Finished:
        """Return the end of the response, with its counts."""
        completion = 0
        reasoning = 0
        warnings: tuple[str, ...] = ()
        for choice in self._choices:
            pipeline = choice.pipeline
            completion += pipeline.n_tokens
            reasoning += pipeline.n_reasoning_tokens
            warnings += pipeline.warnings
        return Finished(
            Usage(
                self._prompt_tokens,
                completion,
                self._cached_tokens,
                reasoning,
                self._written_tokens,
            ),
            warnings=tuple(dict.fromkeys(warnings)) if warnings else (),
        )


class _Choice(TextAssembler):
    """One sequence: its tokens, assembled into events, and its event pipeline.

    n_sampled: number of sampled tokens.
    weight_changes: versions of the weights, and the number of tokens before each.
    """

    __slots__ = ("_closing", "id", "n_sampled", "pipeline", "weight_changes")

    def __init__(self, job: TokenJob, request: TokenRequest, number: int) -> None:
        super().__init__(
            job.vocabulary,
            number,
            visible_ids=job.visible_control_ids,
            skips_special=job.skips_special,
        )
        self.id = request.id
        self.pipeline = job.choice_pipelines[number]
        self.n_sampled = 0
        self.weight_changes: tuple[tuple[str, int], ...] = ()
        matcher = request.matcher
        self._closing = matcher if isinstance(matcher, ClosingMatcher) else None

    @property
    def was_closed(self) -> bool:
        """Whether the response was forced to end by its token limit."""
        return self._closing is not None and self._closing.was_closed

    def record_weight_change(self, version: str) -> None:
        """Record the weights version that samples the next tokens."""
        self.weight_changes += ((version, self.n_sampled),)

    def build_weight_spans(self) -> tuple[WeightSpan, ...]:
        """Return the weights versions that sampled the tokens."""
        ends = [*(start for _, start in self.weight_changes[1:]), self.n_sampled]
        spans = zip(self.weight_changes, ends, strict=True)
        return tuple(WeightSpan(version, start, end) for (version, start), end in spans)
