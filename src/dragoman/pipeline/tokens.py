"""Runs one prompt on an engine of tokens: n sequences in, one stream of canonical events out."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from ..core.engine import Ended, Failed, PromptScored, Refused, Sampled, SampledBy, Scheduled, Score, TokenOutput
from ..core.errors import ConnectionCut, DragomanError, EngineError, Overloaded
from ..core.events import Event, Finished, FinishReason, PromptTokens, Started, Token, Usage, WeightSpan
from .mailbox import Mailbox
from .prepare import TokenJob
from .text import TextAssembler


class TokenRun:
    """The state of one prompt's answer. `batches` may be iterated once; closing it aborts every sequence."""

    def __init__(self, job: TokenJob) -> None:
        self._job = job
        self._mailbox: Mailbox[TokenOutput] = Mailbox()
        self._index = {request.id: choice for choice, request in enumerate(job.requests)}
        self._texts = [self._assembler(choice) for choice in range(len(job.requests))]
        self._strands = job.strands
        self._weights = [_Weights() for _ in job.requests]
        self._failure: DragomanError | None = None
        self._started = self._full = False
        self._cached: int | None = None
        self._unfinished = len(job.requests)
        # While the prompt's scores are awaited, what other choices say waits too: PromptTokens comes before them.
        self._held: list[TokenOutput] | None = [] if job.scored else None

    def _assembler(self, choice: int) -> TextAssembler:
        job = self._job
        return TextAssembler(job.vocabulary, choice, keep=job.keep, skip_special=job.skip_special)

    async def batches(self) -> AsyncGenerator[list[Event]]:
        engine = self._job.engine
        self._job.room.enter(len(self._job.prompt))
        try:
            self._add_all()
            while self._unfinished:
                await self._mailbox.arrival()
                outputs = self._mailbox.take()
                batch = self._read(outputs[0]) if len(outputs) == 1 else self._read_all(outputs)
                if batch:
                    yield batch
                if self._failure is not None:
                    raise self._failure
            yield [Finished(self._usage())]
        finally:
            for id, choice in self._index.items():
                if not self._strands[choice].finished:
                    engine.abort(id)
            self._leave()

    def _add_all(self) -> None:
        """Raises what the engine refuses them with."""
        try:
            for request in self._job.requests:
                self._job.engine.add(request, self._mailbox.put)
        except Overloaded:
            self._full = True
            raise

    def _leave(self) -> None:
        """Room for others: in the queue where this has not begun, in the engine otherwise."""
        room = self._job.room
        if self._started:
            room.drain()
        else:
            room.leave(len(self._job.prompt))
        if self._full:
            room.fill()

    def _read_all(self, outputs: list[TokenOutput]) -> list[Event]:
        return [event for output in outputs for event in self._read(output)]

    def _read(self, output: TokenOutput) -> list[Event]:
        if type(output) is Sampled and self._held is None:  # nearly always
            return self._token(self._index[output.id], output.token, output.score)
        match output:
            case Scheduled(_, cached):
                return self._scheduled(cached)
            case PromptScored(_, scores):
                held, self._held = self._held or [], None
                return [self._prompt(scores), *(event for each in held for event in self._read(each))]
            case Failed(_, message, cut):
                # What was said before it goes out first, also where both came together.
                self._failure = ConnectionCut(message) if cut else EngineError(message)
            case Refused(_, error):
                self._failure = error
            case Ended() if self._held is None:
                return self._ended(output)
            case SampledBy(id, version) if self._held is None:
                self._weights[self._index[id]].change(version)
            case SampledBy() | Sampled() | Ended():
                assert self._held is not None
                self._held.append(output)
        return []

    def _scheduled(self, cached: int) -> list[Event]:
        if self._started:
            return []
        self._started = True
        self._cached = cached
        job = self._job
        job.room.leave(len(job.prompt))
        started = Started(len(job.prompt), cached, len(job.requests), edited=job.edited)
        out: list[Event] = [started]
        if job.return_prompt and not job.scored:
            out.append(self._prompt([None] * len(job.prompt)))
        if job.nothing_to_say and not job.scored:
            out += self._say_nothing()
        return out

    def _prompt(self, scores: Sequence[Score | None]) -> Event:
        job = self._job
        tokens: list[Token] = [job.vocabulary.token(id, score) for id, score in zip(job.prompt, scores, strict=True)]
        return PromptTokens(0, job.prompt_text, tuple(tokens))

    def _say_nothing(self) -> list[Event]:
        """max_tokens is 0: the prompt was all that was wanted."""
        out: list[Event] = []
        for id, choice in self._index.items():
            self._job.engine.abort(id)
            out += self._close(choice, FinishReason.LENGTH, None)
        return out

    def _token(self, choice: int, token: int, score: Score | None) -> list[Event]:
        strand = self._strands[choice]
        if strand.finished:
            return []
        if self._job.nothing_to_say:
            # Its scores have come, else it would have been closed when it was scheduled.
            return self._say_nothing()
        self._weights[choice].tokens += 1
        delta = self._texts[choice].feed(token, score)
        if delta is None:
            return []
        out = strand.feed(delta)
        if strand.matched:
            self._job.engine.abort(self._job.requests[choice].id)
            out += self._close(choice, FinishReason.STOP, None)
        return out

    def _ended(self, end: Ended) -> list[Event]:
        choice = self._index[end.id]
        if self._strands[choice].finished:
            return []
        stop = None if end.stop in self._job.eos else end.stop
        return self._close(choice, end.reason, stop, end.kv_transfer_params)

    def _close(
        self, choice: int, reason: FinishReason, stop: int | None, kv_transfer_params: str | None = None
    ) -> list[Event]:
        strand = self._strands[choice]
        self._unfinished -= 1
        weights = self._weights[choice].spans()
        closed = self._texts[choice].close(reason, stop, kv_transfer_params, weights)
        return [event for last in closed for event in strand.feed(last)]

    def _usage(self) -> Usage:
        strands = self._strands
        completion = sum(strand.tokens for strand in strands)
        return Usage(len(self._job.prompt), completion, self._cached, sum(strand.reasoning for strand in strands))


class _Weights:
    """Which weights sampled the tokens of one choice."""

    __slots__ = ("_began", "tokens")

    def __init__(self) -> None:
        self.tokens = 0
        self._began: list[tuple[str, int]] = []

    def change(self, version: str) -> None:
        """From the next token on."""
        self._began.append((version, self.tokens))

    def spans(self) -> tuple[WeightSpan, ...] | None:
        if not self._began:
            return None
        ends = [*(start for _, start in self._began[1:]), self.tokens]
        return tuple(WeightSpan(version, start, end) for (version, start), end in zip(self._began, ends, strict=True))
