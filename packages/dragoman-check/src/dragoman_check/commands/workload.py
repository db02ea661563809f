"""Workload options of the benchmark and simulation commands: traces from files,
generated workloads, and SLOs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.models import OptionInfo

from dragoman.commands.options import read_file

if TYPE_CHECKING:
    from dragoman_check.load.load_statistics import Slo

    from ..load.workload import WorkloadRequest

WORKLOAD_PANEL = "Workload"
SYNTHETIC_KINDS = ("poisson", "bursts", "sessions")


@dataclass(frozen=True, kw_only=True)
class WorkloadOptions:
    """Options of generated workloads. Times are in seconds."""

    num_prompts: Annotated[
        int,
        typer.Option(
            help="Number of requests (or conversations) to generate.",
            rich_help_panel=WORKLOAD_PANEL,
            min=1,
        ),
    ] = 1000
    request_rate: Annotated[
        float,
        typer.Option(
            help="Arrival rate: requests (or conversations) per second.",
            rich_help_panel=WORKLOAD_PANEL,
        ),
    ] = 1.0
    burstiness: Annotated[
        float,
        typer.Option(
            help="Burstiness factor as in vllm bench: 1 is a Poisson process, below 1 is burstier.",
            rich_help_panel=WORKLOAD_PANEL,
        ),
    ] = 1.0
    input_len: Annotated[
        str,
        typer.Option(
            metavar="LENGTH",
            help="Prompt (or turn) length in tokens: 512, 100-900 or lognormal:400,0.8,8192 "
            "(median, sigma, maximum).",
            rich_help_panel=WORKLOAD_PANEL,
        ),
    ] = "lognormal:400,0.8,8192"
    output_len: Annotated[
        str,
        typer.Option(
            metavar="LENGTH",
            help="Output length in tokens, in the same format.",
            rich_help_panel=WORKLOAD_PANEL,
        ),
    ] = "lognormal:200,0.7,2048"
    burst_size: Annotated[
        int, typer.Option(help="Number of requests per burst.", rich_help_panel=WORKLOAD_PANEL)
    ] = 50
    burst_every: Annotated[
        float, typer.Option(help="Seconds between bursts.", rich_help_panel=WORKLOAD_PANEL)
    ] = 30.0
    turns: Annotated[
        str,
        typer.Option(
            metavar="LENGTH",
            help="Number of turns per conversation.",
            rich_help_panel=WORKLOAD_PANEL,
        ),
    ] = "2-8"
    think_time: Annotated[
        float,
        typer.Option(help="Mean seconds between turns.", rich_help_panel=WORKLOAD_PANEL, min=0),
    ] = 5.0
    system_tokens: Annotated[
        int,
        typer.Option(
            help="Length of the shared system prompt in tokens.",
            rich_help_panel=WORKLOAD_PANEL,
            min=0,
        ),
    ] = 1000
    groups: Annotated[
        int,
        typer.Option(
            help="Number of different system prompts.", rich_help_panel=WORKLOAD_PANEL, min=1
        ),
    ] = 1
    num_loras: Annotated[
        int,
        typer.Option(
            help="Number of LoRA adapters that requests (or conversations) use in turn; 0 leaves "
            "the trace's own.",
            rich_help_panel=WORKLOAD_PANEL,
            min=0,
        ),
    ] = 0
    speedup: Annotated[
        float,
        typer.Option(help="Factor by which to speed up arrivals.", rich_help_panel=WORKLOAD_PANEL),
    ] = 1.0
    seed: Annotated[
        int, typer.Option(help="Random seed.", rich_help_panel=WORKLOAD_PANEL, min=0)
    ] = 0


def load_workload(trace: str, options: WorkloadOptions) -> Sequence[WorkloadRequest]:
    """Load a trace from a file or standard input, or generate a workload. Raises
    ValueError.
    """
    import numpy as np  # noqa: PLC0415 - numpy is slow to import; also below

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
            typer.echo(f"{trace}: {note}", err=True)
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


def build_slo_option(panel: str) -> OptionInfo:
    """Build the option whose values `read_slo` parses."""
    return typer.Option(
        "--slo",
        "--goodput",
        metavar="NAME:MS",
        rich_help_panel=panel,
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
