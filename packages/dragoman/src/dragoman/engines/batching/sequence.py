"""The state of one sequence: its tokens, how many are computed, its stop conditions."""

from __future__ import annotations

import logging

from ...core.errors import RequestError
from ...core.events import FinishReason
from ...core.matcher import Matcher
from ...core.token_engine import (
    Ended,
    Failed,
    ReasoningBudget,
    Rejected,
    TokenLogprob,
    TokenRequest,
)
from .adapter_registry import LoadedAdapter
from .block_hashes import encode_image_key, hash_block, hash_root
from .block_pool import BLOCK_SIZE
from .sampler import RngFactory, SamplingState


class ReasoningBudgetState:
    """The state of one sequence under a ReasoningBudget, which covers all reasoning of
    the output together.

    If a grammar does not allow `forced_token`, `reject_forced` is called: the sequence
    goes on, and forced tokens that were already begun are abandoned.
    """

    def __init__(self, limit: ReasoningBudget) -> None:
        self._limit = limit
        self._is_reasoning = limit.is_open
        self._used = 0
        self._num_forced = 0
        self._recent: tuple[int, ...] = ()

    @property
    def forced_token(self) -> int | None:
        """The token that must come next; None leaves the choice to the sampler."""
        if not self._is_reasoning or not self._limit.forced_ids:
            return None
        if self._num_forced == 0 and self._used < self._limit.max_tokens:
            return None
        return self._limit.forced_ids[self._num_forced]

    def reject_forced(self) -> None:
        """Report that the forced token is not allowed."""
        if self._num_forced:
            self._end()

    def observe(self, token: int) -> None:
        """Record a sampled or forced token."""
        forced = self.forced_token
        window = max(len(self._limit.begin_ids), len(self._limit.end_ids))
        self._recent = (*self._recent, token)[-window:] if window else ()
        if not self._is_reasoning:
            # Reset, since the same tokens must not be taken for the end as well
            # (markers may overlap).
            if self._ends_with(self._limit.begin_ids):
                self._is_reasoning = True
                self._recent = ()
        elif token == forced:
            self._num_forced += 1
            if self._num_forced == len(self._limit.forced_ids):
                self._end()
        elif self._ends_with(self._limit.end_ids):
            self._end()
        else:
            self._used += 1
            self._num_forced = 0

    def _end(self) -> None:
        self._is_reasoning = False
        self._num_forced = 0
        self._recent = ()

    def _ends_with(self, ids: tuple[int, ...]) -> bool:
        return bool(ids) and self._recent[-len(ids) :] == ids


log = logging.getLogger(__name__)


class SafeMatcher:
    """The matcher of one sequence, whose exceptions are caught and recorded.

    is_broken: the matcher raised, or rejected a token that its own mask allows.
    is_finished: the output is complete, and only its end may follow.
    error: why it is broken, if that is the request's fault.
    """

    def __init__(self, id: str, matcher: Matcher) -> None:
        self._id = id
        self._matcher = matcher
        self.is_broken = False
        self.is_finished = False
        self.error: RequestError | None = None

    def mask(self) -> bytes:
        """See `Matcher.mask`; a broken matcher allows nothing."""
        try:
            return self._matcher.mask()
        except RequestError as error:
            self.is_broken = True
            self.error = error
            return b""
        except BaseException:  # a panic in a Rust library is not an Exception
            log.exception("the matcher of %s returned no mask", self._id)
            self.is_broken = True
            return b""

    def replace(self, token: int) -> int:
        """See `Matcher.replace`."""
        try:
            return self._matcher.replace(token)
        except BaseException:  # a panic in a Rust library is not an Exception
            log.exception("the matcher of %s found no ending", self._id)
            self.is_broken = True
            return token

    def advance(self, token: int) -> None:
        try:
            self.is_broken = not self._matcher.advance(token)
            self.is_finished = self._matcher.finished
        except BaseException:  # a panic in a Rust library is not an Exception
            log.exception("the matcher of %s rejected token %d", self._id, token)
            self.is_broken = True


def is_allowed(mask: bytes | None, token: int) -> bool:
    """Whether the mask allows this token."""
    if mask is None:
        return True
    return token < 8 * len(mask) and bool(mask[token >> 3] >> (token & 7) & 1)


class Sequence:
    """A prompt and its output tokens in the engine.

    key: number of the sequence, in order of arrival; never reused.
    tokens: the prompt, then the sampled tokens.
    blocks: blocks of the pool that hold its first tokens.
    state_slot: its slot while it runs, if the model has state besides keys and values;
        otherwise None.
    cached_tokens: prompt tokens found in the cache when the sequence was first
        admitted.
    prompt_logprobs: computed so far; None once delivered or if not requested.
    adapter: the LoRA adapter; None for the base model.
    version: version of the weights that sampled the last token.
    is_long: its keys have the model's long RoPE factors, see `Model.rope_window`.
    """

    def __init__(
        self,
        key: int,
        request: TokenRequest,
        *,
        vocab: int,
        max_model_len: int,
        rng_factory: RngFactory,
        adapter: LoadedAdapter | None = None,
    ) -> None:
        self.key = key
        self.request = request
        self.adapter = adapter
        self.tokens = list(request.prompt)
        self.blocks: list[int] = []
        self.state_slot: int | None = None
        self.num_computed_tokens = 0
        self.cached_tokens = 0
        self.was_admitted = False
        self.is_announced = False
        self.version: str | None = None
        self.is_long = False
        self.prompt_logprobs: list[TokenLogprob | None] | None = (
            None if request.prompt_logprobs is None else [None]
        )
        self.sampling = SamplingState(request, vocab, rng_factory)
        self.matcher = SafeMatcher(request.id, request.matcher) if request.matcher else None
        self.reasoning_budget = (
            ReasoningBudgetState(request.reasoning_budget) if request.reasoning_budget else None
        )
        self._max_tokens = min(len(request.prompt) + request.max_tokens, max_model_len)
        self._hashes = [hash_root(request.cache_salt, 0 if adapter is None else adapter.number)]

    @property
    def rank(self) -> tuple[int, int]:
        """Sort key for scheduling: priority, then arrival; lower runs first."""
        return (self.request.priority, self.key)

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.request.prompt)

    @property
    def can_read_cache(self) -> bool:
        """Whether the prefix cache may be read: as in vLLM, not for prompt_logprobs,
        which need the whole prompt.
        """
        return self.prompt_logprobs is None

    @property
    def can_offload(self) -> bool:
        """Whether blocks may be stored outside the pool. Not with an adapter: its
        number changes with a restart.
        """
        return self.adapter is None

    def compute_block_hashes(self, count: int) -> list[bytes]:
        """Compute the hashes of the first `count` blocks, all of them full."""
        for index in range(len(self._hashes) - 1, count):
            begin = index * BLOCK_SIZE
            end = (index + 1) * BLOCK_SIZE
            image_key = encode_image_key(self.request.images, begin, end)
            self._hashes.append(hash_block(self._hashes[-1], self.tokens[begin:end], image_key))
        return self._hashes[1 : count + 1]

    def use_long_factors(self) -> None:
        """Use long RoPE factors from now on. Nothing of the sequence may be computed
        yet.
        """
        self.is_long = True
        self._hashes = [
            hash_root(
                self.request.cache_salt,
                0 if self.adapter is None else self.adapter.number,
                is_long=True,
            )
        ]

    def find_slot(self, position: int) -> int:
        """Compute the slot of the token at this position in the pool, counted in
        tokens.
        """
        return self.blocks[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE

    def reset_prompt_logprobs(self) -> None:
        """Discard incomplete prompt logprobs: the rest would come from other weights."""
        if self.prompt_logprobs is not None:
            self.prompt_logprobs = [None]

    def append(self, token: int) -> Ended | Failed | Rejected | None:
        """Append the next token. Returns the end of the sequence, or None if it goes
        on.
        """
        self.tokens.append(token)
        self.sampling.observe(token)
        if self.reasoning_budget:
            self.reasoning_budget.observe(token)
        id = self.request.id
        request = self.request
        if (
            token in request.stop_token_ids
            and self.num_tokens - self.num_prompt_tokens > request.min_tokens
        ):
            return Ended(id, FinishReason.STOP, stop=token)
        if self.matcher:
            self.matcher.advance(token)
            if self.matcher.is_broken:
                return self.build_grammar_failure()
            if self.matcher.is_finished:
                return Ended(id, FinishReason.STOP)
        return Ended(id, FinishReason.LENGTH) if self.num_tokens >= self._max_tokens else None

    def build_grammar_failure(self) -> Failed | Rejected:
        """Build the end of a sequence whose matcher failed."""
        if self.matcher and self.matcher.error is not None:
            return Rejected(self.request.id, self.matcher.error)
        return Failed(self.request.id, "The grammar of this request failed.")
