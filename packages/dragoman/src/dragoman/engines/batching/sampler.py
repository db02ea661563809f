"""Samples the next token of every sequence of a step, applying the parameters in vLLM's
order.

Without global state: each sequence has its own random generator.

Masks (allowed ids, grammar, bad words, min_tokens), logit_bias, penalties; then argmax
for greedy sequences, and for the others temperature, min_p, top_k, top_p and one
uniform draw through the inverse cumulative distribution in order of token ids. Rows are
processed one by one: a choice does not depend on the rest of the batch, and a row of a
large vocabulary stays in the processor's cache. `SamplingState` holds one sequence's
parameters and history.

Log-probabilities are those of the raw logits, before penalties, masks and temperature
(vLLM's `raw_logprobs`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ...core.token_engine import TokenLogprob, TokenRequest

SAMPLING_PARAMETERS = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "seed",
        "logit_bias",
        "allowed_token_ids",
        "bad_words",
        "min_tokens",
        "stop_token_ids",
    }
)
"""The parameters that this sampler applies."""

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Doubles = NDArray[np.float64]


def log_softmax(logits: Floats) -> Doubles:
    """Convert [n, vocab] logits to log-probabilities. Each row is bitwise independent
    of the others.
    """
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide


def build_logprob(
    row: Doubles, token: int, alternatives: int, ids: tuple[int, ...] = ()
) -> TokenLogprob:
    """Build the logprob of a token with its alternatives.

    row: [vocab] log-probabilities.
    alternatives: number of most likely tokens to list; ignored if `ids` is not empty.
    ids: tokens to list besides the token itself.

    The token has the same value in `logprob` and in `top`.
    """
    logprob = row.item(token)
    rank = int(np.count_nonzero(row > logprob)) + 1
    if ids:
        pairs = sorted(
            ((id, row.item(id)) for id in {token, *ids}), key=lambda pair: (-pair[1], pair[0])
        )
        return TokenLogprob(logprob, rank, tuple(pairs))
    if alternatives <= 0:
        return TokenLogprob(logprob, rank, ())
    candidates = np.arange(len(row))
    if alternatives < len(row):
        threshold = np.partition(row, len(row) - alternatives)[len(row) - alternatives]
        # Includes all ties of the last one: the stable sort below prefers lower ids
        # among them.
        candidates = np.flatnonzero(row >= threshold)
    best = candidates[np.argsort(-row[candidates], kind="stable")][:alternatives]
    return TokenLogprob(logprob, rank, tuple(zip(best.tolist(), row[best].tolist(), strict=True)))


RngFactory = Callable[[int | None], Callable[[], float]]
"""Builds a sequence's random generator from its seed (None: unseeded). It returns
uniform numbers in [0, 1).
"""

GREEDY_BELOW = 1e-5
"""Temperatures below this sample greedily (vLLM's `_SAMPLING_EPS` in
vllm/v1/sample/sampler.py).
"""


class SamplingState:
    """Sampling parameters and state of one sequence.

    is_plain: greedy with unmodified logits.
    appeared_ids: the tokens of `appeared`, each once.
    bias_ids, biases: ids and values of logit_bias, in order; an id may occur several
        times.
    """

    def __init__(self, request: TokenRequest, vocab: int, rng_factory: RngFactory) -> None:
        self.sampling = sampling = request.sampling
        self.request = request
        self._output: list[int] = []
        self.is_greedy = sampling.temperature < GREEDY_BELOW
        self.rng = None if self.is_greedy else rng_factory(sampling.seed)
        self.has_penalties = (
            sampling.presence_penalty != 0
            or sampling.frequency_penalty != 0
            or sampling.repetition_penalty != 1
        )
        self.counts = np.zeros(vocab if self.has_penalties else 0, np.int32)
        """The number of times that each token was sampled."""
        self.appeared = np.zeros(vocab if self.has_penalties else 0, np.bool_)
        """Whether each token is in the prompt or was sampled."""
        if self.has_penalties:
            self.appeared[list(request.prompt)] = True
        self.appeared_ids: list[int] = np.flatnonzero(self.appeared).tolist()
        self._stop_ids = np.array(
            sorted(id for id in request.stop_token_ids if 0 <= id < vocab), np.int64
        )
        self._disallowed_mask: NDArray[np.bool_] | None = None
        if sampling.allowed_token_ids is not None:
            self._disallowed_mask = np.ones(vocab, np.bool_)
            self._disallowed_mask[list(sampling.allowed_token_ids)] = False
        self.bias_ids = np.array([id for id, _ in sampling.logit_bias], np.int64)
        # Clipped to finite float32 values: an infinite bias on a masked token would
        # give NaN.
        biases = np.array([bias for _, bias in sampling.logit_bias], np.float64).clip(-1e30, 1e30)
        self.biases: Floats = biases.astype(np.float32)
        self._has_edits = (
            bool(sampling.logit_bias or sampling.bad_words) or self._disallowed_mask is not None
        )

    @property
    def is_below_min_tokens(self) -> bool:
        """Whether stop tokens are still masked."""
        return len(self._output) < self.request.min_tokens and len(self._stop_ids) > 0

    @property
    def is_plain(self) -> bool:
        return self.is_greedy and not (
            self.has_penalties or self._has_edits or self.is_below_min_tokens
        )

    def observe(self, token: int) -> None:
        self._output.append(token)
        if self.has_penalties:
            self.counts[token] += 1
            if not self.appeared[token]:
                self.appeared[token] = True
                self.appeared_ids.append(token)

    def apply_masks(self, row: Floats, mask: bytes | None) -> None:
        """Apply the masks and then the biases to one row of logits, in place. mask: as
        `Matcher.mask` returns it.
        """
        if self._disallowed_mask is not None:
            row[self._disallowed_mask] = -np.inf
        if mask is not None:
            vocab = len(row)
            # Padded here: unpackbits with a count leaves uninitialized memory if the
            # mask is empty.
            packed = np.frombuffer(mask.ljust(-(-vocab // 8), b"\0"), np.uint8)
            row[~np.unpackbits(packed, count=vocab, bitorder="little").view(np.bool_)] = -np.inf
        row[self._find_forbidden_ids(len(row))] = -np.inf
        if len(self.bias_ids):
            # `row[ids] += biases` would add only one of several biases of the same id.
            np.add.at(row, self.bias_ids, self.biases)

    def pack_masks(self, mask: bytes | None, vocab: int) -> NDArray[np.uint8] | None:
        """Pack the masks that `apply_masks` applies, eight ids per byte, lowest bit
        first; None if there are none.
        """
        forbidden = self._find_forbidden_ids(vocab)
        if mask is None and self._disallowed_mask is None and not len(forbidden):
            return None
        size = -(-vocab // 8)
        packed = np.full(size, 255, np.uint8)
        if self._disallowed_mask is not None:
            packed &= np.packbits(~self._disallowed_mask, bitorder="little")
        if mask is not None:
            packed &= np.frombuffer(mask[:size].ljust(size, b"\0"), np.uint8)
        np.bitwise_and.at(packed, forbidden >> 3, ~(1 << (forbidden & 7)).astype(np.uint8))
        return packed

    def _find_forbidden_ids(self, vocab: int) -> NDArray[np.int64]:
        """Find the ids that neither a grammar nor a list of allowed ids masks: the last
        id of a bad word after its other ids (only sampled tokens count, as in vLLM),
        and stop tokens below min_tokens.
        """
        num_sampled = len(self._output)
        ends = [
            word[-1]
            for word in self.sampling.bad_words
            if 0 < len(word) <= num_sampled + 1
            and tuple(self._output[num_sampled - len(word) + 1 :]) == word[:-1]
            and 0 <= word[-1] < vocab
        ]
        return np.array([*ends, *(self._stop_ids if self.is_below_min_tokens else ())], np.int64)


NO_TOKEN = -1
"""No token is allowed, or all logits are NaN."""

_BLOCK = 256
"""Tokens in a block of the vocabulary; the k-th best maximum of blocks is a lower bound
of the k-th best token.
"""
_SMALL = 2048
"""Maximum number of candidates that are sorted rather than partitioned."""
_WORTHWHILE = 0.9
"""Candidates are filtered again while a pass leaves a smaller share of them than this.
"""


class NumpySampledRows:
    """Implements `model_protocols.SampledRows`: samples from [n, vocab] logits, which
    are not modified.
    """

    def __init__(
        self, logits: Floats, states: Sequence[SamplingState], masks: Sequence[bytes | None]
    ) -> None:
        self._logits = logits
        self._states = states
        self.tokens = sample(logits, states, masks)

    def compute_logprobs(self, tokens: Sequence[int]) -> list[TokenLogprob | None]:
        requests = [state.request for state in self._states]
        rows = [
            row
            for row, token in enumerate(tokens)
            if token != NO_TOKEN and requests[row].logprobs is not None
        ]
        scores: list[TokenLogprob | None] = [None] * len(tokens)
        if rows:
            for row, logprobs in zip(rows, log_softmax(self._logits[rows]), strict=True):
                request = requests[row]
                scores[row] = build_logprob(
                    logprobs, tokens[row], request.logprobs or 0, request.logprob_ids
                )
        return scores

    def is_finite(self, row: int) -> bool:
        return bool(np.isfinite(self._logits[row]).all())


def sample(
    logits: Floats, states: Sequence[SamplingState], masks: Sequence[bytes | None]
) -> list[int]:
    """Sample a token for each row of [n, vocab] logits, which are not modified;
    NO_TOKEN if no token is possible.
    """
    tokens: list[int] = logits.argmax(axis=1).tolist()
    for row, (state, mask) in enumerate(zip(states, masks, strict=True)):
        if not np.isfinite(logits[row, tokens[row]]):
            tokens[row] = NO_TOKEN
            continue
        if mask is None and state.is_plain:
            continue
        scores = logits[row].copy()
        state.apply_masks(scores, mask)
        if state.has_penalties:
            scores = _apply_penalties(scores, state)
        best = _replace_non_finite(scores)
        if not np.isfinite(best):
            tokens[row] = NO_TOKEN
        else:
            tokens[row] = int(scores.argmax()) if state.is_greedy else _draw(scores, best, state)
    return tokens


def _apply_penalties(logits: Floats, state: SamplingState) -> Floats:
    sampling = state.sampling
    repetition, frequency, presence = (
        np.float32(penalty)
        for penalty in (
            sampling.repetition_penalty,
            sampling.frequency_penalty,
            sampling.presence_penalty,
        )
    )
    # As in the CTRL paper and transformers: dividing a negative logit would make the
    # token more likely.
    repeated = np.where(logits > 0, logits / repetition, logits * repetition)
    logits = np.where(state.appeared, repeated, logits)
    logits -= frequency * state.counts
    logits -= presence * (state.counts > 0)
    return logits


def _replace_non_finite(logits: Floats) -> float:
    """Replace non-finite logits in place: a NaN is impossible, +inf is certain. Returns
    the largest logit.
    """
    best = float(logits.max())
    if np.isfinite(best):
        return best
    logits[np.isnan(logits)] = -np.inf
    certain = logits == np.inf
    if certain.any():
        logits[:] = -np.inf
        logits[certain] = 0
    return float(logits.max())


def _draw(logits: Floats, best: float, state: SamplingState) -> int:
    """Draw a token from the distribution of one row, which is overwritten. best: its
    largest logit.
    """
    sampling = state.sampling
    uniform = state.rng() if state.rng else 0.0
    logits -= np.float32(best)
    # A very low temperature can turn logits into -inf, which is a probability of 0.
    with np.errstate(over="ignore"):
        logits /= np.float32(sampling.temperature)
    if sampling.min_p > 0:
        logits[logits < np.float32(np.log(min(sampling.min_p, 1.0)))] = -np.inf
    ids = None
    if 0 < sampling.top_k < len(logits):
        # The k best tokens and ties with the last of them. The k-th best maximum of
        # blocks bounds them from below.
        k = sampling.top_k
        ids = np.arange(len(logits))
        values = logits
        if k * _BLOCK <= len(logits):
            maxima = np.maximum.reduceat(logits, np.arange(0, len(logits), _BLOCK))
            ids = np.flatnonzero(logits >= np.partition(maxima, len(maxima) - k)[len(maxima) - k])
            values = logits[ids]
        ids = ids[values >= np.partition(values, len(values) - k)[len(values) - k]]
    if sampling.top_p < 1:
        ids = (
            _find_top_p(logits, sampling.top_p)
            if ids is None
            else ids[_find_top_p(logits[ids], sampling.top_p)]
        )
    cumulative: NDArray[np.float64] = np.exp(
        (logits if ids is None else logits[ids]).astype(np.float64)
    ).cumsum()
    # The product is less than the total for every double below 1, so some token is
    # always possible.
    index = int(np.searchsorted(cumulative, uniform * float(cumulative[-1]), side="right"))
    return index if ids is None else int(ids[index])


def _find_top_p(logits: Floats, share: float) -> Ints:
    """Find the indices of the fewest most likely tokens that sum to `share`; of tied
    tokens, those of lowest id.

    logits: relative to the largest.

    The candidates are narrowed down so that the tokens outside together weigh less than
    the candidates' excess over `share`; the result is therefore always among them.
    """
    masses = np.exp(logits)
    needed = share * float(masses.sum(dtype=np.float64))
    # Sorting the vocabulary costs milliseconds. A token that weighs less than the
    # excess over `share`, divided by the number of tokens, is not in the result, so
    # most are ruled out without a sort, as long as a pass removes enough.
    excess = float(masses.sum(dtype=np.float64)) - needed
    ids = np.flatnonzero(masses >= excess / len(masses))
    masses, size = masses[ids], len(masses)
    while len(ids) < _WORTHWHILE * size:
        size = len(ids)
        possible = masses >= (float(masses.sum(dtype=np.float64)) - needed) / size
        ids = ids[possible]
        masses = masses[possible]
    last, count = _find_last(masses, needed)
    better = masses > last
    ties = np.flatnonzero(masses == last)
    better[ties[: count - int(better.sum())]] = True
    return ids[better]


def _find_last(masses: Floats, needed: float) -> tuple[np.float32, int]:
    """Find the smallest of the largest masses that sum to `needed`, and their number."""
    num_better = 0
    while len(masses) > _SMALL:
        # A partition is linear; halving until few are left makes the whole search
        # linear too.
        middle = len(masses) // 2
        masses = np.partition(masses, middle)
        upper = float(masses[middle:].sum(dtype=np.float64))
        if upper >= needed:
            masses = masses[middle:]
        else:
            needed = needed - upper
            num_better = num_better + len(masses) - middle
            masses = masses[:middle]
    ranked = np.sort(masses)[::-1]
    before = ranked.cumsum(dtype=np.float64) - ranked
    count = max(int(np.searchsorted(before, needed, side="left")), 1)
    return ranked[count - 1], num_better + count
