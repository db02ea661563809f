"""Workloads made up: Poisson arrivals, bursts, conversations with shared prefixes. Chance comes from the caller's
generator alone: the same generator state gives the same workload.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from .workload import Request

Generator = np.random.Generator


class Fixed(Struct, frozen=True, tag="fixed", forbid_unknown_fields=True):
    """Always so many tokens."""

    tokens: int

    def draw(self, _: Generator) -> int:
        return max(1, self.tokens)


class Uniform(Struct, frozen=True, tag="uniform", forbid_unknown_fields=True):
    """Between low and high tokens, both included."""

    low: int
    high: int

    def draw(self, generator: Generator) -> int:
        return max(1, int(generator.integers(self.low, self.high, endpoint=True)))


class LogNormal(Struct, frozen=True, tag="lognormal", forbid_unknown_fields=True):
    """Around a median, with a long tail up to `most`; sigma is the standard deviation of the logarithm."""

    median: float
    sigma: float
    most: int

    def draw(self, generator: Generator) -> int:
        drawn = self.median * float(np.exp(generator.normal(0.0, self.sigma)))
        return min(max(1, round(drawn)), self.most)


Lengths = Fixed | Uniform | LogNormal


def lengths(said: str) -> Lengths:
    """What a person writes: `512`, `100-900`, `lognormal:400,0.8,8192` (median, sigma, most). Raises ValueError."""
    name, _, rest = said.partition(":")
    try:
        if name == "lognormal" and rest:
            median, sigma, most = rest.split(",")
            return _checked(LogNormal(float(median), float(sigma), int(most)), said)
        low, dash, high = said.partition("-")
        return _checked(Uniform(int(low), int(high)) if dash else Fixed(int(said)), said)
    except ValueError:
        raise ValueError(f"{said!r} is not a length: use 512, 100-900 or lognormal:MEDIAN,SIGMA,MOST") from None


def _checked(found: Lengths, said: str) -> Lengths:
    match found:
        case Fixed(tokens):
            right = tokens >= 1
        case Uniform(low, high):
            right = 1 <= low <= high
        case LogNormal(median, sigma, most):
            right = 0 < median < float("inf") and 0 <= sigma < 20 and most >= 1
    if not right:
        raise ValueError(said)
    return found


def arrivals(generator: Generator, *, rate: float, burstiness: float = 1.0) -> Iterator[float]:
    """Moments at which requests arrive, in seconds from 0 on, endlessly; `rate` a second in the mean.

    burstiness: as in `vllm bench serve`: the gaps are gamma-distributed with this shape. 1 is a Poisson process, less
    is burstier, more is more even, infinity is a metronome.
    """
    if not rate > 0 or not burstiness > 0:
        raise ValueError("rate and burstiness must be more than 0")
    now = 0.0
    while True:
        yield now
        even = np.isinf(burstiness)
        now += 1 / rate if even else float(generator.gamma(burstiness, 1 / (rate * burstiness)))


def poisson(
    generator: Generator, *, count: int, rate: float, inputs: Lengths, outputs: Lengths, burstiness: float = 1.0
) -> list[Request]:
    """Requests that know nothing of each other."""
    moments = arrivals(generator, rate=rate, burstiness=burstiness)
    return [
        Request(f"r{index}", next(moments), inputs.draw(generator), outputs.draw(generator)) for index in range(count)
    ]


def bursts(
    generator: Generator, *, count: int, size: int, every: float, inputs: Lengths, outputs: Lengths
) -> list[Request]:
    """`size` requests at once, every so many seconds."""
    if size < 1 or not every > 0:
        raise ValueError("size must be at least 1 and every more than 0 seconds")
    return [
        Request(f"r{index}", index // size * every, inputs.draw(generator), outputs.draw(generator))
        for index in range(count)
    ]


class Conversations(Struct, frozen=True, forbid_unknown_fields=True):
    """What sessions are like.

    Every session starts with one of `groups` system prompts of `system_tokens` tokens, which those of its group share.
    A turn adds `inputs` tokens to all that was said and is answered with `outputs` tokens; the next one follows after
    `think_seconds` in the mean (exponentially distributed).
    """

    turns: Lengths
    inputs: Lengths
    outputs: Lengths
    think_seconds: float = 5.0
    system_tokens: int = 0
    groups: int = 1
    block_size: int = 16


def sessions(generator: Generator, *, count: int, rate: float, conversations: Conversations) -> list[Request]:
    """`count` sessions that begin at `rate` a second; a turn waits for the answer to the one before it."""
    moments = arrivals(generator, rate=rate)
    requests: list[Request] = []
    for session in range(count):
        requests += _session(generator, session, next(moments), conversations)
    return requests


def _session(generator: Generator, session: int, begins: float, like: Conversations) -> Iterator[Request]:
    group = int(generator.integers(like.groups))
    said = like.system_tokens
    before: str | None = None
    for turn in range(like.turns.draw(generator)):
        inputs = said + like.inputs.draw(generator)
        outputs = like.outputs.draw(generator)
        said = inputs + outputs
        pause = float(generator.exponential(like.think_seconds)) if before else begins
        id = f"s{session}-t{turn}"
        hashes = _hashes(f"g{group}", f"s{session}", like.system_tokens, said, like.block_size)
        yield Request(id, pause, inputs, outputs, hashes, like.block_size, after=before)
        before = id


def _hashes(group: str, session: str, shared: int, tokens: int, block_size: int) -> tuple[str, ...]:
    """Names of the full blocks of what was said in a session so far; those of the system prompt are the group's."""
    owners = (group if (block + 1) * block_size <= shared else session for block in range(tokens // block_size))
    return tuple(f"{owner}/{block}" for block, owner in enumerate(owners))
