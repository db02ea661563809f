"""Converts vLLM's outputs of one sequence to those of a TokenEngine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ...core.events import FinishReason
from ...core.token_engine import (
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
from .backend import (
    RequestOutput,
)

_REASONS = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "abort": FinishReason.ABORT,
    "repetition": FinishReason.STOP,
}


class VllmOutputReader:
    """Converts vLLM's outputs of one sequence to those of a TokenEngine.

    `Scheduled` comes with the first token, since vLLM does not report the end of
    queueing earlier.
    """

    def __init__(self, request: TokenRequest) -> None:
        self._request = request
        self._has_prompt_logprobs = request.prompt_logprobs is None
        self.has_started = False
        self._version: str | None = None

    def read(self, output: RequestOutput, version: str) -> list[TokenOutput]:
        """Read an output of `output_kind` DELTA, possibly of several steps.

        version: the version of the weights that sampled its tokens. vLLM itself reports
            versions only when a sequence ends. The current version is exact: before
            vLLM loads other weights it pauses and sends what it has sampled.
        """
        id = self._request.id
        completion = output.outputs[0]
        outputs: list[TokenOutput] = []
        if not self.has_started:
            self.has_started = True
            outputs.append(
                Scheduled(id, output.num_cached_tokens or 0, output.num_cache_creation_tokens)
            )
        if not self._has_prompt_logprobs and output.prompt_logprobs:
            self._has_prompt_logprobs = True
            num_logprobs = self._request.prompt_logprobs or 0
            pairs = zip(self._request.prompt, output.prompt_logprobs, strict=True)
            outputs.append(
                PromptLogprobs(
                    id,
                    tuple(
                        None if row is None else _build_logprob(row, token, num_logprobs)
                        for token, row in pairs
                    ),
                )
            )
        if completion.token_ids and version != self._version:
            self._version = version
            outputs.append(WeightVersionSet(id, version))
        if self._request.logprobs is None:
            outputs += [Sampled(id, token) for token in completion.token_ids]
        else:
            num_logprobs = self._request.logprobs
            pairs = zip(completion.token_ids, completion.logprobs, strict=True)
            outputs += [
                Sampled(id, token, _build_logprob(row, token, num_logprobs)) for token, row in pairs
            ]
        if completion.finish_reason is None:
            return outputs
        reason = _REASONS.get(completion.finish_reason)
        if reason is None:
            return [*outputs, Failed(id, "The engine failed while computing this request.")]
        stop = completion.stop_reason if isinstance(completion.stop_reason, int) else None
        transfer = (
            msgspec.json.encode(output.kv_transfer_params).decode()
            if output.kv_transfer_params
            else None
        )
        return [*outputs, Ended(id, reason, stop=stop, kv_transfer_params=transfer)]


def _build_logprob(row: Mapping[int, Any], token: int, num_logprobs: int) -> TokenLogprob:
    """Build the logprob of a token and its most likely alternatives.

    row: vLLM's logprobs by token id.
    """
    sampled = row[token]
    ranked = sorted(
        (other.rank, id, other.logprob) for id, other in row.items() if other.rank <= num_logprobs
    )
    return TokenLogprob(
        sampled.logprob,
        sampled.rank,
        tuple((id, logprob) for _, id, logprob in ranked[:num_logprobs]),
    )
