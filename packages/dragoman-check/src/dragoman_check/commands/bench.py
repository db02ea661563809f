"""`dragoman bench`: benchmarks a server, or compares two benchmark logs.

`drive` sends the requests and measures the responses; `bench_report` computes the
statistics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import msgspec

from dragoman_cli import (
    Argument,
    Option,
    build_command,
    print_warning,
    read_file,
    show_progress,
)
from dragoman_cli.api_key import build_api_key_option, find_api_key

from .bench_flags import explain_bench_flag
from .server_options import build_extra_body_option
from .workload import WORKLOAD_GROUP, WorkloadOptions, build_slo_option, load_workload, read_slo

if TYPE_CHECKING:
    from dragoman_check.load.load_statistics import Slo

    from ..load.bench_report import BenchReport
    from ..load.bench_run import Run

LOAD_GROUP = "Load"
SERVER_GROUP = "Server"
OUTPUT_GROUP = "Output"
DIALECT_NAMES = ("completions", "chat", "responses", "messages", "ollama")
HELP = """Measure a server under a load: time to the first token, time between tokens, latency,
goodput.

URL is the server's, TRACE the load as for `simulate`: a file, poisson (the default),
bursts or sessions. Its requests are sent at their times, or with --concurrency by that
many clients, one after the other. With --compare, the arguments are two logs of
`bench`, or of a tool that `calibrate` reads.
"""


@dataclass(frozen=True, kw_only=True)
class BenchOptions(WorkloadOptions):
    """Options of `dragoman bench`; None means not set."""

    arguments: Annotated[
        tuple[str, ...],
        Argument(metavar="URL [TRACE]", help="The server, and the load."),
    ]
    compare: Annotated[
        bool, Option("--compare", help="Compare two logs: --compare BEFORE AFTER.")
    ] = False
    num_prompts: Annotated[
        int,
        Option(
            help="Number of requests (or conversations) to generate.",
            group=WORKLOAD_GROUP,
            minimum=1,
        ),
    ] = 100
    concurrency: Annotated[
        int | None,
        Option(
            help="A closed loop of this many clients; the trace's times do not count.",
            group=LOAD_GROUP,
            minimum=1,
        ),
    ] = None
    warmup: Annotated[
        int,
        Option(help="Requests before those that are measured.", group=LOAD_GROUP, minimum=0),
    ] = 1

    dialect: Annotated[
        str,
        Option(help=f"The API: {', '.join(DIALECT_NAMES)}.", group=SERVER_GROUP),
    ] = "completions"
    model: Annotated[
        str | None,
        Option(
            help="Model name; by default the first one.",
            group=SERVER_GROUP,
        ),
    ] = None
    api_key: Annotated[str | None, build_api_key_option(SERVER_GROUP)] = None
    extra_body: Annotated[str, build_extra_body_option(SERVER_GROUP)] = "{}"

    slo: Annotated[tuple[str, ...], build_slo_option(OUTPUT_GROUP)] = ()
    json: Annotated[bool, Option("--json", help="Print JSON.", group=OUTPUT_GROUP)] = False
    save_detailed: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="Write each request as JSON Lines: a log for `calibrate` and --compare, a trace "
            "for `simulate` and "
            "`plan`.",
            group=OUTPUT_GROUP,
        ),
    ] = None
    plots: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="Write plots to this .png, .svg, .pdf or .html file (requires the extra `plots`).",
            group=OUTPUT_GROUP,
        ),
    ] = None


class _BenchFile(msgspec.Struct):
    """The output of `--json`."""

    server: str
    model: str
    dialect: str
    loop: str
    report: BenchReport


def _run_bench(options: BenchOptions) -> None:
    if options.plots is not None:
        from dragoman_check.plots.figure import check_plot_path  # noqa: PLC0415 - numpy and matplotlib are slow to import; also below

        check_plot_path(options.plots)
    slo = read_slo(options.slo)
    if not options.compare:
        if len(options.arguments) > 2:
            raise ValueError(f"expected URL and TRACE, got {len(options.arguments)} arguments")
        if options.dialect not in DIALECT_NAMES:
            raise ValueError(
                f"--dialect: must be one of {', '.join(DIALECT_NAMES)}, not {options.dialect!r}"
            )
        url, trace = (*options.arguments, "poisson")[:2]
        _measure(options, url, trace, slo)
        return
    from ..load.bench_comparison import render_comparison  # noqa: PLC0415
    from ..load.bench_report import build_bench_report  # noqa: PLC0415
    from ..load.bench_run import read_run  # noqa: PLC0415

    if len(options.arguments) != 2:
        raise ValueError("--compare takes exactly two logs: --compare BEFORE AFTER")
    before, after = (read_run(Path(name).name, read_file(name)) for name in options.arguments)
    reports = [build_bench_report(run, slo) for run in (before, after)]
    if options.plots is not None:
        _draw(options.plots, [before, after], slo)
    if options.json:
        pair = {"before": reports[0], "after": reports[1]}
        click.echo(msgspec.json.format(msgspec.json.encode(pair), indent=2))
    else:
        click.echo(render_comparison((before.name, reports[0]), (after.name, reports[1])), nl=False)


def _measure(options: BenchOptions, url: str, trace: str, slo: Slo | None) -> None:
    """Send the workload to the server, and print the report."""
    import asyncio  # noqa: PLC0415 - `--help` does not need it

    from ..load.bench_report import build_bench_report, render_bench_report  # noqa: PLC0415
    from ..load.bench_run import Run, encode_log  # noqa: PLC0415
    from ..load.load_driver import Target, drive_server  # noqa: PLC0415
    from ..load.logs.measured_log import build_log  # noqa: PLC0415

    workload = load_workload(trace, options)
    target = Target(
        url, options.model, find_api_key(options.api_key), options.extra_body, options.dialect
    )
    with show_progress("requests completed", len(workload)) as tick:
        result = asyncio.run(
            drive_server(
                target, workload, tick, concurrency=options.concurrency, warm_up=options.warmup
            )
        )
    if result.errors:
        print_warning(f"{len(result.errors)} requests failed; the first error: {result.errors[0]}")
    measured = {measurement.timing.id: measurement for measurement in result.measurements}
    # `build_log` sorts the timings by arrival, and shifts them to begin at 0.
    timings = build_log(url, [measurement.timing for measurement in result.measurements]).timings
    gaps_by_request = [measured[timing.id].gaps for timing in timings]
    counted_by = result.measurements[0].counted_by
    all_gaps = tuple(gap for gaps in gaps_by_request for gap in gaps)
    run = Run(url, timings, all_gaps, len(result.errors), counted_by)
    if options.save_detailed is not None:
        Path(options.save_detailed).write_bytes(encode_log(timings, gaps_by_request, counted_by))
    if options.plots is not None:
        _draw(options.plots, [run], slo)
    report = build_bench_report(run, slo)
    loop = "open" if options.concurrency is None else f"closed, {options.concurrency} clients"
    heading = f"server           {url} ({result.model}), {options.dialect}, {loop} loop"
    if options.json:
        file = _BenchFile(url, result.model, options.dialect, loop, report)
        click.echo(msgspec.json.format(msgspec.json.encode(file), indent=2))
    else:
        click.echo(f"{heading}\n{render_bench_report(report)}", nl=False)


def _draw(path: str, runs: Sequence[Run], slo: Slo | None) -> None:
    from dragoman_check.plots.bench_plots import draw_benchmark  # noqa: PLC0415

    draw_benchmark(path, runs, slo)


COMMAND = build_command(
    "bench",
    BenchOptions,
    _run_bench,
    help=HELP,
    short_help="Measure the latencies of a server under a load.",
    explain_option=explain_bench_flag,
)
