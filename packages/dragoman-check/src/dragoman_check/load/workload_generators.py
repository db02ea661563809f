"""Generated workloads: Poisson arrivals, bursts, conversations with shared prefixes.

All randomness comes from the caller's `Generator`: the same state gives the same
workload.
"""

from __future__ import annotations

from msgspec import Struct

from .arrivals import generate_arrivals
from .request_lengths import Generator, RequestLengths
from .request_table import RequestTable
from .workload import WorkloadRequest


def generate_poisson(
    generator: Generator,
    *,
    count: int,
    rate: float,
    inputs: RequestLengths,
    outputs: RequestLengths,
    burstiness: float = 1.0,
) -> RequestTable:
    """Generate `count` independent requests, `rate` per second on average."""
    times = generate_arrivals(generator, rate=rate, burstiness=burstiness)
    return RequestTable.build(
        "r",
        (
            (index, next(times), inputs.sample(generator), outputs.sample(generator))
            for index in range(count)
        ),
    )


def generate_bursts(
    generator: Generator,
    *,
    count: int,
    size: int,
    interval: float,
    inputs: RequestLengths,
    outputs: RequestLengths,
) -> RequestTable:
    """Generate `size` simultaneous requests every `interval` seconds."""
    if size < 1 or not interval > 0:
        raise ValueError("size must be at least 1, and interval more than 0 seconds")
    return RequestTable.build(
        "r",
        (
            (index, index // size * interval, inputs.sample(generator), outputs.sample(generator))
            for index in range(count)
        ),
    )


class SessionOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of sessions (multi-turn conversations).

    turns: turns per session.
    inputs: tokens that a turn adds to the conversation.
    outputs: tokens of each response.
    think_seconds: mean pause before the next turn, exponentially distributed.
    system_tokens: tokens of the system prompt, with which each session starts.
    groups: number of different system prompts; the sessions of a group share one.
    block_size: tokens per block of the prefix hashes.
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
    """Generate `count` sessions, `rate` per second. Each turn waits for the response to
    the previous one.
    """
    times = generate_arrivals(generator, rate=rate)
    requests: list[WorkloadRequest] = []
    for session in range(count):
        begins = next(times)
        group = int(generator.integers(options.groups))
        total_tokens = options.system_tokens
        size = options.block_size
        previous_id: str | None = None
        for turn in range(options.turns.sample(generator)):
            inputs = total_tokens + options.inputs.sample(generator)
            outputs = options.outputs.sample(generator)
            total_tokens = inputs + outputs
            pause = float(generator.exponential(options.think_seconds)) if previous_id else begins
            id = f"s{session}-t{turn}"
            # The group shares the full blocks of the system prompt.
            num_shared = options.system_tokens // size
            hashes = tuple(
                f"g{group}/{block}" if block < num_shared else f"s{session}/{block}"
                for block in range(total_tokens // size)
            )
            requests.append(
                WorkloadRequest(id, pause, inputs, outputs, hashes, size, after=previous_id)
            )
            previous_id = id
    return requests
