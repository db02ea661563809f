"""The state of one sequence: its tokens, how many are computed, and its stop conditions. Pure."""

from __future__ import annotations

from ...core.engine import Ended, Failed, Rejected, TokenLogprob, TokenRequest
from ...core.events import FinishReason
from .adapters import LoadedAdapter
from .blocks import BLOCK_SIZE, encode_image_key, hash_block, hash_root
from .reasoning_budget import ReasoningBudgetState
from .safe_matcher import SafeMatcher
from .sampling import RngFactory, SamplingState


class Sequence:
    """A prompt and its output tokens in the engine.

    key: never reused, in order of arrival.
    tokens: the prompt, then the sampled tokens.
    blocks: of the pool, held for the first tokens.
    state_slot: its own while it runs, if the model has state beside keys and values.
    cached_tokens: prompt tokens found in the cache when the sequence was first admitted.
    prompt_logprobs: computed so far; None once delivered or if not requested.
    adapter: the LoRA adapter; None for the base model.
    version: of the weights that sampled the last token.
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
        self.prompt_logprobs: list[TokenLogprob | None] | None = None if request.prompt_logprobs is None else [None]
        self.sampling = SamplingState(request, vocab, rng_factory)
        self.matcher = SafeMatcher(request.id, request.matcher) if request.matcher else None
        self.reasoning_budget = ReasoningBudgetState(request.reasoning_budget) if request.reasoning_budget else None
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
        """Whether the prefix cache is read. As in vLLM not with prompt_logprobs, which need the prompt computed."""
        return self.prompt_logprobs is None

    @property
    def can_offload(self) -> bool:
        """Whether blocks may be stored outside the pool. Not with an adapter: its number changes with a restart."""
        return self.adapter is None

    def compute_block_hashes(self, count: int) -> list[bytes]:
        """Compute the hashes of the first `count` blocks, all of them full."""
        for index in range(len(self._hashes) - 1, count):
            begin, end = index * BLOCK_SIZE, (index + 1) * BLOCK_SIZE
            image_key = encode_image_key(self.request.images, begin, end)
            self._hashes.append(hash_block(self._hashes[-1], self.tokens[begin:end], image_key))
        return self._hashes[1 : count + 1]

    def use_long_factors(self) -> None:
        """Use long RoPE factors from now on. Nothing of the sequence may be computed yet."""
        self.is_long = True
        self._hashes = [
            hash_root(self.request.cache_salt, 0 if self.adapter is None else self.adapter.number, is_long=True)
        ]

    def find_slot(self, position: int) -> int:
        """Compute the slot of the token at this position in the pool, counted in tokens."""
        return self.blocks[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE

    def reset_prompt_logprobs(self) -> None:
        """Discard incomplete prompt logprobs: the rest would come from other weights."""
        if self.prompt_logprobs is not None:
            self.prompt_logprobs = [None]

    def append(self, token: int) -> Ended | Failed | Rejected | None:
        """Append the next token. Returns how the sequence ends, if it does."""
        self.tokens.append(token)
        self.sampling.observe(token)
        if self.reasoning_budget:
            self.reasoning_budget.observe(token)
        id, request = self.request.id, self.request
        if token in request.stop_token_ids and self.num_tokens - self.num_prompt_tokens > request.min_tokens:
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
