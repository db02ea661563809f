"""What vLLM says of a sequence, as the outputs of a TokenEngine. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ...core.engine import Ended, Failed, PromptScored, Sampled, Scheduled, Score, TokenOutput, TokenRequest
from ...core.events import FinishReason
from .backend import Completion, RequestOutput

_REASONS = {
    "stop": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "abort": FinishReason.ABORT,
    "repetition": FinishReason.STOP,
}


class Reader:
    """Of one sequence. vLLM tells that it has left the queue together with its first token."""

    def __init__(self, request: TokenRequest) -> None:
        self._request = request
        self._scored = request.prompt_logprobs is None
        self.begun = False

    def read(self, output: RequestOutput) -> list[TokenOutput]:
        """output: as `output_kind` DELTA has it, perhaps of several steps at once."""
        id, told = self._request.id, output.outputs[0]
        out: list[TokenOutput] = []
        if not self.begun:
            self.begun = True
            out.append(Scheduled(id, output.num_cached_tokens or 0))
        if not self._scored and output.prompt_logprobs:
            self._scored = True
            out.append(PromptScored(id, self._prompt(output.prompt_logprobs)))
        out += self._tokens(told)
        if told.finish_reason is not None:
            out.append(self._end(output, told))
        return out

    def _tokens(self, told: Completion) -> list[TokenOutput]:
        id, most = self._request.id, self._request.logprobs
        if most is None:
            return [Sampled(id, token) for token in told.token_ids]
        pairs = zip(told.token_ids, told.logprobs, strict=True)
        return [Sampled(id, token, _score(row, token, most)) for token, row in pairs]

    def _prompt(self, rows: list[Any]) -> tuple[Score | None, ...]:
        most = self._request.prompt_logprobs or 0
        pairs = zip(self._request.prompt, rows, strict=True)
        return tuple(None if row is None else _score(row, token, most) for token, row in pairs)

    def _end(self, output: RequestOutput, told: Completion) -> TokenOutput:
        reason = _REASONS.get(told.finish_reason)
        if reason is None:
            return Failed(self._request.id, "The engine failed while computing this request.")
        transfer: object = output.kv_transfer_params
        return Ended(
            self._request.id,
            reason,
            stop=told.stop_reason if isinstance(told.stop_reason, int) else None,
            kv_transfer_params=None if not transfer else msgspec.json.encode(transfer).decode(),
        )


def _score(row: Mapping[int, Any], token: int, most: int) -> Score:
    """row: what vLLM thought of this token, and of those that it thought likeliest."""
    own = row[token]
    best = sorted((other.rank, id, other.logprob) for id, other in row.items() if other.rank <= most)
    return Score(own.logprob, own.rank, tuple((id, logprob) for _, id, logprob in best[:most]))
