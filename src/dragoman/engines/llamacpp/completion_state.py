"""State of one sequence over llama.cpp completions: request bodies, parsing of events, recovery of unreported tokens.
Pure."""

from __future__ import annotations

from msgspec import Struct

from ...core.engine import Ended, Failed, Sampled, Scheduled, TokenLogprob, TokenOutput, TokenRequest
from ...core.errors import EngineError
from ...core.events import FinishReason
from .grammar import build_native_grammar
from .token_filter import Bias, TokenFilter
from .token_text import TokenText
from .wire import CompletionBody, CompletionChunk, ScoredToken

_MAX_SEED = 2**32 - 1
"""llama.cpp's LLAMA_DEFAULT_SEED (2**32 - 1): a random seed."""

_RESPONSE_FIELDS = ("tokens", "tokens_predicted", "stop", "stop_type", "completion_probabilities")
"""Fields of the last event; the others repeat the whole prompt."""


_CONTEXT_EXCEEDED = "Context size has been exceeded"


class ContextExceeded(EngineError):
    """llama.cpp exceeded its context: it generates ahead of what it reports, and all sequences together were too
    long."""


class _NextCompletion(Struct, frozen=True):
    """The next completion request.

    count: number of tokens, non-streamed, since such a response lists all of its tokens; 0 streams all that are left.
    mask: a bias that excludes all but the tokens allowed by the filter.
    """

    count: int = 0
    mask: tuple[Bias, ...] | None = None


class CompletionState:
    """State of one sequence. Until it has finished, a new completion is requested when one ends or is stale.

    is_finished: Ended or Failed was returned.
    is_stale: further events of the completion follow a token that was rejected or could not be recovered.
    eog: ids at which llama.cpp ends generation.
    context: maximum tokens of prompt and output.
    seed: of the first completion.
    has_native_grammars: llama.cpp applies grammars too; otherwise only the filter here does, at one request per
        rejected token.
    """

    def __init__(
        self,
        request: TokenRequest,
        token_text: TokenText,
        eog: frozenset[int],
        *,
        seed: int,
        context: int,
        has_native_grammars: bool = True,
    ) -> None:
        self.request = request
        self.output: list[int] = []
        self.is_finished = self.is_stale = False
        self._filter = TokenFilter(request, len(token_text), eog)
        self._token_text, self._seed, self._context = token_text, seed, context
        self._native_grammar = build_native_grammar(request.grammar or "", eog) if has_native_grammars else ""
        self._next = self._current = _NextCompletion()
        self._is_announced = False
        self._num_predicted = self._num_completions = 0

    @property
    def tokens(self) -> tuple[int, ...]:
        return (*self.request.prompt, *self.output)

    def build_body(self, slot: int, *, cached: bool) -> CompletionBody:
        """Build the next completion request. cached: whether the slot's contents may be reused."""
        request, sampling, completion = self.request, self.request.sampling, self._next
        until_min_tokens = request.min_tokens - len(self.output)
        remaining = request.max_tokens - len(self.output)
        self._next, self._current, self.is_stale, self._num_predicted = _NextCompletion(), completion, False, 0
        self._num_completions += 1
        return CompletionBody(
            prompt=self.tokens,
            n_predict=completion.count or (min(until_min_tokens, remaining) if until_min_tokens > 0 else remaining),
            id_slot=slot,
            stream=completion.count == 0,
            cache_prompt=cached,
            temperature=sampling.temperature,
            seed=(self._seed + self._num_completions - 1) % _MAX_SEED,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            repeat_penalty=sampling.repetition_penalty,
            repeat_last_n=self._context,
            return_tokens=True,
            return_progress=completion.count == 0,
            logit_bias=self._filter.build_bias(self.output) if completion.mask is None else completion.mask,
            n_probs=0 if request.logprobs is None else max(request.logprobs, 1),
            # Only in the first completion: a grammar starts at the first sampled token and ignores earlier ones.
            grammar=self._native_grammar if self._num_completions == 1 else "",
            response_fields=_RESPONSE_FIELDS,
        )

    def feed(self, chunk: CompletionChunk) -> list[TokenOutput]:
        """Process one event. Raises EngineError if llama.cpp reports a failure, ContextExceeded if it ran out of
        context."""
        if chunk.error is not None:
            error_type = ContextExceeded if _CONTEXT_EXCEEDED in chunk.error.message else EngineError
            raise error_type(f"llama.cpp: {chunk.error.message or chunk.error.type}")
        progress = chunk.prompt_progress
        if progress is not None and progress.total not in (0, len(self.tokens)):
            raise EngineError(f"llama.cpp reads {len(self.tokens)} tokens as {progress.total}")
        outputs: list[TokenOutput] = []
        if not self._is_announced:
            self._is_announced = True
            outputs.append(Scheduled(self.request.id, progress.cache if progress else 0))
        if progress is None:
            scores = {scored.id: scored for scored in chunk.completion_probabilities}
            for token in self._recover_tokens(chunk):
                if self.is_finished or self.is_stale:
                    break
                outputs += self._accept_token(token, scores.get(token))
        if chunk.stop_type == "eos" and not (self.is_finished or self.is_stale):
            # An end token that the model file does not declare.
            outputs.append(self._finish(Ended(self.request.id, FinishReason.STOP)))
        return outputs

    def _recover_tokens(self, chunk: CompletionChunk) -> tuple[int, ...]:
        """Recover the tokens of an event, including unreported ones. Empty and stale if they are ambiguous."""
        missing = chunk.tokens_predicted - self._num_predicted - len(chunk.tokens)
        self._num_predicted = chunk.tokens_predicted
        if not missing:
            return chunk.tokens
        recovered = self._token_text.recover_tokens(chunk.content, missing, chunk.tokens[-1]) if chunk.tokens else None
        if recovered is None:
            self._schedule_completion(_NextCompletion(missing + len(chunk.tokens)))
            return ()
        return (*recovered, *chunk.tokens)

    def _accept_token(self, token: int, scored: ScoredToken | None) -> list[TokenOutput]:
        request, token_filter = self.request, self._filter
        # The grammar in llama.cpp does not cover everything that a request may exclude, so each token is checked here
        # too.
        if not token_filter.is_allowed(token, self.output):
            return self._replace_token()
        if not token_filter.accept(token):
            return [self._finish(Failed(request.id, "The grammar of this request failed."))]
        self.output.append(token)
        outputs: list[TokenOutput] = [
            Sampled(request.id, token, None if scored is None else self._build_logprob(scored))
        ]
        if token in request.stop_token_ids:
            outputs.append(self._finish(Ended(request.id, FinishReason.STOP, token)))
        elif token_filter.is_finished:
            outputs.append(self._finish(Ended(request.id, FinishReason.STOP)))
        elif len(self.output) >= request.max_tokens:
            outputs.append(self._finish(Ended(request.id, FinishReason.LENGTH)))
        return outputs

    def _replace_token(self) -> list[TokenOutput]:
        """Replace a rejected token: request another one, if any is allowed."""
        if self._current.mask is not None:
            return [self._finish(Failed(self.request.id, "The model returned invalid probabilities."))]
        mask = self._filter.build_mask(self.output)
        if mask is None:
            return [self._finish(Ended(self.request.id, FinishReason.STOP))]
        self._schedule_completion(_NextCompletion(1, mask))
        return []

    def _finish(self, end: Ended | Failed) -> Ended | Failed:
        self.is_finished = True
        return end

    def _schedule_completion(self, completion: _NextCompletion) -> None:
        self._next, self.is_stale = completion, True

    def _build_logprob(self, scored: ScoredToken) -> TokenLogprob:
        top = tuple((other.id, other.logprob) for other in scored.top_logprobs)
        rank = next((position for position, (id, _) in enumerate(top, start=1) if id == scored.id), None)
        return TokenLogprob(scored.logprob, rank, top[: self.request.logprobs])
