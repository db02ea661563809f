"""`dragoman simulate`: runs a trace or a generated workload on a fleet of simulated
vLLM servers.

It is faster than real time. The simulation itself is in `dragoman_sim.lab`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import msgspec

from dragoman.core.errors import DragomanError
from dragoman_check.commands.workload import (
    WorkloadOptions,
    build_slo_option,
    load_workload,
    read_slo,
)
from dragoman_cli import Argument, Option, build_command, show_progress

from ..vllm_flags import explain_option
from .engine_options import ENGINE_GROUP, EngineOptions, build_engine_option

if TYPE_CHECKING:
    from dragoman_check.load.load_statistics import Slo
    from dragoman_check.load.workload import WorkloadRequest

    from ..engine.offloading_settings import OffloadingSettings
    from ..engine.profile import SimulatorProfile
    from ..lab.autoscaling import AutoscalerConfig
    from ..lab.disaggregated_replay import DisaggregationConfig
    from ..lab.fleet import Fleet
    from ..lab.replay_result import ReplayResult

FLEET_GROUP = "Fleet"
SLO_GROUP = "Service level objective"
OUTPUT_GROUP = "Output"
HELP = """Simulate a workload on a fleet of vLLM servers and report benchmark metrics.

TRACE is a file (our JSON Lines, a trace of Mooncake, Azure or BurstGPT, ShareGPT's
conversations, or the log of a benchmark tool; - is the standard input), or a generated
workload: `poisson`, `bursts`, or `sessions` (conversations with shared prefixes).
"""


@dataclass(frozen=True, kw_only=True)
class SimulateOptions(WorkloadOptions, EngineOptions):
    """Options of `dragoman simulate`. Times are in seconds, those of `--slo` in
    milliseconds as in vLLM's benchmark.
    """

    trace: Annotated[
        str, Argument(metavar="TRACE", help="File, or `poisson`, `bursts` or `sessions`.")
    ]
    profile: Annotated[
        str,
        Option(
            metavar="NAME|FILE",
            help="Hardware and model profile; `dragoman profiles` lists the built-in ones.",
        ),
    ] = "rtx4090-llama-3.1-8b"

    replicas: Annotated[
        int,
        Option(
            "--replicas",
            "--decode-replicas",
            help="Number of replicas; with --prefill-replicas, of decode replicas.",
            group=FLEET_GROUP,
            minimum=1,
        ),
    ] = 1
    prefill_replicas: Annotated[
        int,
        Option(help="Number of prefill-only replicas.", group=FLEET_GROUP, minimum=0),
    ] = 0
    add_replicas: Annotated[
        tuple[str, ...],
        Option(
            metavar="PROFILE:COUNT",
            help="Replicas of another profile in the same fleet. Repeatable.",
            group=FLEET_GROUP,
        ),
    ] = ()
    routing: Annotated[
        str,
        Option(
            help="Routing policy: round-robin, least-loaded, least-requests, least-tokens, "
            "power-of-two, prefix-aware, "
            "session-affinity or llm-d.",
            group=FLEET_GROUP,
        ),
    ] = "round-robin"
    routing_delay: Annotated[
        float,
        Option(
            help="Staleness, in seconds, of the load that the router sees.",
            group=FLEET_GROUP,
            minimum=0,
        ),
    ] = 0.0
    autoscale: Annotated[
        str | None,
        Option(
            metavar="METRIC:TARGET",
            help="Scale from --replicas to --max-replicas by a target per replica: waiting:5, "
            "requests:100, "
            "tokens:50000 or kv:0.8.",
            group=FLEET_GROUP,
        ),
    ] = None
    autoscale_interval: Annotated[
        float,
        Option(help="Seconds between two decisions of the autoscaler.", group=FLEET_GROUP),
    ] = 15.0
    startup_time: Annotated[
        float,
        Option(help="Seconds until a new replica serves.", group=FLEET_GROUP, minimum=0),
    ] = 60.0
    scale_down_window: Annotated[
        float,
        Option(
            help="Seconds for which fewer replicas must have been enough before one is stopped.",
            group=FLEET_GROUP,
            minimum=0,
        ),
    ] = 300.0

    kv_transfer_bandwidth: Annotated[
        float,
        Option(
            help="Bandwidth of a KV transfer link, in bytes per second.",
            group=FLEET_GROUP,
        ),
    ] = 25e9
    kv_transfer_latency: Annotated[
        float,
        Option(
            help="Latency of a KV transfer in seconds, without its bytes.",
            group=FLEET_GROUP,
        ),
    ] = 0.001
    kv_links: Annotated[
        str,
        Option(
            help="Links for KV transfers: `shared`, a single one, or `pairs`, one per pair of "
            "replicas.",
            group=FLEET_GROUP,
        ),
    ] = "shared"
    kv_protocol: Annotated[
        str,
        Option(
            help="When prefill replicas free transferred blocks: `kv_transfer_params`, once they "
            "are fetched; "
            "`plain`, immediately (two independent calls).",
            group=FLEET_GROUP,
        ),
    ] = "kv_transfer_params"
    kv_lease: Annotated[
        float,
        Option(
            help="Seconds that a prefill replica keeps blocks for their transfer.",
            group=FLEET_GROUP,
        ),
    ] = 480.0

    kv_offloading_size: Annotated[
        float | None,
        build_engine_option(
            "Host memory of each engine core for keys and values that leave its GPUs' cache, in "
            "GiB.",
            metavar="GIB",
        ),
    ] = None
    kv_offloading_backend: Annotated[
        str,
        Option(help="KV offloading backend; only `native` is simulated.", group=ENGINE_GROUP),
    ] = "native"
    kv_offloading_bandwidth: Annotated[
        float | None,
        build_engine_option(
            "Bandwidth between one GPU and its host, in bytes per second and direction; 25e9 by "
            "default."
        ),
    ] = None
    kv_offloading_latency: Annotated[
        float | None,
        build_engine_option(
            "Latency of a transfer with the host in seconds, without its bytes; 0.0002 by default."
        ),
    ] = None
    enable_lora: Annotated[
        bool,
        Option("--enable-lora", help="Accepted: adapters are always on.", group=ENGINE_GROUP),
    ] = False
    tensor_parallel_size: Annotated[
        int | None,
        build_engine_option(
            "Number of devices that share every layer; must match the profile.", minimum=1
        ),
    ] = None
    data_parallel_size: Annotated[
        int | None,
        build_engine_option(
            "Data-parallel ranks of a replica; must match the profile if they share experts.",
            minimum=1,
        ),
    ] = None
    enable_expert_parallel: Annotated[
        bool | None,
        build_engine_option(
            "Whether the ranks share their experts; must match the profile.",
            "--enable-expert-parallel/--no-enable-expert-parallel",
        ),
    ] = None
    acceptance_rates: Annotated[
        str | None,
        build_engine_option(
            "Share of the drafts of --speculative-config whose first, second, ... token is "
            "accepted.",
            metavar="RATES",
        ),
    ] = None

    slo: Annotated[tuple[str, ...], build_slo_option(SLO_GROUP)] = ()
    sweep: Annotated[
        bool,
        Option(
            "--sweep",
            help="Find the number of replicas that meets the SLO.",
            group=SLO_GROUP,
        ),
    ] = False
    slo_share: Annotated[
        float,
        Option(help="Share of the requests that must meet the SLO.", group=SLO_GROUP),
    ] = 0.99
    max_replicas: Annotated[
        int,
        Option(
            help="Maximum number of replicas to try, or to scale to.",
            group=SLO_GROUP,
            minimum=1,
        ),
    ] = 64

    json: Annotated[bool, Option("--json", help="Print JSON.", group=OUTPUT_GROUP)] = False
    save_detailed: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="Write the timings of each request as JSON Lines, a format that `calibrate` "
            "reads.",
            group=OUTPUT_GROUP,
        ),
    ] = None
    save_trace: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="Write the workload as a trace.",
            group=OUTPUT_GROUP,
        ),
    ] = None
    plots: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="Write plots to this .png, .svg, .pdf or .html file (requires the extra "
            "`plots`). With --sweep, of "
            "the fleet that meets the SLO.",
            group=OUTPUT_GROUP,
        ),
    ] = None


def _run_simulation(options: SimulateOptions) -> None:
    slo = read_slo(options.slo)
    fleet = _build_fleet(options)
    workload = load_workload(options.trace, options)
    if options.plots is not None:
        from dragoman_check.plots.figure import check_plot_path  # noqa: PLC0415

        check_plot_path(options.plots)
    if options.save_trace is not None:
        from dragoman_check.load.trace_file import encode_workload  # noqa: PLC0415 - numpy is slow to import; also below

        Path(options.save_trace).write_text(encode_workload(workload), encoding="utf-8")
    if options.sweep:
        _run_sweep(options, fleet, workload, slo)
        return
    from ..lab.simulation_report import build_report, render_report  # noqa: PLC0415

    with show_progress("requests", len(workload)) as on_progress:
        if options.save_detailed is None and options.plots is None:
            result = fleet.build_report(workload, slo, tick=on_progress)
        else:
            replay = fleet.serve(workload, tick=on_progress)
            result = build_report(replay, slo)
            _save_outputs(options, fleet, workload, replay, slo)
    if options.json:
        report = msgspec.Raw(msgspec.json.encode(result))
        text = _format_pretty_json(_ReportFile(fleet.profile.name, fleet.description, report))
    else:
        heading = f"profile          {fleet.profile.name}\nfleet            {fleet.description}\n"
        text = heading + render_report(result)
    click.echo(text, nl=False)


def _run_sweep(
    options: SimulateOptions, fleet: Fleet, workload: Sequence[WorkloadRequest], slo: Slo | None
) -> None:
    from ..lab.fleet_sizing import render_sweep, sweep  # noqa: PLC0415

    if slo is None:
        raise ValueError("--sweep needs an SLO, such as --slo ttft:500 --slo tpot:50")
    with show_progress("fleets simulated", 2 * options.max_replicas.bit_length()) as on_progress:
        result = sweep(
            fleet,
            workload,
            slo,
            target_share=options.slo_share,
            max_replicas=options.max_replicas,
            tick=on_progress,
        )
    if options.save_detailed is not None or options.plots is not None:
        # Replay it once more: the search keeps only reports, since the timings of all
        # fleets would not fit in memory.
        sufficient = msgspec.structs.replace(
            fleet, replicas=result.enough or result.trials[-1].replicas
        )
        _save_outputs(options, sufficient, workload, sufficient.serve(workload), slo)
    click.echo(
        _format_pretty_json(_SweepFile(fleet.profile.name, fleet.routing, result))
        if options.json
        else render_sweep(result),
        nl=False,
    )


def _save_outputs(
    options: SimulateOptions,
    fleet: Fleet,
    workload: Sequence[WorkloadRequest],
    replay: ReplayResult,
    slo: Slo | None,
) -> None:
    if options.save_detailed is not None:
        requests_by_id = {request.id: request for request in workload}
        with Path(options.save_detailed).open("wb") as file:
            for timing in replay.timings:
                # A line of the log is also a line of a trace, so it keeps the hashes of
                # shared prefixes.
                fields = msgspec.to_builtins(timing)
                request = requests_by_id[timing.id]
                if request.block_hashes:
                    fields |= {
                        "block_hashes": request.block_hashes,
                        "block_size": request.block_size,
                    }
                file.write(msgspec.json.encode(fields) + b"\n")
    if options.plots is not None:
        from .simulation_plots import draw_simulation  # noqa: PLC0415 - it needs matplotlib

        title = f"{fleet.profile.name}, {fleet.description}, {len(replay.timings)} requests"
        draw_simulation(options.plots, replay, slo, title)


class _ReportFile(msgspec.Struct):
    profile: str
    fleet: str
    report: msgspec.Raw


class _SweepFile(msgspec.Struct):
    profile: str
    routing: str
    sweep: object


def _format_pretty_json(value: msgspec.Struct) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"


def _build_fleet(options: SimulateOptions) -> Fleet:
    from ..engine.profile import load  # noqa: PLC0415
    from ..engine.speculative_decoding import parse_acceptance_rates  # noqa: PLC0415
    from ..lab.fleet import Fleet, ReplicaGroup  # noqa: PLC0415

    profile = options.merge_into_profile(load(options.profile))
    hardware = profile.hardware
    # The times of a profile hold for its hardware: only the number of independent ranks
    # may differ.
    advice = (
        f"the times of {profile.name} are for {hardware.name}; use a profile of such servers "
        f"(`dragoman profile`)"
    )
    if options.tensor_parallel_size not in (None, hardware.tensor_parallel):
        raise ValueError(f"--tensor-parallel-size {options.tensor_parallel_size}: {advice}")
    if options.enable_expert_parallel not in (None, hardware.lock_step):
        flag = (
            "--enable-expert-parallel"
            if options.enable_expert_parallel
            else "--no-enable-expert-parallel"
        )
        raise ValueError(f"{flag}: {advice}")
    ranks = options.data_parallel_size or hardware.data_parallel
    if hardware.lock_step and ranks != hardware.data_parallel:
        raise ValueError(f"--data-parallel-size {ranks}: {advice}")
    hardware = msgspec.structs.replace(hardware, data_parallel=ranks)
    profile = msgspec.structs.replace(profile, hardware=hardware)
    if options.acceptance_rates is not None:
        rates = parse_acceptance_rates(options.acceptance_rates)
        profile = msgspec.structs.replace(profile, acceptance_rates=rates)
    others: list[ReplicaGroup] = []
    for group in options.add_replicas:
        name, separator, count = group.rpartition(":")
        if not separator or not count.isdecimal() or int(count) < 1:
            raise ValueError(
                f"--add-replicas: {group!r} is not PROFILE:COUNT, such as rtxpro6000-llama-3.1-8b:2"
            )
        others.append(ReplicaGroup(options.merge_into_profile(load(name)), int(count)))
    try:
        # msgspec validates the values; its error names the invalid field.
        return msgspec.convert(
            {
                "profile": profile,
                "replicas": options.replicas,
                "others": tuple(others),
                "routing": options.routing,
                "state_delay": options.routing_delay,
                "split": _build_split(options, profile),
                "autoscaler": _build_autoscaler(options),
                "offloading": _build_offloading(options, profile),
                "seed": options.seed,
            },
            Fleet,
        )
    except msgspec.ValidationError as error:
        raise ValueError(f"--routing, --autoscale, --kv-links, --kv-protocol: {error}") from None


def _build_offloading(
    options: SimulateOptions, profile: SimulatorProfile
) -> OffloadingSettings | None:
    if options.kv_offloading_backend != "native":
        raise ValueError(
            f"--kv-offloading-backend {options.kv_offloading_backend}: only `native` is simulated"
        )
    if options.kv_offloading_size is None:
        return None
    if profile.engine.num_speculative_tokens or not profile.engine.enable_prefix_caching:
        raise ValueError(
            "--kv-offloading-size is simulated with prefix caching and without "
            "--speculative-config only"
        )
    offloading = profile.build_offloading(
        options.kv_offloading_size, options.kv_offloading_bandwidth, options.kv_offloading_latency
    )
    offloading.build_config(profile.engine.block_size)
    return offloading


def _build_autoscaler(options: SimulateOptions) -> AutoscalerConfig | None:
    from ..lab.autoscaling import AutoscalerConfig  # noqa: PLC0415

    if options.autoscale is None:
        return None
    metric, _, target = options.autoscale.partition(":")
    try:
        goal = float(target)
    except ValueError:
        raise ValueError(
            f"--autoscale: {options.autoscale!r} is not METRIC:TARGET, such as waiting:5"
        ) from None
    return msgspec.convert(
        {
            "metric": metric,
            "target": goal,
            "min_replicas": options.replicas,
            "max_replicas": options.max_replicas,
            "interval": options.autoscale_interval,
            "startup_seconds": options.startup_time,
            "scale_down_window": options.scale_down_window,
        },
        AutoscalerConfig,
    )


def _build_split(
    options: SimulateOptions, profile: SimulatorProfile
) -> DisaggregationConfig | None:
    from ..engine.network_link import TransferCost  # noqa: PLC0415
    from ..lab.disaggregated_replay import DisaggregationConfig  # noqa: PLC0415

    if not options.prefill_replicas:
        return None
    bytes_per_token = profile.model.kv_bytes_per_token
    if bytes_per_token is None:
        raise ValueError(
            f"profile {profile.name}: model.kv_bytes_per_token is missing; KV transfers need it"
        )
    cost = TransferCost(bytes_per_token, options.kv_transfer_bandwidth, options.kv_transfer_latency)
    split_options = {
        "prefill": options.prefill_replicas,
        "links": options.kv_links,
        "lease_seconds": options.kv_lease,
    }
    return msgspec.convert(
        {"cost": cost, "protocol": options.kv_protocol, **split_options}, DisaggregationConfig
    )


COMMAND = build_command(
    "simulate",
    SimulateOptions,
    _run_simulation,
    help=HELP,
    short_help="Simulate a workload on a fleet of vLLM servers.",
    errors=(DragomanError,),
    explain_option=explain_option,
)
