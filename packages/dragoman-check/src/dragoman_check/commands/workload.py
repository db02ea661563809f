"""Workload options of the benchmark and simulation commands: traces from files,
generated workloads, and SLOs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from dragoman_cli import Option, read_file

if TYPE_CHECKING:
    from dragoman_check.load.load_statistics import Slo

    from ..load.workload import WorkloadRequest

WORKLOAD_GROUP = "Workload"
SYNTHETIC_KINDS = ("poisson", "bursts", "sessions")


@dataclass(frozen=True, kw_only=True)
class WorkloadOptions:
    """Options of generated workloads. Times are in seconds."""

    num_prompts: Annotated[
        int,
        Option(
            help="Number of requests (or conversations) to generate.",
            group=WORKLOAD_GROUP,
            minimum=1,
        ),
    ] = 1000
    request_rate: Annotated[
        float,
        Option(
            help="Arrival rate: requests (or conversations) per second.",
            group=WORKLOAD_GROUP,
        ),
    ] = 1.0
    burstiness: Annotated[
        float,
        Option(
            help="Burstiness factor as in vllm bench: 1 is a Poisson process, below 1 is burstier.",
            group=WORKLOAD_GROUP,
        ),
    ] = 1.0
    input_len: Annotated[
        str,
        Option(
            metavar="LENGTH",
            help="Prompt (or turn) length in tokens: 512, 100-900 or lognormal:400,0.8,8192 "
            "(median, sigma, maximum).",
            group=WORKLOAD_GROUP,
        ),
    ] = "lognormal:400,0.8,8192"
    output_len: Annotated[
        str,
        Option(
            metavar="LENGTH",
            help="Output length in tokens, in the same format.",
            group=WORKLOAD_GROUP,
        ),
    ] = "lognormal:200,0.7,2048"
    burst_size: Annotated[
        int, Option(help="Number of requests per burst.", group=WORKLOAD_GROUP)
    ] = 50
    burst_every: Annotated[float, Option(help="Seconds between bursts.", group=WORKLOAD_GROUP)] = (
        30.0
    )
    turns: Annotated[
        str,
        Option(
            metavar="LENGTH",
            help="Number of turns per conversation.",
            group=WORKLOAD_GROUP,
        ),
    ] = "2-8"
    think_time: Annotated[
        float,
        Option(help="Mean seconds between turns.", group=WORKLOAD_GROUP, minimum=0),
    ] = 5.0
    system_tokens: Annotated[
        int,
        Option(
            help="Length of the shared system prompt in tokens.",
            group=WORKLOAD_GROUP,
            minimum=0,
        ),
    ] = 1000
    groups: Annotated[
        int,
        Option(help="Number of different system prompts.", group=WORKLOAD_GROUP, minimum=1),
    ] = 1
    num_loras: Annotated[
        int,
        Option(
            help="Number of LoRA adapters that requests (or conversations) use in turn; 0 leaves "
            "the trace's own.",
            group=WORKLOAD_GROUP,
            minimum=0,
        ),
    ] = 0
    speedup: Annotated[
        float,
        Option(help="Factor by which to speed up arrivals.", group=WORKLOAD_GROUP),
    ] = 1.0
    seed: Annotated[int, Option(help="Random seed.", group=WORKLOAD_GROUP, minimum=0)] = 0


def load_workload(trace: str, options: WorkloadOptions) -> Sequence[WorkloadRequest]:
    """Load a trace from a file or standard input, or generate a workload. Raises
    ValueError.
    """
    import numpy as np  # noqa: PLC0415

    from ..load.logs.measured_log import LogError  # noqa: PLC0415
    from ..load.trace_options import TraceOptions  # noqa: PLC0415
    from ..load.trace_reader import read_trace  # noqa: PLC0415
    from ..load.workload import WorkloadError  # noqa: PLC0415
    from ..load.workload_transforms import assign_loras, scale_arrivals  # noqa: PLC0415

    if trace in SYNTHETIC_KINDS:
        workload = _generate_workload(trace, options)
    elif trace == "-" or Path(trace).exists():
        trace_options = TraceOptions(options.request_rate, options.think_time, options.num_prompts)
        try:
            parsed = read_trace(
                read_file(trace), trace_options, np.random.default_rng(options.seed)
            )
        except (WorkloadError, LogError) as error:
            raise ValueError(f"{trace}: {error}") from None
        for note in parsed.notes:
            click.echo(f"{trace}: {note}", err=True)
        workload = parsed.requests
    else:
        matches = get_close_matches(trace, SYNTHETIC_KINDS, n=1)
        hint = f"; did you mean {matches[0]}?" if matches else "."
        raise ValueError(
            f"{trace}: no such file or workload{hint} Workloads: {', '.join(SYNTHETIC_KINDS)}"
        )
    if not workload:
        raise ValueError(f"{trace}: contains no requests")
    if options.num_loras:
        workload = assign_loras(workload, [f"lora-{number}" for number in range(options.num_loras)])
    return scale_arrivals(workload, options.speedup)


def _generate_workload(trace: str, options: WorkloadOptions) -> Sequence[WorkloadRequest]:
    import numpy as np  # noqa: PLC0415

    from ..load.request_lengths import parse_lengths  # noqa: PLC0415
    from ..load.workload_generators import (  # noqa: PLC0415
        SessionOptions,
        generate_bursts,
        generate_poisson,
        generate_sessions,
    )

    generator = np.random.default_rng(options.seed)
    inputs = parse_lengths(options.input_len)
    outputs = parse_lengths(options.output_len)
    count = options.num_prompts
    match trace:
        case "poisson":
            rate = options.request_rate
            factor = options.burstiness
            return generate_poisson(
                generator, count=count, rate=rate, inputs=inputs, outputs=outputs, burstiness=factor
            )
        case "bursts":
            size = options.burst_size
            interval = options.burst_every
            return generate_bursts(
                generator, count=count, size=size, interval=interval, inputs=inputs, outputs=outputs
            )
        case _:
            conversations = SessionOptions(
                parse_lengths(options.turns),
                inputs,
                outputs,
                options.think_time,
                options.system_tokens,
                options.groups,
            )
            return generate_sessions(
                generator, count=count, rate=options.request_rate, options=conversations
            )


def build_slo_option(panel: str) -> Option:
    """Build the option whose values `read_slo` parses."""
    return Option(
        "--slo",
        "--goodput",
        metavar="NAME:MS",
        group=panel,
        help="Latency objective per request in milliseconds: ttft:500, tpot:50 or latency:20000. "
        "Repeatable.",
    )


def read_slo(values: Sequence[str]) -> Slo | None:
    """Parse `NAME:MS` objectives; None without any. Raises ValueError."""
    from dragoman_check.load.load_statistics import Slo  # noqa: PLC0415

    thresholds: dict[str, float] = {}
    for pair in (pair for slo_option in values for pair in slo_option.split(",")):
        name, _, value = pair.strip().partition(":")
        # vLLM's benchmark calls the latency `e2el`; its `--goodput` arguments work
        # here, too.
        name = {"e2el": "latency"}.get(name, name)
        try:
            thresholds[name] = float(value) / 1000
        except ValueError:
            raise ValueError(
                f"--slo: {pair!r} is not NAME:MILLISECONDS, such as ttft:500"
            ) from None
        if name not in Slo.__struct_fields__ or not thresholds[name] > 0:
            raise ValueError(
                f"--slo: {pair!r}: must be one of {', '.join(Slo.__struct_fields__)}, with a "
                f"positive time"
            )
    return Slo(**thresholds) if thresholds else None
