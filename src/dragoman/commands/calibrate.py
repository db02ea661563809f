"""`dragoman calibrate`: a profile from the log of a benchmark, or from a server that is driven now.

Knows options, files and the terminal; the readers of logs and the fit are in `engines.simulator`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from ..engines.simulator.config import SchedulerConfig
from .load import LoadOptions, workload_of
from .options import EngineOptions, command, print_warning, read_file
from .progress import progress

if TYPE_CHECKING:
    from ..engines.simulator.logs.log import Log
    from ..engines.simulator.profile import Hardware, MetricError, Model, Profile

MACHINE, SERVER, OUTPUT = "Hardware and model", "Measuring a live server", "Output"
SHARE = 3
"""A third is fitted, the rest is held out, unless told."""
POOR = 0.05
ABOUT = """Fit a simulator profile to measured requests, and report its error on held-out requests.

LOG is a result file of vllm bench serve (--save-detailed), guidellm, aiperf or genai-perf, a recording, or a table of
requests (CSV, JSON, JSON Lines). With --url it is the workload to send to that server: a trace, poisson or bursts.
"""


@dataclass(frozen=True, kw_only=True)
class Options(LoadOptions, EngineOptions):
    """None is not told."""

    logs: Annotated[
        list[str], typer.Argument(metavar="LOG...", help="Benchmark logs; with --url a workload.", show_default=False)
    ]
    name: Annotated[str, typer.Option(help="Name of the new profile.")] = "mine"
    out: Annotated[
        str | None,
        typer.Option("--out", "-o", metavar="FILE", help="File for the profile (.yaml).", show_default=False),
    ] = None
    fit_requests: Annotated[
        int | None,
        typer.Option(
            help="Number of requests to fit on, the first of each log; by default a third.", show_default=False
        ),
    ] = None
    unit: Annotated[
        str, typer.Option(help="Time unit of tables whose column names do not state it: s, ms, us or ns.")
    ] = "s"

    like: Annotated[
        str | None,
        typer.Option(
            metavar="PROFILE",
            rich_help_panel=MACHINE,
            show_default=False,
            help="Profile to copy hardware, model and engine settings from, unless given.",
        ),
    ] = None
    hardware: Annotated[
        str | None, typer.Option(help="Name of the hardware.", rich_help_panel=MACHINE, show_default=False)
    ] = None
    memory_bandwidth: Annotated[
        float | None,
        typer.Option(
            help="Memory bandwidth of one device, in bytes per second.", rich_help_panel=MACHINE, show_default=False
        ),
    ] = None
    tensor_parallel_size: Annotated[
        int | None,
        typer.Option(help="Number of tensor-parallel devices.", rich_help_panel=MACHINE, show_default=False, min=1),
    ] = None
    model: Annotated[
        str | None, typer.Option(help="Name of the model.", rich_help_panel=MACHINE, show_default=False)
    ] = None
    weight_bytes: Annotated[
        float | None,
        typer.Option(
            help="Bytes of weights that a step reads: 2 per parameter for bf16.",
            rich_help_panel=MACHINE,
            show_default=False,
        ),
    ] = None
    kv_bytes_per_token: Annotated[
        int | None,
        typer.Option(
            help="KV cache bytes per token: 2 * layers * KV heads * head size * bytes per value.",
            rich_help_panel=MACHINE,
            show_default=False,
        ),
    ] = None

    url: Annotated[
        str | None,
        typer.Option(
            help="Base URL of an OpenAI-compatible server to measure.", rich_help_panel=SERVER, show_default=False
        ),
    ] = None
    served_model: Annotated[
        str | None, typer.Option(help="Model name on that server.", rich_help_panel=SERVER, show_default=False)
    ] = None
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="OPENAI_API_KEY",
            help="API key of that server.",
            rich_help_panel=SERVER,
            show_default=False,
            show_envvar=True,
        ),
    ] = None
    extra_body: Annotated[
        str,
        typer.Option(
            metavar="JSON",
            help="JSON fields to merge into every request; null removes a field.",
            rich_help_panel=SERVER,
        ),
    ] = "{}"
    save_log: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Write the measured timings as JSON Lines.", rich_help_panel=SERVER, show_default=False
        ),
    ] = None

    plots: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel=OUTPUT,
            show_default=False,
            help="Write plots of measured against simulated times to this .png, .svg, .pdf or .html file (requires "
            "the extra `plots`).",
        ),
    ] = None


def _run(options: Options) -> None:
    if options.plots is not None:
        from .plots import check  # noqa: PLC0415 - as all that follows: numpy and matplotlib load slowly

        check(options.plots)
    from ..engines.simulator.calibrate import calibrate  # noqa: PLC0415
    from ..engines.simulator.logs.log import joined  # noqa: PLC0415

    like = _like(options)
    logs = _logs(options)
    log = joined(logs)
    for note in log.notes:
        print_warning(f"{note}.")
    shown = _shown(log, [len(each.timings) for each in logs], options.fit_requests)
    profile = calibrate(
        options.name,
        (log.requests, log.timings),
        hardware=_hardware(options, like),
        model=_model(options, like),
        engine=_engine(options, like),
        source=f"{log.format}: {', '.join(Path(name).name for name in options.logs)}",
        fitted=shown,
    )
    _save(options, profile)
    typer.echo(_told(profile), nl=False)
    _warn(profile)
    if options.plots is not None:
        _draw(options.plots, profile, log, shown)


def _logs(options: Options) -> list[Log]:
    from ..engines.simulator.logs.detect import read  # noqa: PLC0415
    from ..engines.simulator.logs.log import LogError  # noqa: PLC0415

    if options.url is not None:
        return [_driven(options, options.url)]
    logs: list[Log] = []
    for name in options.logs:
        try:
            logs.append(read(read_file(name), unit=options.unit))
        except LogError as error:
            raise LogError(f"{name}: {error}") from None
    return logs


def _driven(options: Options, url: str) -> Log:
    from .drive import Target, drive  # noqa: PLC0415 - it needs httpx2

    if len(options.logs) != 1:
        raise ValueError("--url takes exactly one workload: a trace, poisson or bursts")
    workload = workload_of(options.logs[0], options)
    target = Target(url, options.served_model, options.api_key, options.extra_body)
    with progress("requests completed", len(workload)) as tick:
        log = drive(target, workload, tick)
    if options.save_log is not None:
        Path(options.save_log).write_bytes(b"".join(msgspec.json.encode(timing) + b"\n" for timing in log.timings))
    return log


def _shown(log: Log, sizes: Sequence[int], wanted: int | None) -> frozenset[str]:
    """The first requests of each log."""
    ids: list[str] = []
    begin = 0
    for size in sizes:
        count = size // SHARE if wanted is None else wanted
        ids += [timing.id for timing in log.timings[begin : begin + min(count, size)]]
        begin += size
    return frozenset(ids)


def _like(options: Options) -> Profile | None:
    from ..engines.simulator.profile import load  # noqa: PLC0415

    return None if options.like is None else load(options.like)


def _hardware(options: Options, like: Profile | None) -> Hardware:
    from ..engines.simulator.profile import Hardware  # noqa: PLC0415

    base = Hardware(options.hardware or "not told") if like is None else like.hardware
    told = {
        "name": options.hardware,
        "memory_bandwidth": options.memory_bandwidth,
        "tensor_parallel": options.tensor_parallel_size,
    }
    return msgspec.structs.replace(base, **{name: value for name, value in told.items() if value is not None})


def _model(options: Options, like: Profile | None) -> Model:
    from ..engines.simulator.profile import Model  # noqa: PLC0415

    base = Model(options.model or "not told") if like is None else like.model
    told = {
        "name": options.model,
        "weight_bytes": options.weight_bytes,
        "kv_bytes_per_token": options.kv_bytes_per_token,
    }
    return msgspec.structs.replace(base, **{name: value for name, value in told.items() if value is not None})


def _engine(options: Options, like: Profile | None) -> SchedulerConfig:
    return options.over(SchedulerConfig() if like is None else like.engine)


def _save(options: Options, profile: Profile) -> None:
    if options.out is not None:
        from ..engines.simulator.profile import dumps  # noqa: PLC0415

        Path(options.out).write_text(dumps(profile), encoding="utf-8")


def _told(profile: Profile) -> str:
    """The fit, and its error."""
    latency, told = profile.latency, profile.calibration
    assert told is not None
    assert told.error is not None
    lines = [
        f"fitted on {told.fitted} requests, evaluated on the other {told.held_out}",
        "",
        f"step             {1000 * latency.base:.4g} ms",
        *(
            f"  + per token    {1e6 * cost.seconds:.4g} us for each token beyond {cost.beyond}"
            for cost in latency.per_token
        ),
        f"  + context      {1e9 * latency.per_context_token:.4g} ns per context token while decoding",
        f"  + prompts      {1e12 * latency.per_prefill_pair:.4g} ps per query-key pair",
        f"front end        {1000 * profile.frontend_seconds:.4g} ms per request",
        "",
        f"{'simulated against measured':<27}{'mean':>9}{'p50':>9}{'p90':>9}{'p99':>9}",
    ]
    rows = (("TTFT", told.error.ttft), ("latency", told.error.latency), ("TPOT", told.error.tpot))
    return "\n".join([*lines, *(f"{name:<27}{_row(row)}" for name, row in rows)]) + "\n"


def _row(error: MetricError) -> str:
    return "".join(f"{value:>+9.2%}" for value in (error.mean, error.p50, error.p90, error.p99))


def _warn(profile: Profile) -> None:
    told = profile.calibration
    if told is None or told.error is None:
        return
    worst = max(abs(error.mean) for error in (told.error.ttft, told.error.latency, told.error.tpot))
    if worst > POOR:
        print_warning(
            f"the error of a mean is {worst:.0%}. Check that the engine settings match the server's (--max-num-seqs, "
            "--max-num-batched-tokens, --num-gpu-blocks-override); vLLM logs them at startup."
        )


def _draw(path: str, profile: Profile, log: Log, shown: frozenset[str]) -> None:
    from ..engines.simulator.fitting import simulate  # noqa: PLC0415
    from .plots import draw_calibration  # noqa: PLC0415

    simulated = simulate(log.requests, profile.engine, profile.latency, profile.frontend_seconds).timings
    draw_calibration(path, log.timings, simulated, shown, profile.name)


calibrate = command(Options, _run, about=ABOUT)
