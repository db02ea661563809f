"""`dragoman bench`: benchmarks a server, or compares two benchmark logs.

`drive` sends the requests and measures the responses; `bench_report` computes the
statistics.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from dragoman.commands.options import (
    build_api_key_option,
    build_command,
    build_extra_body_option,
    print_warning,
    read_file,
    show_progress,
)

from .workload import WORKLOAD_PANEL, WorkloadOptions, build_slo_option, load_workload, read_slo

if TYPE_CHECKING:
    from dragoman_check.load.load_statistics import Slo

    from ..load.bench_report import BenchReport
    from ..load.bench_run import Run

LOAD_PANEL = "Load"
SERVER_PANEL = "Server"
OUTPUT_PANEL = "Output"
DIALECT_NAMES = ("completions", "chat", "responses", "messages", "ollama")
HELP = """Measure a server under a load: time to the first token, time between tokens, latency, goodput.

URL is the server's, TRACE the load as for `simulate`: a file, poisson (the default), bursts or sessions. Its requests
are sent at their times, or with --concurrency by that many clients, one after the other. With --compare, the arguments
are two logs of `bench`, or of a tool that `calibrate` reads.
"""


@dataclass(frozen=True, kw_only=True)
class BenchOptions(WorkloadOptions):
    """Options of `dragoman bench`; None means not set."""

    arguments: Annotated[
        list[str],
        typer.Argument(metavar="URL [TRACE]", help="The server, and the load.", show_default=False),
    ]
    compare: Annotated[
        bool, typer.Option("--compare", help="Compare two logs: --compare BEFORE AFTER.")
    ] = False
    num_prompts: Annotated[
        int,
        typer.Option(
            help="Number of requests (or conversations) to generate.",
            rich_help_panel=WORKLOAD_PANEL,
            min=1,
        ),
    ] = 100
    concurrency: Annotated[
        int | None,
        typer.Option(
            help="A closed loop of this many clients; the trace's times do not count.",
            rich_help_panel=LOAD_PANEL,
            show_default=False,
            min=1,
        ),
    ] = None
    warmup: Annotated[
        int,
        typer.Option(
            help="Requests before those that are measured.", rich_help_panel=LOAD_PANEL, min=0
        ),
    ] = 1

    dialect: Annotated[
        str,
        typer.Option(help=f"The API: {', '.join(DIALECT_NAMES)}.", rich_help_panel=SERVER_PANEL),
    ] = "completions"
    model: Annotated[
        str | None,
        typer.Option(
            help="Model name; by default the first one.",
            rich_help_panel=SERVER_PANEL,
            show_default=False,
        ),
    ] = None
    api_key: Annotated[str | None, build_api_key_option(SERVER_PANEL, "API key of the server.")] = (
        None
    )
    extra_body: Annotated[str, build_extra_body_option(SERVER_PANEL)] = "{}"

    slo: Annotated[list[str], build_slo_option(OUTPUT_PANEL)] = field(default_factory=list[str])
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON.", rich_help_panel=OUTPUT_PANEL)
    ] = False
    save_detailed: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write each request as JSON Lines: a log for `calibrate` and --compare, a trace "
            "for `simulate` and "
            "`plan`.",
            rich_help_panel=OUTPUT_PANEL,
            show_default=False,
        ),
    ] = None
    plots: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write plots to this .png, .svg, .pdf or .html file (requires the extra `plots`).",
            rich_help_panel=OUTPUT_PANEL,
            show_default=False,
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
        _measure(options, options.arguments[0], slo)
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
        typer.echo(msgspec.json.format(msgspec.json.encode(pair), indent=2))
    else:
        typer.echo(render_comparison((before.name, reports[0]), (after.name, reports[1])), nl=False)


def _measure(options: BenchOptions, url: str, slo: Slo | None) -> None:
    """Send the workload to the server, and print the report."""
    from ..load.bench_report import build_bench_report, build_bench_table, render_bench_report  # noqa: PLC0415
    from ..load.bench_run import Run, encode_log  # noqa: PLC0415
    from ..load.load_driver import Target, drive_server  # noqa: PLC0415
    from ..load.logs.measured_log import build_log  # noqa: PLC0415

    workload = load_workload(
        options.arguments[1] if len(options.arguments) > 1 else "poisson", options
    )
    target = Target(url, options.model, options.api_key, options.extra_body, options.dialect)
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
        typer.echo(msgspec.json.format(msgspec.json.encode(file), indent=2))
    elif not sys.stdout.isatty():
        typer.echo(f"{heading}\n{render_bench_report(report)}", nl=False)
    else:
        from rich.console import Console  # noqa: PLC0415

        lines, table = build_bench_table(report)
        console = Console(highlight=False)
        console.print("\n".join([heading, *lines]), markup=False)
        console.print(table)


def _draw(path: str, runs: Sequence[Run], slo: Slo | None) -> None:
    from dragoman_check.plots.bench_plots import draw_benchmark  # noqa: PLC0415

    draw_benchmark(path, runs, slo)


bench = build_command(BenchOptions, _run_bench, about=HELP)
