"""Runs one prompt on an engine of tokens: n sequences in, one stream of canonical events out."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence

from ..core.engine import Ended, Failed, PromptScored, Refused, Sampled, SampledBy, Scheduled, Score, TokenOutput
from ..core.errors import ConnectionCut, DragomanError, EngineError, QueueFull
from ..core.events import Event, Finished, FinishReason, PromptTokens, Started, Token, Usage, WeightSpan
from .engine_calls import EngineCall, Progress
from .mailbox import Mailbox
from .prepare import TokenJob
from .text import TextAssembler

log = logging.getLogger(__name__)


class TokenRun:
    """The state of one prompt's answer. `batches` may be iterated once; closing it aborts every sequence.

    Of the job nothing is kept for longer than it is needed: many of these wait for their tokens at the same time.
    """

    __slots__ = (
        "_cached",
        "_choices",
        "_engine",
        "_eos",
        "_failure",
        "_full",
        "_held",
        "_job",
        "_mailbox",
        "_nothing_to_say",
        "_others",
        "_progress",
        "_prompt_tokens",
        "_room",
        "_started",
        "_unfinished",
    )

    def __init__(self, job: TokenJob, progress: Progress) -> None:
        self._job: TokenJob | None = job
        self._progress = progress
        self._engine, self._room, self._eos = job.engine, job.room, job.eos
        self._nothing_to_say = job.nothing_to_say
        self._prompt_tokens = len(job.prompt)
        self._mailbox: Mailbox[TokenOutput] = Mailbox()
        self._choices = tuple(_Choice(job, number) for number in range(len(job.requests)))
        # By the ids of their sequences, where there are several.
        self._others = {choice.id: choice for choice in self._choices} if len(self._choices) > 1 else None
        self._failure: DragomanError | None = None
        self._started = self._full = False
        self._cached: int | None = None
        self._unfinished = len(job.requests)
        # While the prompt's scores are awaited, what other choices say waits too: PromptTokens comes before them.
        self._held: list[TokenOutput] | None = [] if job.scored else None

    async def batches(self) -> AsyncGenerator[list[Event]]:
        progress = self._progress
        self._room.enter(self._prompt_tokens)
        progress.begin()
        try:
            with EngineCall():
                self._add_all()
            while self._unfinished:
                await self._mailbox.arrival()
                progress.events += 1
                batch = self._read_all(self._mailbox.take())
                if batch:
                    yield batch
                # What was said is not kept until the next is.
                del batch
                if self._failure is not None:
                    raise self._failure
            yield [Finished(self._usage())]
        finally:
            self._abort_unfinished()
            progress.end()
            self._leave()

    def _add_all(self) -> None:
        """Raises what the engine refuses them with."""
        job, deliver = self._job, self._mailbox.put
        assert job is not None
        try:
            for request in job.requests:
                self._engine.add(request, deliver)
        except QueueFull:
            self._full = True
            raise

    def _abort_unfinished(self) -> None:
        for choice in self._choices:
            if not choice.strand.finished:
                try:
                    self._engine.abort(choice.id)
                except BaseException:
                    # The call does not wait, so that this is no cancellation of ours. The answer has its end already.
                    log.exception("an engine failed to abort %s", choice.id)

    def _leave(self) -> None:
        """Room for others: in the queue where this has not begun, in the engine otherwise."""
        if self._started:
            self._room.drain()
        else:
            self._room.leave(self._prompt_tokens)
        if self._full:
            self._room.fill()

    def _choice(self, id: str) -> _Choice:
        return self._choices[0] if self._others is None else self._others[id]

    def _read_all(self, outputs: list[TokenOutput]) -> list[Event]:
        if len(outputs) == 1:  # nearly always
            return self._read(outputs[0])
        return [event for output in outputs for event in self._read(output)]

    def _read(self, output: TokenOutput) -> list[Event]:
        if type(output) is Sampled and self._held is None:  # nearly always
            return self._token(self._choice(output.id), output.token, output.score)
        match output:
            case Scheduled(_, cached):
                return self._scheduled(cached)
            case PromptScored(_, scores):
                held, self._held = self._held or [], None
                return [*self._prompt(scores), *(event for each in held for event in self._read(each))]
            case Failed(_, message, cut):
                # What was said before it goes out first, also where both came together.
                self._failure = ConnectionCut(message) if cut else EngineError(message)
            case Refused(_, error):
                self._failure = error
            case Ended() if self._held is None:
                return self._ended(output)
            case SampledBy(id, version) if self._held is None:
                self._choice(id).change_weights(version)
            case SampledBy() | Sampled() | Ended():
                assert self._held is not None
                self._held.append(output)
        return []

    def _scheduled(self, cached: int) -> list[Event]:
        if self._started:
            return []
        self._started = True
        self._cached = cached
        self._room.leave(self._prompt_tokens)
        edited = () if self._job is None else self._job.edited
        out: list[Event] = [Started(self._prompt_tokens, cached, len(self._choices), edited=edited)]
        if self._held is None:
            out += self._prompt(None)
            if self._nothing_to_say:
                out += self._say_nothing()
        return out

    def _prompt(self, scores: Sequence[Score | None] | None) -> list[Event]:
        """The prompt, if it is wanted. The job has served its turn then."""
        job, self._job = self._job, None
        if job is None or not job.return_prompt:
            return []
        scored = zip(job.prompt, scores or [None] * len(job.prompt), strict=True)
        tokens: list[Token] = [job.vocabulary.token(id, score) for id, score in scored]
        return [PromptTokens(0, job.prompt_text, tuple(tokens))]

    def _say_nothing(self) -> list[Event]:
        """max_tokens is 0: the prompt was all that was wanted."""
        out: list[Event] = []
        for choice in self._choices:
            self._engine.abort(choice.id)
            out += self._close(choice, FinishReason.LENGTH, None)
        return out

    def _token(self, choice: _Choice, token: int, score: Score | None) -> list[Event]:
        strand = choice.strand
        if strand.finished:
            return []
        if self._nothing_to_say:
            # Its scores have come, else it would have been closed when it was scheduled.
            return self._say_nothing()
        choice.sampled += 1
        delta = choice.text.feed(token, score)
        if delta is None:
            return []
        out = strand.feed(delta)
        if strand.matched:
            self._engine.abort(choice.id)
            out += self._close(choice, FinishReason.STOP, None)
        return out

    def _ended(self, end: Ended) -> list[Event]:
        choice = self._choice(end.id)
        if choice.strand.finished:
            return []
        stop = None if end.stop in self._eos else end.stop
        return self._close(choice, end.reason, stop, end.kv_transfer_params)

    def _close(
        self, choice: _Choice, reason: FinishReason, stop: int | None, kv_transfer_params: str | None = None
    ) -> list[Event]:
        self._unfinished -= 1
        closed = choice.text.close(reason, stop, kv_transfer_params, choice.weights())
        return [event for last in closed for event in choice.strand.feed(last)]

    def _usage(self) -> Usage:
        strands = [choice.strand for choice in self._choices]
        completion = sum(strand.tokens for strand in strands)
        return Usage(self._prompt_tokens, completion, self._cached, sum(strand.reasoning for strand in strands))


class _Choice:
    """One sequence on its way to events. sampled: how many tokens it has had."""

    __slots__ = ("_changes", "id", "sampled", "strand", "text")

    def __init__(self, job: TokenJob, number: int) -> None:
        self.id = job.requests[number].id
        self.text = TextAssembler(job.vocabulary, number, keep=job.keep, skip_special=job.skip_special)
        self.strand = job.strands[number]
        self.sampled = 0
        self._changes: tuple[tuple[str, int], ...] = ()

    def change_weights(self, version: str) -> None:
        """Which ones sample from the next token on."""
        self._changes += ((version, self.sampled),)

    def weights(self) -> tuple[WeightSpan, ...] | None:
        """Which ones sampled its tokens; None where the engine does not tell."""
        if not self._changes:
            return None
        ends = [*(start for _, start in self._changes[1:]), self.sampled]
        spans = zip(self._changes, ends, strict=True)
        return tuple(WeightSpan(version, start, end) for (version, start), end in spans)
