"""The state of one sequence over llama.cpp completions: builds requests, processes
events. Does no I/O.
"""

from __future__ import annotations

from msgspec import Struct

from ...core.errors import EngineError
from ...core.events import FinishReason
from ...core.token_engine import (
    Ended,
    Failed,
    PromptLogprobs,
    Sampled,
    Scheduled,
    TokenOutput,
    TokenRequest,
)
from ..batching import GREEDY_BELOW, ReasoningBudgetState
from .native_grammar import build_native_grammar
from .prompt_logprobs import PromptScorer, build_logprob
from .token_filter import FORCING_BIAS, Bias, PromptPenaltyBias, TokenFilter
from .token_text import TokenText
from .wire import SAMPLERS, CompletionBody, CompletionChunk, ScoredToken

_MAX_SEED = 2**32 - 1
"""Exclusive maximum: llama.cpp's LLAMA_DEFAULT_SEED, 2**32 - 1, stands for a random
seed.
"""

_RESPONSE_FIELDS = ("tokens", "tokens_predicted", "stop", "stop_type", "completion_probabilities")
"""Fields of the last event; the others repeat the whole prompt."""


_GREEDY_SAMPLERS = ("penalties", "temperature", "top_k")
"""Used with `top_k` 1. The temperature comes first because it resolves ties: the lowest
id wins.
"""

_CONTEXT_EXCEEDED = "Context size has been exceeded"


_STEP_ERRORS = frozenset({"Compute error.", "Invalid input batch."})
"""What llama.cpp reports to every sequence of a step that it cannot compute."""


class ContextExceeded(EngineError):
    """The sequences together exceeded llama.cpp's context, because it generates ahead
    of what it reports.
    """


class StepFailed(EngineError):
    """A step failed for all of its sequences, whichever of them caused it."""


class InvalidLogits(StepFailed):
    """The logits of a sequence are not finite.

    So are its keys and values, which stay in the KV cache. Attention multiplies those of
    other sequences and of freed cells by zero, so all who share the cache have NaN from
    here on.
    """

    def __init__(self) -> None:
        super().__init__("The model returned invalid probabilities.")


class _NextCompletion(Struct, frozen=True):
    """The next completion request.

    count: number of tokens of a non-streamed completion, which lists all of its tokens;
        0 streams all that remain.
    mask: a bias that excludes all but the tokens allowed by the filter.
    forced: the token that ends reasoning; nothing else is possible.
    """

    count: int = 0
    mask: tuple[Bias, ...] | None = None
    forced: int | None = None


class CompletionState:
    """State of one sequence. Until it has finished, a new completion is requested when
    one ends or is stale.

    is_finished: Ended or Failed was returned.
    is_stale: further events of the current completion are useless: they follow a token
        that was rejected, that could not be recovered, or that changes how the next
        tokens are sampled.
    eog: ids at which llama.cpp ends generation.
    context: maximum tokens of prompt and output.
    seed: seed of the first completion.
    native_grammar: what llama.cpp applies too; if empty, only the filter here applies the
        grammar, at one request per rejected token.
    """

    def __init__(
        self,
        request: TokenRequest,
        token_text: TokenText,
        eog: frozenset[int],
        *,
        seed: int,
        context: int,
    ) -> None:
        self.request = request
        self.output: list[int] = []
        self.is_finished = self.is_stale = False
        self._filter = TokenFilter(request, len(token_text), eog)
        self._token_text = token_text
        self._seed = seed
        self._context = context
        self.native_grammar = build_native_grammar(request.grammar or "", eog)
        self._next = self._current = _NextCompletion()
        self._is_announced = False
        self._penalty_bias = PromptPenaltyBias(request)
        self._budget = (
            None
            if request.reasoning_budget is None
            else ReasoningBudgetState(request.reasoning_budget)
        )
        self._scorer: PromptScorer | None = None
        if request.prompt_logprobs is not None and len(request.prompt) > 1:
            self._scorer = PromptScorer(request.prompt, request.prompt_logprobs, token_text, eog)
        self._force_reasoning_end()
        self._num_predicted = self._num_completions = 0

    @property
    def tokens(self) -> tuple[int, ...]:
        return (*self.request.prompt, *self.output)

    def build_body(self, slot: int, *, cached: bool) -> CompletionBody:
        """Build the next completion request. cached: whether the slot's contents may be
        reused.
        """
        request = self.request
        sampling = self.request.sampling
        if self._scorer is not None:
            return self._build_scoring_body(self._scorer, slot, cached=cached)
        completion = self._next
        is_forced = self._next.forced is not None
        bias = self._filter.build_bias(self.output) if completion.mask is None else completion.mask
        bias = (*bias, *self._penalty_bias.build())
        if completion.forced is not None:
            bias = ((completion.forced, FORCING_BIAS),)
        is_greedy = is_forced or sampling.temperature < GREEDY_BELOW
        # A bias applies to a whole completion, so it ends at `min_tokens`: from there
        # on, end tokens are allowed.
        until_min_tokens = request.min_tokens - len(self.output)
        remaining = request.max_tokens - len(self.output)
        self._next = _NextCompletion()
        self._current = completion
        self.is_stale = False
        self._num_predicted = 0
        self._num_completions += 1
        # llama.cpp restarts the random numbers of a seed with each completion, so each
        # completion gets another seed.
        return CompletionBody(
            prompt=self.tokens,
            n_predict=completion.count
            or (min(until_min_tokens, remaining) if until_min_tokens > 0 else remaining),
            id_slot=slot,
            stream=completion.count == 0,
            cache_prompt=cached,
            temperature=0.0 if is_greedy else sampling.temperature,
            seed=(self._seed + self._num_completions - 1) % _MAX_SEED,
            top_k=1 if is_greedy else sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            repeat_penalty=1.0 if is_forced else sampling.repetition_penalty,
            repeat_last_n=self._context,
            presence_penalty=0.0 if is_forced else sampling.presence_penalty,
            frequency_penalty=0.0 if is_forced else sampling.frequency_penalty,
            return_tokens=True,
            return_progress=completion.count == 0,
            logit_bias=bias,
            # Always one: llama.cpp samples a token from logits of NaN too, and only
            # the logprob tells. `post_sampling_probs` would spare a pass over the
            # vocabulary, but does not show a NaN with greedy sampling.
            n_probs=max(request.logprobs or 0, 1),
            # Only in the first completion: a grammar starts at the first sampled token
            # and ignores earlier ones.
            grammar=self.native_grammar if self._num_completions == 1 else "",
            response_fields=_RESPONSE_FIELDS,
            samplers=_GREEDY_SAMPLERS if is_greedy else SAMPLERS,
        )

    def _build_scoring_body(
        self, scorer: PromptScorer, slot: int, *, cached: bool
    ) -> CompletionBody:
        completion = scorer.build_completion()
        self.is_stale = False
        return CompletionBody(
            prompt=completion.prompt,
            n_predict=completion.count,
            id_slot=slot,
            stream=False,
            cache_prompt=cached,
            temperature=0.0,
            seed=0,
            top_k=1,
            top_p=1.0,
            min_p=0.0,
            repeat_penalty=1.0,
            repeat_last_n=0,
            samplers=_GREEDY_SAMPLERS,
            return_tokens=True,
            logit_bias=completion.bias,
            n_probs=completion.n_probs,
            grammar=completion.grammar,
            response_fields=_RESPONSE_FIELDS,
        )

    def feed(self, chunk: CompletionChunk) -> list[TokenOutput]:
        """Process one event. Raises EngineError if llama.cpp reports a failure,
        ContextExceeded if it ran out of context, StepFailed if it failed all sequences
        of a step, InvalidLogits.
        """
        check_chunk(chunk)
        if self._scorer is not None:
            return self._feed_scores(self._scorer, chunk)
        progress = chunk.prompt_progress
        if progress is not None and progress.total not in (0, len(self.tokens)):
            raise EngineError(f"llama.cpp reads {len(self.tokens)} tokens as {progress.total}")
        outputs: list[TokenOutput] = []
        if not self._is_announced:
            self._is_announced = True
            outputs.append(Scheduled(self.request.id, progress.cache if progress else 0))
            if self.request.prompt_logprobs is not None:
                outputs.append(
                    PromptLogprobs(self.request.id, (None,))
                )  # nothing precedes its only token
        if progress is None:
            tokens = chunk.tokens
            missing = chunk.tokens_predicted - self._num_predicted - len(chunk.tokens)
            self._num_predicted = chunk.tokens_predicted
            if missing:
                # Tokens that the event does not report. If they cannot be recovered,
                # they are computed again.
                recovered = (
                    self._token_text.recover_tokens(chunk.content, missing, tokens[-1])
                    if tokens
                    else None
                )
                if recovered is None:
                    self._schedule_completion(_NextCompletion(missing + len(tokens)))
                tokens = (*(recovered or ()), *tokens)
            scores = {scored.id: scored for scored in chunk.completion_probabilities}
            for token in tokens:
                if self.is_finished or self.is_stale:
                    break
                outputs += self._accept_token(token, scores.get(token))
        if chunk.stop_type == "eos" and not (self.is_finished or self.is_stale):
            # An end token that the model file does not declare.
            outputs.append(self._finish(Ended(self.request.id, FinishReason.STOP)))
        return outputs

    def _feed_scores(self, scorer: PromptScorer, chunk: CompletionChunk) -> list[TokenOutput]:
        request = self.request
        outputs = list[TokenOutput]()
        if not self._is_announced:
            self._is_announced = True
            outputs.append(Scheduled(request.id, 0))
        scorer.feed(chunk)
        self.is_stale = True
        if scorer.is_finished:
            self._scorer = None
            outputs.append(PromptLogprobs(request.id, scorer.logprobs))
        return outputs

    def _accept_token(self, token: int, scored: ScoredToken | None) -> list[TokenOutput]:
        request = self.request
        token_filter = self._filter
        # The grammar in llama.cpp does not cover all restrictions of a request, so each
        # token is checked here too.
        if token != self._current.forced and not token_filter.is_allowed(token, self.output):
            # Under the mask only allowed tokens had a probability, so another attempt
            # would end the same way.
            if self._current.mask is not None:
                return [
                    self._finish(Failed(request.id, "The model returned invalid probabilities."))
                ]
            mask = token_filter.build_mask(self.output)
            if mask is None:
                return [self._finish(Ended(request.id, FinishReason.STOP))]
            self._schedule_completion(_NextCompletion(1, mask))
            return []
        if not token_filter.accept(token):
            return [self._finish(Failed(request.id, "The grammar of this request failed."))]
        self.output.append(token)
        outputs: list[TokenOutput] = [
            Sampled(
                request.id,
                token,
                None
                if scored is None or request.logprobs is None
                else build_logprob(scored, token, request.logprobs),
            )
        ]
        has_new_bias = self._penalty_bias.observe(token)
        if self._budget is not None:
            self._budget.observe(token)
        if token in request.stop_token_ids:
            outputs.append(self._finish(Ended(request.id, FinishReason.STOP, token)))
        elif token_filter.is_finished:
            outputs.append(self._finish(Ended(request.id, FinishReason.STOP)))
        elif len(self.output) >= request.max_tokens:
            outputs.append(self._finish(Ended(request.id, FinishReason.LENGTH)))
        elif not self._force_reasoning_end() and has_new_bias:
            self._schedule_completion(_NextCompletion())
        return outputs

    def _force_reasoning_end(self) -> bool:
        """Request the token that a spent reasoning budget forces, unless the grammar
        rejects it.

        Returns whether it was requested.
        """
        forced = None if self._budget is None else self._budget.forced_token
        if self._budget is None or forced is None:
            return False
        if not self._filter.is_in_grammar(forced):
            self._budget.reject_forced()
            return False
        self._schedule_completion(_NextCompletion(1, forced=forced))
        return True

    def _finish(self, end: Ended | Failed) -> Ended | Failed:
        self.is_finished = True
        return end

    def _schedule_completion(self, completion: _NextCompletion) -> None:
        self._next = completion
        self.is_stale = True


def check_chunk(chunk: CompletionChunk) -> None:
    """Raise the error that an event reports; see `CompletionState.feed`."""
    if any(scored.logprob is None for scored in chunk.completion_probabilities):
        raise InvalidLogits
    if chunk.error is None:
        return
    message = f"llama.cpp: {chunk.error.message or chunk.error.type}"
    if chunk.error.message in _STEP_ERRORS:
        raise StepFailed(message)
    if _CONTEXT_EXCEEDED in chunk.error.message:
        raise ContextExceeded(message)
    raise EngineError(message)
