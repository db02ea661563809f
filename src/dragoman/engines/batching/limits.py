"""Operator limits of an engine's size, resolved over the engine's defaults. Independent of the model."""

from __future__ import annotations

from msgspec import Struct

from ...core.errors import EngineError
from .engine import EngineConfig
from .scheduler import SchedulerConfig

DEFAULT_MAX_NUM_SEQS = 64


class EngineLimits(Struct, frozen=True, kw_only=True):
    """Operator limits, named as in EngineConfig and SchedulerConfig; None selects the engine's default."""

    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    num_kv_tokens: int | None = None
    enable_prefix_caching: bool = True
    max_num_waiting: int = 1024
    step_timeout: float = 300.0

    def build_config(
        self, *, max_positions: int, num_kv_tokens: int, max_num_batched_tokens: int, max_step_pairs: int = 1 << 20
    ) -> EngineConfig:
        """Apply these limits over an engine's defaults.

        max_positions: the longest context of the model, tokens.

        A batch holds at least one token of every sequence. Raises EngineError for inconsistent limits.
        """
        if self.max_model_len is not None and not 1 < self.max_model_len <= max_positions:
            raise EngineError(
                f"max_model_len must be between 2 and the model's {max_positions}, not {self.max_model_len}"
            )
        kv_tokens = num_kv_tokens if self.num_kv_tokens is None else self.num_kv_tokens
        seqs = DEFAULT_MAX_NUM_SEQS if self.max_num_seqs is None else self.max_num_seqs
        batched = self.max_num_batched_tokens
        if batched is None:
            # Every running sequence decodes one token a step, so a smaller budget would leave some out.
            batched = max(max_num_batched_tokens, seqs)
        if not 1 <= seqs <= batched:
            raise EngineError("max_num_seqs must be at least 1 and at most max_num_batched_tokens")
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
