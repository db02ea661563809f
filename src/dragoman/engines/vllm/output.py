"""Converts vLLM's outputs to outputs of a TokenEngine. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ...core.engine import (
    Ended,
    Failed,
    PromptLogprobs,
    Sampled,
    Scheduled,
    TokenLogprob,
    TokenOutput,
    TokenRequest,
    WeightVersionSet,
)
from ...core.events import FinishReason
from .backend import Completion, RequestOutput

_REASONS = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "abort": FinishReason.ABORT,
    "repetition": FinishReason.STOP,
}


class VllmOutputReader:
    """Reads the outputs of one sequence. vLLM reports the end of queueing together with the first token."""

    def __init__(self, request: TokenRequest) -> None:
        self._request = request
        self._has_prompt_logprobs = request.prompt_logprobs is None
        self.has_started = False
        self._version: str | None = None

    def read(self, output: RequestOutput, version: str) -> list[TokenOutput]:
        """Read an output of `output_kind` DELTA, possibly of several steps.

        version: of the weights that sampled its tokens. vLLM reports versions only when a sequence ends; but before it
        loads other weights it pauses and sends what it has sampled.
        """
        id, completion = self._request.id, output.outputs[0]
        outputs: list[TokenOutput] = []
        if not self.has_started:
            self.has_started = True
            outputs.append(Scheduled(id, output.num_cached_tokens or 0, output.num_cache_creation_tokens))
        if not self._has_prompt_logprobs and output.prompt_logprobs:
            self._has_prompt_logprobs = True
            num_logprobs = self._request.prompt_logprobs or 0
            pairs = zip(self._request.prompt, output.prompt_logprobs, strict=True)
            outputs.append(
                PromptLogprobs(
                    id, tuple(None if row is None else _build_logprob(row, token, num_logprobs) for token, row in pairs)
                )
            )
        if completion.token_ids and version != self._version:
            self._version = version
            outputs.append(WeightVersionSet(id, version))
        outputs += self._read_tokens(completion)
        if completion.finish_reason is not None:
            outputs.append(self._read_end(output, completion))
        return outputs

    def _read_tokens(self, completion: Completion) -> list[TokenOutput]:
        id, num_logprobs = self._request.id, self._request.logprobs
        if num_logprobs is None:
            return [Sampled(id, token) for token in completion.token_ids]
        pairs = zip(completion.token_ids, completion.logprobs, strict=True)
        return [Sampled(id, token, _build_logprob(row, token, num_logprobs)) for token, row in pairs]

    def _read_end(self, output: RequestOutput, completion: Completion) -> TokenOutput:
        reason = _REASONS.get(completion.finish_reason)
        if reason is None:
            return Failed(self._request.id, "The engine failed while computing this request.")
        kv_transfer_params: object = output.kv_transfer_params
        return Ended(
            self._request.id,
            reason,
            stop=completion.stop_reason if isinstance(completion.stop_reason, int) else None,
            kv_transfer_params=None if not kv_transfer_params else msgspec.json.encode(kv_transfer_params).decode(),
        )


def _build_logprob(row: Mapping[int, Any], token: int, num_logprobs: int) -> TokenLogprob:
    """Build a logprob. row: vLLM's logprobs of the token and the most likely alternatives."""
    sampled = row[token]
    ranked = sorted((other.rank, id, other.logprob) for id, other in row.items() if other.rank <= num_logprobs)
    return TokenLogprob(sampled.logprob, sampled.rank, tuple((id, logprob) for _, id, logprob in ranked[:num_logprobs]))
