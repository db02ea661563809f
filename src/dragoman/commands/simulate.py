"""`dragoman simulate`: runs a trace or a generated workload on a fleet of simulated vLLMs, faster than real time.

Knows options, files and the terminal; the simulation is in `engines.simulator`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from .options import EngineOptions, build_command
from .progress import show_progress
from .workload import WorkloadOptions, load_workload, read_slo

if TYPE_CHECKING:
    from ..engines.simulator.disaggregated_replay import DisaggregationConfig
    from ..engines.simulator.fleet import Fleet
    from ..engines.simulator.profile import SimulatorProfile
    from ..engines.simulator.replay import ReplayResult
    from ..engines.simulator.report import Report, Slo
    from ..engines.simulator.timing import Timing
    from ..engines.simulator.workload import WorkloadRequest

FLEET_PANEL, SLO_PANEL, OUTPUT_PANEL = "Fleet", "Service level objective", "Output"
HELP = """Simulate a workload on a fleet of vLLM servers and report benchmark metrics.

TRACE is a file (JSON Lines, in our format or Mooncake's; - is the standard input), or a generated workload: `poisson`,
`bursts`, or `sessions` (conversations with shared prefixes).
"""


@dataclass(frozen=True, kw_only=True)
class SimulateOptions(WorkloadOptions, EngineOptions):
    """Options of `dragoman simulate`. Times are in milliseconds where vLLM's benchmark uses them, else in seconds."""

    trace: Annotated[str, typer.Argument(metavar="TRACE", help="File, or `poisson`, `bursts` or `sessions`.")]
    profile: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE", help="Hardware and model profile; `dragoman profiles` lists the built-in ones."
        ),
    ] = "rtx4090-llama-3.1-8b"

    replicas: Annotated[
        int,
        typer.Option(
            "--replicas",
            "--decode-replicas",
            help="Number of replicas; with --prefill-replicas, of decode replicas.",
            rich_help_panel=FLEET_PANEL,
            min=1,
        ),
    ] = 1
    prefill_replicas: Annotated[
        int, typer.Option(help="Number of prefill-only replicas.", rich_help_panel=FLEET_PANEL, min=0)
    ] = 0
    routing: Annotated[
        str,
        typer.Option(help="Routing policy: round-robin, least-loaded or prefix-aware.", rich_help_panel=FLEET_PANEL),
    ] = "round-robin"

    kv_transfer_bandwidth: Annotated[
        float, typer.Option(help="Bandwidth of a KV transfer link, in bytes per second.", rich_help_panel=FLEET_PANEL)
    ] = 25e9
    kv_transfer_latency: Annotated[
        float, typer.Option(help="Latency of a KV transfer in seconds, without its bytes.", rich_help_panel=FLEET_PANEL)
    ] = 0.001
    kv_links: Annotated[
        str,
        typer.Option(
            help="Links for KV transfers: `shared`, a single one, or `pairs`, one per pair of replicas.",
            rich_help_panel=FLEET_PANEL,
        ),
    ] = "shared"
    kv_protocol: Annotated[
        str,
        typer.Option(
            help="When prefill replicas free transferred blocks: `kv_transfer_params`, once they are fetched; "
            "`plain`, immediately (two independent calls).",
            rich_help_panel=FLEET_PANEL,
        ),
    ] = "kv_transfer_params"
    kv_lease: Annotated[
        float,
        typer.Option(
            help="Seconds that a prefill replica keeps blocks for their transfer.", rich_help_panel=FLEET_PANEL
        ),
    ] = 480.0

    slo: Annotated[
        list[str],
        typer.Option(
            "--slo",
            "--goodput",
            metavar="NAME:MS",
            rich_help_panel=SLO_PANEL,
            help="Latency objective per request in milliseconds: ttft:500, tpot:50 or latency:20000. Repeatable.",
        ),
    ] = field(default_factory=list[str])
    sweep: Annotated[
        bool,
        typer.Option("--sweep", help="Find the number of replicas that meets the SLO.", rich_help_panel=SLO_PANEL),
    ] = False
    slo_share: Annotated[
        float, typer.Option(help="Share of the requests that must meet the SLO.", rich_help_panel=SLO_PANEL)
    ] = 0.99
    max_replicas: Annotated[
        int, typer.Option(help="Maximum number of replicas to try.", rich_help_panel=SLO_PANEL, min=1)
    ] = 64

    json: Annotated[bool, typer.Option("--json", help="Print JSON.", rich_help_panel=OUTPUT_PANEL)] = False
    save_detailed: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write the timings of each request as JSON Lines, a format that `calibrate` reads.",
            rich_help_panel=OUTPUT_PANEL,
            show_default=False,
        ),
    ] = None
    save_trace: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Write the workload as a trace.", rich_help_panel=OUTPUT_PANEL, show_default=False
        ),
    ] = None
    plots: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write plots to this .png, .svg, .pdf or .html file (requires the extra `plots`). With --sweep, of "
            "the fleet that meets the SLO.",
            rich_help_panel=OUTPUT_PANEL,
            show_default=False,
        ),
    ] = None


def _run_simulation(options: SimulateOptions) -> None:
    slo, fleet, workload = read_slo(options.slo), _build_fleet(options), load_workload(options.trace, options)
    if options.plots is not None:
        from .plots import check_plot_path  # noqa: PLC0415

        check_plot_path(options.plots)
    if options.save_trace is not None:
        from ..engines.simulator.workload import encode_workload  # noqa: PLC0415 - as all of the simulator: numpy is slow to load

        Path(options.save_trace).write_text(encode_workload(workload), encoding="utf-8")
    if options.sweep:
        _run_sweep(options, fleet, workload, slo)
        return
    from ..engines.simulator.report import build_report  # noqa: PLC0415

    with show_progress("requests", len(workload)) as on_progress:
        replay = fleet.serve(workload, tick=on_progress)
    result = build_report(replay, slo)
    _save_outputs(options, fleet, workload, replay, slo)
    typer.echo(_format_json(fleet, result) if options.json else _format_text(fleet, result), nl=False)


def _run_sweep(options: SimulateOptions, fleet: Fleet, workload: Sequence[WorkloadRequest], slo: Slo | None) -> None:
    from ..engines.simulator.fleet import render_sweep, sweep  # noqa: PLC0415

    if slo is None:
        raise ValueError("--sweep needs an SLO, such as --slo ttft:500 --slo tpot:50")
    with show_progress("fleets simulated", 2 * options.max_replicas.bit_length()) as on_progress:
        result = sweep(
            fleet, workload, slo, target_share=options.slo_share, max_replicas=options.max_replicas, tick=on_progress
        )
    if options.save_detailed is not None or options.plots is not None:
        chosen = msgspec.structs.replace(fleet, replicas=result.enough or result.trials[-1].replicas)
        _save_outputs(options, chosen, workload, chosen.serve(workload), slo)
    typer.echo(
        _format_pretty_json(_SweepFile(fleet.profile.name, fleet.routing, result))
        if options.json
        else render_sweep(result),
        nl=False,
    )


def _save_outputs(
    options: SimulateOptions, fleet: Fleet, workload: Sequence[WorkloadRequest], replay: ReplayResult, slo: Slo | None
) -> None:
    if options.save_detailed is not None:
        requests_by_id = {request.id: request for request in workload}
        lines = (_encode_timing(timing, requests_by_id[timing.id]) for timing in replay.timings)
        Path(options.save_detailed).write_bytes(b"".join(lines))
    if options.plots is not None:
        from .plots import draw_simulation  # noqa: PLC0415 - it needs matplotlib

        title = f"{fleet.profile.name}, {fleet.description}, {len(replay.timings)} requests"
        draw_simulation(options.plots, replay, slo, title)


def _encode_timing(timing: Timing, request: WorkloadRequest) -> bytes:
    """A log line that is also a trace line."""
    fields = msgspec.to_builtins(timing)
    if request.block_hashes:
        fields |= {"block_hashes": request.block_hashes, "block_size": request.block_size}
    return msgspec.json.encode(fields) + b"\n"


def _format_text(fleet: Fleet, result: Report) -> str:
    from ..engines.simulator.report import render_report  # noqa: PLC0415

    return f"profile          {fleet.profile.name}\nfleet            {fleet.description}\n{render_report(result)}"


class _ReportFile(msgspec.Struct):
    profile: str
    fleet: str
    report: msgspec.Raw


class _SweepFile(msgspec.Struct):
    profile: str
    routing: str
    sweep: object


def _format_json(fleet: Fleet, result: Report) -> str:
    return _format_pretty_json(
        _ReportFile(fleet.profile.name, fleet.description, msgspec.Raw(msgspec.json.encode(result)))
    )


def _format_pretty_json(value: msgspec.Struct) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"


def _build_fleet(options: SimulateOptions) -> Fleet:
    from ..engines.simulator.fleet import Fleet  # noqa: PLC0415
    from ..engines.simulator.profile import load  # noqa: PLC0415

    profile = load(options.profile)
    profile = msgspec.structs.replace(profile, engine=options.merge_into(profile.engine))
    try:
        # msgspec validates the values and names an invalid one.
        fleet_options = {"replicas": options.replicas, "routing": options.routing, "seed": options.seed}
        return msgspec.convert({"profile": profile, "split": _build_split(options, profile), **fleet_options}, Fleet)
    except msgspec.ValidationError as error:
        raise ValueError(f"--routing, --kv-links, --kv-protocol: {error}") from None


def _build_split(options: SimulateOptions, profile: SimulatorProfile) -> DisaggregationConfig | None:
    from ..engines.simulator.disaggregated_replay import DisaggregationConfig  # noqa: PLC0415
    from ..engines.simulator.disaggregation import TransferCost  # noqa: PLC0415

    if not options.prefill_replicas:
        return None
    bytes_per_token = profile.model.kv_bytes_per_token
    if bytes_per_token is None:
        raise ValueError(f"profile {profile.name}: model.kv_bytes_per_token is missing; KV transfers need it")
    cost = TransferCost(bytes_per_token, options.kv_transfer_bandwidth, options.kv_transfer_latency)
    split_options = {"prefill": options.prefill_replicas, "links": options.kv_links, "lease_seconds": options.kv_lease}
    return msgspec.convert({"cost": cost, "protocol": options.kv_protocol, **split_options}, DisaggregationConfig)


simulate = build_command(SimulateOptions, _run_simulation, about=HELP)
