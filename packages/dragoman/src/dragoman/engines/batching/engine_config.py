"""The size of a batching engine: its limits and timeouts, with the operator's
overrides.
"""

from __future__ import annotations

from msgspec import Struct

from ...core.errors import EngineError
from .scheduler import SchedulerConfig


class EngineConfig(Struct, frozen=True):
    """Limits and timeouts of a batching engine.

    max_model_len: tokens of prompt and output together.
    num_kv_tokens: capacity of the KV cache in tokens; its memory is allocated on use.
    max_num_waiting: sequences that may be active beyond `max_num_seqs`; further ones
        are rejected with QueueFull.
    stall_after: seconds without a step, while there is work, after which the engine is
        not ready.
    step_timeout: seconds after which a step counts as hung and the engine as failed.
    allocates_at_start: the KV cache exists before the first step.
    """

    max_model_len: int
    num_kv_tokens: int = 131072
    max_num_waiting: int = 1024
    stall_after: float = 60.0
    step_timeout: float = 300.0
    scheduler: SchedulerConfig = SchedulerConfig()
    allocates_at_start: bool = False


DEFAULT_MAX_NUM_SEQS = 64


class EngineLimits(Struct, frozen=True, kw_only=True):
    """Operator limits, named as in EngineConfig and SchedulerConfig; None selects the
    engine's default.
    """

    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    num_kv_tokens: int | None = None
    enable_prefix_caching: bool = True
    max_num_waiting: int = 1024
    step_timeout: float = 300.0

    def build_config(
        self,
        *,
        max_positions: int,
        num_kv_tokens: int,
        max_num_batched_tokens: int,
        max_step_pairs: int = 1 << 20,
    ) -> EngineConfig:
        """Apply these limits over an engine's defaults.

        max_positions: the longest context of the model, tokens.

        A batch holds at least one token of every sequence. Raises EngineError for
        inconsistent limits.
        """
        if self.max_model_len is not None and not 1 < self.max_model_len <= max_positions:
            raise EngineError(
                f"max_model_len must be between 2 and the model's {max_positions}, not "
                f"{self.max_model_len}"
            )
        kv_tokens = num_kv_tokens if self.num_kv_tokens is None else self.num_kv_tokens
        batched = self.max_num_batched_tokens
        seqs = self.max_num_seqs
        if seqs is None:
            seqs = (
                DEFAULT_MAX_NUM_SEQS
                if batched is None
                else min(DEFAULT_MAX_NUM_SEQS, max(batched, 1))
            )
        if batched is None:
            # Every running sequence decodes one token a step, so a smaller budget would
            # leave some out.
            batched = max(max_num_batched_tokens, seqs)
        if not 1 <= seqs <= batched:
            raise EngineError(
                f"max_num_seqs must be at least 1 and at most max_num_batched_tokens, not {seqs} "
                f"with {batched}"
            )
        return EngineConfig(
            max_model_len=self.max_model_len or min(max_positions, kv_tokens),
            num_kv_tokens=kv_tokens,
            max_num_waiting=self.max_num_waiting,
            step_timeout=self.step_timeout,
            scheduler=SchedulerConfig(
                max_num_seqs=seqs,
                max_num_batched_tokens=batched,
                max_step_pairs=max_step_pairs,
                enable_prefix_caching=self.enable_prefix_caching,
            ),
        )
