"""Samples the tokens of a step with torch on the logits' device, by the contract of
`batching.sampler`.

Only token ids and requested logprobs are copied to the host, in one tensor. Uniform
numbers are drawn on the host, by each sequence's generator.

A row's result does not depend on the batch, because no floats are summed (the order of
a sum depends on the shape). Weights `exp(logit - best)` are float32 numbers rounded
down to multiples of 1 / scale and stored as integers, whose sums are exact (see
`_choose_scale`). The rest are element-wise operations, comparisons and sorts.

Compared with numpy's sampler, greedy tokens, masks, biases, penalties, min_p and top_k
are the same (on MPS, which has no doubles, penalties up to float32 rounding). top_p
takes the best tokens first, of equal logits the lowest ids, and draws use the same
uniform number. So the two samplers differ only where a sum of weights is within
rounding of the limit: 2**-22 of it (float32 exp), and 1 / scale for each token. A token
of weight below 1 / scale is never drawn.

Some results are computed on the host from a copy of the row: tokens of sequences whose
logit_bias names an id twice; logprobs with more than MAX_ALTERNATIVES alternatives; and
logprobs of tokens that replace sampled ones (reasoning budgets, close_at_limit).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.token_engine import TokenLogprob
from ..batching import SamplingState
from ..batching.sampler import NO_TOKEN, build_logprob, log_softmax, sample
from .backend import Device, Tensor, torch

log = logging.getLogger(__name__)

MAX_ALTERNATIVES = 128
"""Most alternatives of a logprob that are found on the device; limits the memory that
is copied for all rows.
"""
_MAX_TOP_K = 1024
"""The largest top_k for which the best tokens are found without sorting all."""
_MAX_WEIGHTS = 1 << 23
"""Number of logits that are processed at once; limits the memory of their sorted
copies.
"""


class DeviceSampledRows:
    """Implements `batching.SampledRows` for [n, vocab] logits on any device, which are
    not modified.
    """

    def __init__(
        self, logits: Tensor, states: Sequence[SamplingState], masks: Sequence[bytes | None]
    ) -> None:
        with torch.inference_mode():
            self._logits = logits.float()
            self._states = states
            vocab = logits.shape[1]
            edited = [
                row
                for row, mask in enumerate(masks)
                if mask is not None or not states[row].is_plain
            ]
            # Rows whose logit_bias names an id twice.
            on_host = [
                row
                for row in edited
                if len(set(states[row].bias_ids.tolist())) < len(states[row].bias_ids)
            ]
            on_device = [row for row in edited if row not in on_host]
            scored: list[int] = []
            for row, state in enumerate(states):
                count = state.request.logprobs
                ids = state.request.logprob_ids
                are_few = count is not None and max(count, len(ids)) <= MAX_ALTERNATIVES
                if row not in on_host and are_few and all(0 <= id < vocab for id in ids):
                    scored.append(row)
            best, tokens = self._logits.max(dim=1)
            # torch's maximum of a row with NaN is NaN, so broken rows are found without
            # another pass over the logits.
            tokens = tokens.where(best.isfinite(), NO_TOKEN)
            size = max(_MAX_WEIGHTS // vocab, 1)
            for begin in range(0, len(on_device), size):
                part = on_device[begin : begin + size]
                rows = _copy_to_device(np.array(part), logits.device)
                row_tokens = _choose_tokens(
                    self._logits[rows], [states[row] for row in part], [masks[row] for row in part]
                )
                tokens[rows] = row_tokens.where(tokens[rows] != NO_TOKEN, NO_TOKEN)
            self.tokens, scores = self._read_results(tokens, scored)
        self._scores = dict(zip(scored, scores, strict=True))
        for row in on_host:
            (self.tokens[row],) = sample(self._read_row(row), [states[row]], [masks[row]])

    def compute_logprobs(self, tokens: Sequence[int]) -> list[TokenLogprob | None]:
        scores: list[TokenLogprob | None] = []
        for row, (state, token) in enumerate(zip(self._states, tokens, strict=True)):
            request = state.request
            if request.logprobs is None or token == NO_TOKEN:
                scores.append(None)
            elif row in self._scores and token == self.tokens[row]:
                scores.append(self._scores[row])
            else:
                logprobs = log_softmax(self._read_row(row))[0]
                scores.append(build_logprob(logprobs, token, request.logprobs, request.logprob_ids))
        return scores

    def is_finite(self, row: int) -> bool:
        return bool(np.isfinite(self._read_row(row)).all())

    def _read_row(self, row: int) -> NDArray[np.float32]:
        """Copy a row of logits to the host, [1, vocab]."""
        return self._logits[row : row + 1].cpu().numpy().copy()

    def _read_results(
        self, tokens: Tensor, scored: Sequence[int]
    ) -> tuple[list[int], list[TokenLogprob]]:
        """Copy the tokens to the host, with logprobs for the `scored` rows."""
        if not scored:
            return _copy_to_host(tokens).tolist(), []
        requests = [self._states[row].request for row in scored]
        rows = _copy_to_device(np.array(scored), tokens.device)
        num_top = min(max(request.logprobs or 0 for request in requests), self._logits.shape[1])
        table = _compute_logprobs(
            self._logits[rows], tokens[rows], num_top, [r.logprob_ids for r in requests]
        )
        # Ids are exact in the table's dtype: a float32 holds all numbers up to 2**24.
        numbers = _copy_to_host(torch.cat([tokens.to(table.dtype), table.flatten()])).tolist()
        width = table.shape[1]
        num_rows = len(tokens)
        scores: list[TokenLogprob] = []
        # Equal to `batching.sampler.build_logprob`, but from a row of the table.
        for request, row, begin in zip(
            requests, scored, range(num_rows, len(numbers), width), strict=True
        ):
            logprob, *others = numbers[begin : begin + width]
            rank, *top_ids = map(int, others[len(others) - num_top - 1 :])
            top = tuple(zip(top_ids, others[:num_top], strict=True))[: request.logprobs]
            if request.logprob_ids:
                pairs = {
                    int(numbers[row]): logprob,
                    **dict(zip(request.logprob_ids, others[num_top:], strict=False)),
                }
                top = tuple(sorted(pairs.items(), key=lambda pair: (-pair[1], pair[0])))
            scores.append(TokenLogprob(logprob=logprob, rank=rank, top=top))
        return [int(token) for token in numbers[:num_rows]], scores


def _choose_tokens(
    logits: Tensor, states: Sequence[SamplingState], masks: Sequence[bytes | None]
) -> Tensor:
    """Choose a token for each row of logits, which are overwritten."""
    vocab = logits.shape[1]
    packed = [(row, state.pack_masks(masks[row], vocab)) for row, state in enumerate(states)]
    masked = {row: bits for row, bits in packed if bits is not None}
    if masked:
        rows = _copy_to_device(np.array(list(masked)), logits.device)
        bits = _copy_to_device(np.stack(list(masked.values())), logits.device)
        flags = _copy_to_device(1 << np.arange(8, dtype=np.uint8), logits.device)
        allowed = ((bits[:, :, None] & flags) != 0).flatten(1)[:, :vocab]
        logits[rows] = logits[rows].masked_fill(~allowed, -torch.inf)
    biased = [row for row, state in enumerate(states) if len(state.bias_ids)]
    penalized = [row for row, state in enumerate(states) if state.has_penalties]
    if biased:
        lengths = [len(states[row].bias_ids) for row in biased]
        places = np.stack(
            [np.repeat(biased, lengths), np.concatenate([states[row].bias_ids for row in biased])]
        )
        indices = tuple(_copy_to_device(places, logits.device))
        logits[indices] += _copy_to_device(
            np.concatenate([states[row].biases for row in biased]), logits.device
        )
    if penalized:
        _apply_penalties(logits, states, penalized)
    if biased or penalized:
        # As in numpy's sampler: NaN is impossible, +inf is certain.
        logits.masked_fill_(logits.isnan(), -torch.inf)
        certain = logits == torch.inf
        logits = torch.where(
            certain.any(dim=1, keepdim=True), torch.where(certain, 0.0, -torch.inf), logits
        )
    best, tokens = logits.max(dim=1)
    is_possible = best > -torch.inf
    drawn = [row for row, state in enumerate(states) if not state.is_greedy]
    if drawn:
        rows = _copy_to_device(np.array(drawn), logits.device)
        relative = logits[rows] - best.where(is_possible, 0)[rows, None]
        tokens[rows] = _draw(relative, [states[row] for row in drawn])
    return tokens.where(is_possible, NO_TOKEN)


def _apply_penalties(logits: Tensor, states: Sequence[SamplingState], rows: Sequence[int]) -> None:
    """Apply penalties to the tokens that appeared in the sequences; they change no
    others.
    """
    device = logits.device
    wide = _get_wide_dtype(logits.device)
    ids = [np.array(states[row].appeared_ids, np.int64) for row in rows]
    lengths = [len(row_ids) for row_ids in ids]
    counts = [states[row].counts[row_ids] for row, row_ids in zip(rows, ids, strict=True)]
    places = np.stack(
        [np.repeat(rows, lengths), np.concatenate(ids), np.concatenate(counts).astype(np.int64)]
    )
    samplings = [states[row].sampling for row in rows]
    penalties = [(s.repetition_penalty, s.frequency_penalty, s.presence_penalty) for s in samplings]
    per_token = np.repeat(np.array(penalties, np.float32).T, lengths, axis=1)
    repetition, frequency, presence = _copy_to_device(np.ascontiguousarray(per_token), device)
    row_of, id_of, count = _copy_to_device(places, device)
    values = logits[row_of, id_of]
    values = torch.where(values > 0, values / repetition, values * repetition)
    # In doubles and rounded once, as numpy combines a float32 with an integer.
    values = (values.to(wide) - frequency.to(wide) * count).float()
    logits[row_of, id_of] = values - presence * (count > 0)


def _draw(logits: Tensor, states: Sequence[SamplingState]) -> Tensor:
    """Draw a token for each row of logits. logits: relative to the best of the row;
    overwritten.
    """
    device = logits.device
    vocab = logits.shape[1]
    samplings = [state.sampling for state in states]
    temperatures = [sampling.temperature for sampling in samplings]
    limits = [np.log(min(s.min_p, 1.0)) if s.min_p > 0 else -np.inf for s in samplings]
    temperature, limit = _copy_to_device(
        np.array([temperatures, limits], np.float32)[:, :, None], device
    )
    top_ks = [sampling.top_k if 0 < sampling.top_k < vocab else vocab for sampling in samplings]
    shares = [_split_fraction(min(sampling.top_p, 1.0)) for sampling in samplings]
    uniforms = [_split_fraction(state.rng() if state.rng else 0.0) for state in states]
    columns = [top_ks, *zip(*shares, strict=True), *zip(*uniforms, strict=True)]
    top_k, *fractions = _copy_to_device(np.array(columns, np.int64)[:, :, None], device)
    logits /= temperature
    logits.masked_fill_(logits < limit, -torch.inf)
    max_top_k = max(top_ks)
    if max_top_k < vocab or any(sampling.top_p < 1 for sampling in samplings):
        logits.masked_fill_(~_find_top_tokens(logits, top_k, max_top_k, fractions[:2]), -torch.inf)
    weights = _weigh(logits, vocab)
    sums = weights.cumsum(dim=1)
    target = _multiply(sums[:, -1:], fractions[2], fractions[3])
    return torch.searchsorted(sums, target.contiguous(), right=True)[:, 0]


def _find_top_tokens(
    logits: Tensor, top_k: Tensor, max_top_k: int, share: Sequence[Tensor]
) -> Tensor:
    """Find the tokens that top_k and then top_p keep: those above a limit, and of those
    equal to it the lowest ids.

    max_top_k: the largest top_k.
    share: top_p, split by `_split_fraction`.
    """
    vocab = logits.shape[1]
    # On MPS, topk has a limit that depends on the system's version.
    if max_top_k <= _MAX_TOP_K and logits.device.type != "mps":
        ranked = logits.topk(max_top_k, dim=1).values
    else:
        ranked = logits.sort(dim=1, descending=True).values
    least = ranked.gather(1, top_k - 1)
    is_better = ranked > least
    num_ties = (logits == least).sum(dim=1, keepdim=True)
    weights = _weigh(ranked, vocab) * is_better
    tie_weight = _weigh(least, vocab)
    sums = weights.cumsum(dim=1)
    missing = _multiply(sums[:, -1:] + tie_weight * num_ties, *share).clamp(min=1) - sums[:, -1:]
    num_better = (is_better & (sums - weights < sums[:, -1:] + missing)).sum(dim=1, keepdim=True)
    last = ranked.gather(1, (num_better - 1).clamp(min=0))
    num_last = ((ranked == last).cumsum(dim=1)).gather(1, (num_better - 1).clamp(min=0))
    reaches_ties = missing > 0
    limit = torch.where(reaches_ties, least, last)
    count = torch.where(reaches_ties, (missing - 1) // tie_weight.clamp(min=1) + 1, num_last)
    is_tie = logits == limit
    return (logits > limit) | (is_tie & (is_tie.cumsum(dim=1) <= count))


def _weigh(logits: Tensor, vocab: int) -> Tensor:
    """Compute integer weights of tokens from logits relative to the best."""
    return (logits.exp() * _choose_scale(vocab)).long()


def _choose_scale(vocab: int) -> float:
    """Choose the weight of the best token, such as 2**44 for 128k tokens. All weights
    together are less than 2**62.
    """
    return float(1 << (62 - vocab.bit_length()))


def _split_fraction(fraction: float) -> tuple[int, int]:
    """Split a fraction of at most 1 into units of 2**-31 and of 2**-53."""
    return divmod(int(fraction * (1 << 53)), 1 << 22)


def _multiply(total: Tensor, high: Tensor, low: Tensor) -> Tensor:
    """Multiply integers below 2**62 by fractions from `_split_fraction`, rounding down
    by less than 3.
    """
    upper = total >> 31
    lower = total & ((1 << 31) - 1)
    return upper * high + (lower * high >> 31) + (upper * low >> 22)


def _compute_logprobs(
    logits: Tensor, tokens: Tensor, num_top: int, ids: Sequence[tuple[int, ...]]
) -> Tensor:
    """Compute a table with a row per token: its logprob, the logprobs of the best
    tokens and of the given ids, its rank, and the ids of the best tokens.
    """
    wide = _get_wide_dtype(logits.device)
    vocab = logits.shape[1]
    best = logits.amax(dim=1, keepdim=True)
    total = _weigh(logits - best, vocab).sum(dim=1, keepdim=True).to(wide) / _choose_scale(vocab)
    token_logits = logits.gather(1, tokens.clamp(min=0)[:, None])
    selected = [token_logits]
    columns = [(logits > token_logits).sum(dim=1, keepdim=True) + 1]
    if num_top:
        ranked, order = logits.sort(dim=1, descending=True, stable=True)
        selected.append(ranked[:, :num_top])
        columns.append(order[:, :num_top])
    width = max(map(len, ids))
    if width:
        padded = np.array([(*row, *(0,) * (width - len(row))) for row in ids], np.int64)
        selected.append(logits.gather(1, _copy_to_device(padded, logits.device)))
    logprobs = torch.cat(selected, dim=1).to(wide) - best.to(wide) - total.log()
    return torch.cat([logprobs, *(column.to(wide) for column in columns)], dim=1)


def _get_wide_dtype(device: Device) -> Any:  # noqa: ANN401 - untyped
    return torch.float32 if device.type == "mps" else torch.float64


def _copy_to_device(values: NDArray[Any], device: Device) -> Tensor:
    tensor = torch.from_numpy(values)
    if device.type == "cuda":
        # A copy from pinned memory does not wait for the device's running kernels.
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def _copy_to_host(tensor: Tensor) -> Tensor:
    if tensor.device.type != "cuda":
        return tensor.cpu()
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    pinned.copy_(tensor, non_blocking=True)
    torch.cuda.current_stream(tensor.device).synchronize()
    return pinned
