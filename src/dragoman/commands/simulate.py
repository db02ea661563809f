"""`dragoman simulate`: a trace, or a workload made up, on a fleet of simulated vLLMs, faster than real time.

Knows options, files and the terminal; what happens is in `engines.simulator`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from .load import LoadOptions, workload_of
from .options import EngineOptions, command
from .progress import progress

if TYPE_CHECKING:
    from ..engines.simulator.fleet import Fleet
    from ..engines.simulator.profile import Profile
    from ..engines.simulator.replay import Replayed
    from ..engines.simulator.report import Report, Slo
    from ..engines.simulator.split import Split
    from ..engines.simulator.timing import Timing
    from ..engines.simulator.workload import Request

FLEET, SLO, OUTPUT = "Fleet", "Service level objective", "Output"
ABOUT = """Simulate a workload on a fleet of vLLM servers and report benchmark metrics.

TRACE is a file (JSON Lines, in our format or Mooncake's; - is the standard input), or a generated workload: `poisson`,
`bursts`, or `sessions` (conversations with shared prefixes).
"""


@dataclass(frozen=True, kw_only=True)
class Options(LoadOptions, EngineOptions):
    """Times that a person says are milliseconds where vLLM's benchmark has milliseconds, else seconds."""

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
            rich_help_panel=FLEET,
            min=1,
        ),
    ] = 1
    prefill_replicas: Annotated[
        int, typer.Option(help="Number of prefill-only replicas.", rich_help_panel=FLEET, min=0)
    ] = 0
    routing: Annotated[
        str, typer.Option(help="Routing policy: round-robin, least-loaded or prefix-aware.", rich_help_panel=FLEET)
    ] = "round-robin"

    kv_transfer_bandwidth: Annotated[
        float, typer.Option(help="Bandwidth of a KV transfer link, in bytes per second.", rich_help_panel=FLEET)
    ] = 25e9
    kv_transfer_latency: Annotated[
        float, typer.Option(help="Latency of a KV transfer in seconds, without its bytes.", rich_help_panel=FLEET)
    ] = 0.001
    kv_links: Annotated[
        str,
        typer.Option(
            help="Links for KV transfers: `shared`, a single one, or `pairs`, one per pair of replicas.",
            rich_help_panel=FLEET,
        ),
    ] = "shared"
    kv_protocol: Annotated[
        str,
        typer.Option(
            help="When prefill replicas free transferred blocks: `kv_transfer_params`, once they are fetched; "
            "`plain`, immediately (two independent calls).",
            rich_help_panel=FLEET,
        ),
    ] = "kv_transfer_params"
    kv_lease: Annotated[
        float,
        typer.Option(help="Seconds that a prefill replica keeps blocks for their transfer.", rich_help_panel=FLEET),
    ] = 480.0

    slo: Annotated[
        list[str],
        typer.Option(
            "--slo",
            "--goodput",
            metavar="NAME:MS",
            rich_help_panel=SLO,
            help="Latency objective per request in milliseconds: ttft:500, tpot:50 or latency:20000. Repeatable.",
        ),
    ] = field(default_factory=list[str])
    sweep: Annotated[
        bool,
        typer.Option("--sweep", help="Find the number of replicas that meets the SLO.", rich_help_panel=SLO),
    ] = False
    slo_share: Annotated[
        float, typer.Option(help="Share of the requests that must meet the SLO.", rich_help_panel=SLO)
    ] = 0.99
    max_replicas: Annotated[
        int, typer.Option(help="Maximum number of replicas to try.", rich_help_panel=SLO, min=1)
    ] = 64

    json: Annotated[bool, typer.Option("--json", help="Print JSON.", rich_help_panel=OUTPUT)] = False
    save_detailed: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write the timings of each request as JSON Lines, a format that `calibrate` reads.",
            rich_help_panel=OUTPUT,
            show_default=False,
        ),
    ] = None
    save_trace: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write the workload as a trace.", rich_help_panel=OUTPUT, show_default=False),
    ] = None
    plots: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write plots to this .png, .svg, .pdf or .html file (requires the extra `plots`). With --sweep, of "
            "the fleet that meets the SLO.",
            rich_help_panel=OUTPUT,
            show_default=False,
        ),
    ] = None


def _run(options: Options) -> None:
    slo, fleet, workload = _slo(options), _fleet(options), workload_of(options.trace, options)
    if options.plots is not None:
        from .plots import check  # noqa: PLC0415

        check(options.plots)
    if options.save_trace is not None:
        from ..engines.simulator.workload import write  # noqa: PLC0415 - as all of the simulator: numpy is slow to load

        Path(options.save_trace).write_text(write(workload), encoding="utf-8")
    if options.sweep:
        _sweep(options, fleet, workload, slo)
        return
    from ..engines.simulator.report import report  # noqa: PLC0415

    with progress("requests", len(workload)) as tick:
        replayed = fleet.serve(workload, tick=tick)
    found = report(replayed, slo)
    _save(options, fleet, workload, replayed, slo)
    typer.echo(_as_json(fleet, found) if options.json else _as_text(fleet, found), nl=False)


def _sweep(options: Options, fleet: Fleet, workload: Sequence[Request], slo: Slo | None) -> None:
    from ..engines.simulator.fleet import answer, sweep  # noqa: PLC0415

    if slo is None:
        raise ValueError("--sweep needs an SLO, such as --slo ttft:500 --slo tpot:50")
    with progress("fleets simulated", 2 * options.max_replicas.bit_length()) as tick:
        found = sweep(fleet, workload, slo, wanted=options.slo_share, most=options.max_replicas, tick=tick)
    if options.save_detailed is not None or options.plots is not None:
        chosen = msgspec.structs.replace(fleet, replicas=found.enough or found.trials[-1].replicas)
        _save(options, chosen, workload, chosen.serve(workload), slo)
    typer.echo(
        _pretty(_SweepFile(fleet.profile.name, fleet.routing, found)) if options.json else answer(found), nl=False
    )


def _save(options: Options, fleet: Fleet, workload: Sequence[Request], replayed: Replayed, slo: Slo | None) -> None:
    if options.save_detailed is not None:
        shared = {request.id: request for request in workload}
        lines = (_detailed(timing, shared[timing.id]) for timing in replayed.timings)
        Path(options.save_detailed).write_bytes(b"".join(lines))
    if options.plots is not None:
        from .plots import draw_simulation  # noqa: PLC0415 - it needs matplotlib

        title = f"{fleet.profile.name}, {fleet.described}, {len(replayed.timings)} requests"
        draw_simulation(options.plots, replayed, slo, title)


def _detailed(timing: Timing, request: Request) -> bytes:
    """A line of a log that is also a line of a trace."""
    told = msgspec.to_builtins(timing)
    if request.block_hashes:
        told |= {"block_hashes": request.block_hashes, "block_size": request.block_size}
    return msgspec.json.encode(told) + b"\n"


def _as_text(fleet: Fleet, found: Report) -> str:
    from ..engines.simulator.report import text  # noqa: PLC0415

    return f"profile          {fleet.profile.name}\nfleet            {fleet.described}\n{text(found)}"


class _ReportFile(msgspec.Struct):
    profile: str
    fleet: str
    report: msgspec.Raw


class _SweepFile(msgspec.Struct):
    profile: str
    routing: str
    sweep: object


def _as_json(fleet: Fleet, found: Report) -> str:
    return _pretty(_ReportFile(fleet.profile.name, fleet.described, msgspec.Raw(msgspec.json.encode(found))))


def _pretty(told: msgspec.Struct) -> str:
    return msgspec.json.format(msgspec.json.encode(told), indent=2).decode() + "\n"


def _slo(options: Options) -> Slo | None:
    from ..engines.simulator.report import Slo  # noqa: PLC0415

    said: dict[str, float] = {}
    for pair in (pair for given in options.slo for pair in given.split(",")):
        name, _, value = pair.strip().partition(":")
        name = {"e2el": "latency"}.get(name, name)
        try:
            said[name] = float(value) / 1000
        except ValueError:
            raise ValueError(f"--slo: {pair!r} is not NAME:MILLISECONDS, such as ttft:500") from None
        if name not in Slo.__struct_fields__ or not said[name] > 0:
            raise ValueError(
                f"--slo: {pair!r}: must be one of {', '.join(Slo.__struct_fields__)}, with a positive time"
            )
    return Slo(**said) if said else None


def _fleet(options: Options) -> Fleet:
    from ..engines.simulator.fleet import Fleet  # noqa: PLC0415
    from ..engines.simulator.profile import load  # noqa: PLC0415

    profile = load(options.profile)
    profile = msgspec.structs.replace(profile, engine=options.over(profile.engine))
    try:
        # Through msgspec, so that a wrong word is told.
        told = {"replicas": options.replicas, "routing": options.routing, "seed": options.seed}
        return msgspec.convert({"profile": profile, "split": _split(options, profile), **told}, Fleet)
    except msgspec.ValidationError as error:
        raise ValueError(f"--routing, --kv-links, --kv-protocol: {error}") from None


def _split(options: Options, profile: Profile) -> Split | None:
    from ..engines.simulator.disaggregation import TransferCost  # noqa: PLC0415
    from ..engines.simulator.split import Split  # noqa: PLC0415

    if not options.prefill_replicas:
        return None
    size = profile.model.kv_bytes_per_token
    if size is None:
        raise ValueError(f"profile {profile.name}: model.kv_bytes_per_token is missing; KV transfers need it")
    cost = TransferCost(size, options.kv_transfer_bandwidth, options.kv_transfer_latency)
    told = {"prefill": options.prefill_replicas, "links": options.kv_links, "lease_seconds": options.kv_lease}
    return msgspec.convert({"cost": cost, "protocol": options.kv_protocol, **told}, Split)


simulate = command(Options, _run, about=ABOUT)
