"""One sequence's answer: what llama.cpp is asked, what its words mean, what to ask when it did not tell all. Pure."""

from __future__ import annotations

from msgspec import Struct

from ...core.engine import Ended, Failed, Sampled, Scheduled, Score, TokenOutput, TokenRequest
from ...core.errors import EngineError
from ...core.events import FinishReason
from .guard import Bias, Guard
from .held import Spelling
from .wire import Body, Chunk, Scored

_SEEDS = 2**32 - 1
"""The largest number of 32 bits stands for any seed."""

_FIELDS = ("tokens", "tokens_predicted", "stop", "stop_type", "completion_probabilities")
"""Of the last event; the rest of it repeats the whole prompt."""


_NO_ROOM = "Context size has been exceeded"


class NoRoom(EngineError):
    """llama.cpp was ahead of what it had told, and all sequences together had more tokens than it has room for."""


class _Next(Struct, frozen=True):
    """What to ask next. count: this many tokens by themselves, since a completion that is no stream names all its
    tokens; 0 is all that are left, as a stream. mask: a bias that leaves only what the guard allows.
    """

    count: int = 0
    mask: tuple[Bias, ...] | None = None


class Answer:
    """over: Ended or Failed has been said. Until then, when a completion has ended or is `stale`, ask again.

    stale: what the completion still has to say follows something that was not to be, or that cannot be known.
    eog: ids that llama.cpp ends an answer at. context: tokens of prompt and answer. seed: of the first completion.
    """

    def __init__(
        self, request: TokenRequest, spelling: Spelling, eog: frozenset[int], *, seed: int, context: int
    ) -> None:
        self.request = request
        self.said: list[int] = []
        self.over = self.stale = False
        self._guard = Guard(request, len(spelling), eog)
        self._spelling, self._seed, self._context = spelling, seed, context
        self._next = self._now = _Next()
        self._announced = False
        self._counted = self._asked = 0

    @property
    def tokens(self) -> tuple[int, ...]:
        return (*self.request.prompt, *self.said)

    def body(self, slot: int, *, cached: bool) -> Body:
        """What to ask now. cached: what the slot holds may be used."""
        request, sampling, what = self.request, self.request.sampling, self._next
        early = request.min_tokens - len(self.said)
        left = request.max_tokens - len(self.said)
        self._next, self._now, self.stale, self._counted = _Next(), what, False, 0
        self._asked += 1
        return Body(
            prompt=self.tokens,
            n_predict=what.count or (min(early, left) if early > 0 else left),
            id_slot=slot,
            stream=what.count == 0,
            cache_prompt=cached,
            temperature=sampling.temperature,
            seed=(self._seed + self._asked - 1) % _SEEDS,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            repeat_penalty=sampling.repetition_penalty,
            repeat_last_n=self._context,
            return_tokens=True,
            return_progress=what.count == 0,
            logit_bias=self._guard.bias(self.said) if what.mask is None else what.mask,
            n_probs=0 if request.logprobs is None else max(request.logprobs, 1),
            # Only a first completion: a grammar begins with what is sampled, and knows of nothing before it.
            grammar=_headed(request.grammar or "") if self._asked == 1 else "",
            response_fields=_FIELDS,
        )

    def feed(self, chunk: Chunk) -> list[TokenOutput]:
        """What follows from one event. Raises EngineError where llama.cpp says that it failed, NoRoom where it may not
        fail again."""
        if chunk.error is not None:
            kind = NoRoom if _NO_ROOM in chunk.error.message else EngineError
            raise kind(f"llama.cpp: {chunk.error.message or chunk.error.type}")
        progress = chunk.prompt_progress
        if progress is not None and progress.total not in (0, len(self.tokens)):
            raise EngineError(f"llama.cpp reads {len(self.tokens)} tokens as {progress.total}")
        out: list[TokenOutput] = []
        if not self._announced:
            self._announced = True
            out.append(Scheduled(self.request.id, progress.cache if progress else 0))
        if progress is None:
            scores = {scored.id: scored for scored in chunk.completion_probabilities}
            for token in self._tokens(chunk):
                if self.over or self.stale:
                    break
                out += self._token(token, scores.get(token))
        if chunk.stop_type == "eos" and not (self.over or self.stale):
            # An end that the model's file does not name.
            out.append(self._finish(Ended(self.request.id, FinishReason.STOP)))
        return out

    def _tokens(self, chunk: Chunk) -> tuple[int, ...]:
        """Those of an event, with those that it does not tell of. Stale, and none, where they cannot be found out."""
        missing = chunk.tokens_predicted - self._counted - len(chunk.tokens)
        self._counted = chunk.tokens_predicted
        if not missing:
            return chunk.tokens
        held = self._spelling.held(chunk.content, missing, chunk.tokens[-1]) if chunk.tokens else None
        if held is None:
            self._ask(_Next(missing + len(chunk.tokens)))
            return ()
        return (*held, *chunk.tokens)

    def _token(self, token: int, scored: Scored | None) -> list[TokenOutput]:
        request, guard = self.request, self._guard
        if not guard.allows(token, self.said):
            return self._instead()
        if not guard.take(token):
            return [self._finish(Failed(request.id, "The grammar of this request failed."))]
        self.said.append(token)
        out: list[TokenOutput] = [Sampled(request.id, token, None if scored is None else self._score(scored))]
        if token in request.stop_token_ids:
            out.append(self._finish(Ended(request.id, FinishReason.STOP, token)))
        elif guard.finished:
            out.append(self._finish(Ended(request.id, FinishReason.STOP)))
        elif len(self.said) >= request.max_tokens:
            out.append(self._finish(Ended(request.id, FinishReason.LENGTH)))
        return out

    def _instead(self) -> list[TokenOutput]:
        """A token came that may not. Ask for another one, if any may come."""
        if self._now.mask is not None:
            return [self._finish(Failed(self.request.id, "The model returned invalid probabilities."))]
        mask = self._guard.mask(self.said)
        if mask is None:
            return [self._finish(Ended(self.request.id, FinishReason.STOP))]
        self._ask(_Next(1, mask))
        return []

    def _finish(self, end: Ended | Failed) -> Ended | Failed:
        self.over = True
        return end

    def _ask(self, what: _Next) -> None:
        self._next, self.stale = what, True

    def _score(self, scored: Scored) -> Score:
        top = tuple((other.id, other.logprob) for other in scored.top_logprobs)
        rank = next((place for place, (id, _) in enumerate(top, start=1) if id == scored.id), None)
        return Score(scored.logprob, rank, top[: self.request.logprobs])


def _headed(grammar: str) -> str:
    """llama.cpp knows llguidance's grammars by their first words, and none that is several in one (JSON)."""
    if not grammar or grammar.startswith("{"):
        return ""
    if grammar.startswith("%llguidance"):
        return grammar
    return f"%llguidance {{}}\n{grammar}"
