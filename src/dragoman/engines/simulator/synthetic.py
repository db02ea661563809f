"""Synthetic workloads: Poisson arrivals, bursts, conversations with shared prefixes. Randomness comes only from the
caller's generator: the same generator state gives the same workload.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from .workload import RequestTable, WorkloadRequest

Generator = np.random.Generator


class FixedLength(Struct, frozen=True, tag="fixed", forbid_unknown_fields=True):
    """A constant number of tokens."""

    tokens: int

    def sample(self, _: Generator) -> int:
        return max(1, self.tokens)


class UniformLength(Struct, frozen=True, tag="uniform", forbid_unknown_fields=True):
    """Between low and high tokens, both included."""

    low: int
    high: int

    def sample(self, generator: Generator) -> int:
        return max(1, int(generator.integers(self.low, self.high, endpoint=True)))


class LogNormalLength(Struct, frozen=True, tag="lognormal", forbid_unknown_fields=True):
    """Log-normal around a median, capped at `maximum`; sigma is the standard deviation of the logarithm."""

    median: float
    sigma: float
    maximum: int

    def sample(self, generator: Generator) -> int:
        length = self.median * float(np.exp(generator.normal(0.0, self.sigma)))
        return min(max(1, round(length)), self.maximum)


RequestLengths = FixedLength | UniformLength | LogNormalLength


def parse_lengths(text: str) -> RequestLengths:
    """Parse `512`, `100-900` or `lognormal:400,0.8,8192` (median, sigma, maximum). Raises ValueError."""
    name, _, rest = text.partition(":")
    try:
        if name == "lognormal" and rest:
            median, sigma, maximum = rest.split(",")
            return _check_lengths(LogNormalLength(float(median), float(sigma), int(maximum)), text)
        low, is_range, high = text.partition("-")
        return _check_lengths(UniformLength(int(low), int(high)) if is_range else FixedLength(int(text)), text)
    except ValueError:
        raise ValueError(f"{text!r} is not a length: use 512, 100-900 or lognormal:MEDIAN,SIGMA,MOST") from None


def _check_lengths(lengths: RequestLengths, text: str) -> RequestLengths:
    match lengths:
        case FixedLength(tokens):
            is_valid = tokens >= 1
        case UniformLength(low, high):
            is_valid = 1 <= low <= high
        case LogNormalLength(median, sigma, maximum):
            is_valid = 0 < median < float("inf") and 0 <= sigma < 20 and maximum >= 1
    if not is_valid:
        raise ValueError(text)
    return lengths


def generate_arrivals(generator: Generator, *, rate: float, burstiness: float = 1.0) -> Iterator[float]:
    """Moments at which requests arrive, in seconds from 0 on, endlessly; `rate` a second in the mean.

    burstiness: as in `vllm bench serve`: the gaps are gamma-distributed with this shape. 1 is a Poisson process, less
    is burstier, more is more even, infinity is a metronome.
    """
    if not rate > 0 or not burstiness > 0:
        raise ValueError("rate and burstiness must be more than 0")
    now = 0.0
    while True:
        yield now
        is_constant = np.isinf(burstiness)
        # Shape times scale is the mean gap, 1 / rate, whatever the burstiness.
        now += 1 / rate if is_constant else float(generator.gamma(burstiness, 1 / (rate * burstiness)))


def generate_poisson(
    generator: Generator,
    *,
    count: int,
    rate: float,
    inputs: RequestLengths,
    outputs: RequestLengths,
    burstiness: float = 1.0,
) -> RequestTable:
    """Generate independent requests."""
    times = generate_arrivals(generator, rate=rate, burstiness=burstiness)
    return RequestTable.build(
        "r", ((index, next(times), inputs.sample(generator), outputs.sample(generator)) for index in range(count))
    )


def generate_bursts(
    generator: Generator, *, count: int, size: int, interval: float, inputs: RequestLengths, outputs: RequestLengths
) -> RequestTable:
    """Generate `size` simultaneous requests every `interval` seconds."""
    if size < 1 or not interval > 0:
        raise ValueError("size must be at least 1 and every more than 0 seconds")
    return RequestTable.build(
        "r",
        (
            (index, index // size * interval, inputs.sample(generator), outputs.sample(generator))
            for index in range(count)
        ),
    )


class SessionOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of sessions (multi-turn conversations).

    Every session starts with one of `groups` system prompts of `system_tokens` tokens, shared by the sessions of a
    group. A turn appends `inputs` tokens to the conversation and is answered with `outputs` tokens; the next turn
    follows after `think_seconds` on average (exponentially distributed).
    """

    turns: RequestLengths
    inputs: RequestLengths
    outputs: RequestLengths
    think_seconds: float = 5.0
    system_tokens: int = 0
    groups: int = 1
    block_size: int = 16


def generate_sessions(
    generator: Generator, *, count: int, rate: float, options: SessionOptions
) -> list[WorkloadRequest]:
    """`count` sessions that begin at `rate` a second; a turn waits for the answer to the one before it."""
    times = generate_arrivals(generator, rate=rate)
    requests: list[WorkloadRequest] = []
    for session in range(count):
        requests += _generate_session(generator, session, next(times), options)
    return requests


def _generate_session(
    generator: Generator, session: int, begins: float, options: SessionOptions
) -> Iterator[WorkloadRequest]:
    group = int(generator.integers(options.groups))
    total_tokens = options.system_tokens
    previous_id: str | None = None
    for turn in range(options.turns.sample(generator)):
        inputs = total_tokens + options.inputs.sample(generator)
        outputs = options.outputs.sample(generator)
        total_tokens = inputs + outputs
        pause = float(generator.exponential(options.think_seconds)) if previous_id else begins
        id = f"s{session}-t{turn}"
        hashes = _build_block_hashes(
            f"g{group}", f"s{session}", options.system_tokens, total_tokens, options.block_size
        )
        yield WorkloadRequest(id, pause, inputs, outputs, hashes, options.block_size, after=previous_id)
        previous_id = id


def _build_block_hashes(group: str, session: str, shared_tokens: int, tokens: int, block_size: int) -> tuple[str, ...]:
    """Build the names of a conversation's full blocks; those of the system prompt are shared by the group."""
    owners = (group if (block + 1) * block_size <= shared_tokens else session for block in range(tokens // block_size))
    return tuple(f"{owner}/{block}" for block, owner in enumerate(owners))
