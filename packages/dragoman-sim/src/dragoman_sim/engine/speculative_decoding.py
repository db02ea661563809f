"""Speculative decoding: vLLM's settings, the number of accepted drafts."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from .keyed_random import KeyedRandom
from .scheduler_config import SimulatedSchedulerConfig
from .sequence import SimulatedSequence

NGRAM_METHODS = frozenset({"ngram", "ngram_gpu", "suffix"})


MODEL_METHODS = frozenset({"eagle", "eagle3", "mtp", "draft_model", "medusa"})
"""Methods whose drafter is a model. All but Medusa, which only adds heads, have a KV
cache of their own.
"""


_IGNORED = """
    enforce_eager quantization moe_backend attention_backend kv_cache_dtype max_model_len revision
    code_revision index_share_for_mtp_iteration disable_padded_drafter_batch
    disable_eagle_block_drop disable_lookahead_block_hashes draft_lm_head_quantization
    use_local_argmax_reduction use_heterogeneous_vocab parallel_drafting draft_load_config
    rejection_sample_method draft_sample_method tensor_parallel_size
    suffix_decoding_max_tree_depth suffix_decoding_max_cached_requests
    suffix_decoding_max_spec_factor suffix_decoding_min_token_prob
"""
IGNORED_FIELDS = frozenset(_IGNORED.split())
"""Fields of vLLM that change the drafts or their cost, but not which are scheduled."""


DEFAULT_RATES = (0.75, 0.6, 0.5)
"""Acceptance rates of the first three positions: an assumption, in the range that
EAGLE-3 reaches in chats.
"""


class SpeculativeConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """vLLM's --speculative-config, as far as it affects scheduling. model: accepted
    without effect.
    """

    num_speculative_tokens: int
    method: str = "draft_model"
    model: str | None = None
    prompt_lookup_max: int | None = None
    prompt_lookup_min: int | None = None
    draft_tensor_parallel_size: int | None = None

    def __post_init__(self) -> None:
        if self.method.endswith("_mtp"):
            # Former names, one for each model: vLLM replaces them too.
            msgspec.structs.force_setattr(self, "method", "mtp")
        if self.method not in NGRAM_METHODS | MODEL_METHODS:
            methods = ", ".join(sorted(NGRAM_METHODS | MODEL_METHODS))
            raise ValueError(f"method {self.method!r} is not simulated; use one of {methods}")
        if not 1 <= self.num_speculative_tokens <= 64:
            raise ValueError("num_speculative_tokens must be from 1 to 64")

    def merge_into(self, config: SimulatedSchedulerConfig) -> SimulatedSchedulerConfig:
        """Return the scheduler's settings with this drafter."""
        has_cache = self.method in MODEL_METHODS - {"medusa"}
        return msgspec.structs.replace(
            config,
            num_speculative_tokens=self.num_speculative_tokens,
            num_lookahead_tokens=self.num_speculative_tokens if has_cache else 0,
        )


def parse_speculative_config(text: str) -> SpeculativeConfig:
    """Parse vLLM's JSON. Raises ValueError, which names the field."""
    try:
        return msgspec.json.decode(text, type=SpeculativeConfig)
    except msgspec.MsgspecError as error:
        raise ValueError(f"--speculative-config: {error}") from None


def parse_acceptance_rates(text: str) -> tuple[float, ...]:
    """Parse `0.8,0.6,0.5`, the rates of the first positions. Raises ValueError."""
    try:
        rates = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{text!r} is not a list of rates such as 0.8,0.6,0.5") from None
    check_acceptance_rates(rates)
    return rates


def check_acceptance_rates(rates: Sequence[float]) -> None:
    """Raise ValueError unless rates are from 0 to 1 and do not rise: a draft is
    accepted only with those before it.
    """
    if any(not 0 <= rate <= 1 for rate in rates) or list(rates) != sorted(rates, reverse=True):
        raise ValueError(
            "acceptance rates must be from 0 to 1, and none higher than the one before it"
        )


class DraftAcceptance:
    """Draws the number of accepted draft tokens. A request draws the same numbers
    regardless of its batch.

    rates: share of drafts whose first, second, ... token is accepted.
    """

    def __init__(self, rates: Sequence[float] = (), seed: int = 0) -> None:
        check_acceptance_rates(rates)
        self._rates: tuple[float, ...] = tuple(rates) or DEFAULT_RATES
        rates = self._rates
        last = len(self._rates) - 1
        # Beyond the last rate, rates fall by the ratio of the last two.
        self._decay = rates[last] / rates[last - 1] if last and rates[last - 1] else rates[last]
        self._seed = seed

    def count_sampled(self, sequence: SimulatedSequence, num_drafts: int) -> int:
        """Count the tokens that a sequence gets in a step, as `scheduler.CountSampled`."""
        # One number for all positions: rates do not rise, so a draft is accepted only
        # together with those before it.
        drawn = KeyedRandom(self._seed, sequence.id, sequence.num_output_tokens).random()
        rates = self._rates
        last = len(self._rates) - 1
        accepted = 0
        while accepted < num_drafts:
            rate = (
                rates[accepted]
                if accepted <= last
                else rates[last] * self._decay ** (accepted - last)
            )
            if drawn >= rate:
                break
            accepted += 1
        return 1 + accepted
