"""`dragoman calibrate`: fits a simulator profile to benchmark logs, or to a live server
that it benchmarks.

Log parsing is in `dragoman_check.load.logs`, fitting in `dragoman_sim.lab`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import msgspec

from dragoman.core.errors import DragomanError
from dragoman_check.commands.server_options import build_extra_body_option
from dragoman_check.commands.workload import WorkloadOptions, load_workload
from dragoman_cli import (
    Argument,
    Option,
    build_command,
    print_warning,
    read_file,
    show_progress,
)
from dragoman_cli.api_key import build_api_key_option, find_api_key

from ..engine.scheduler_config import SimulatedSchedulerConfig
from ..vllm_flags import explain_option
from .engine_options import EngineOptions

if TYPE_CHECKING:
    from dragoman_check.load.logs.measured_log import MeasuredLog

    from ..engine.profile import MetricError, SimulatorProfile

HARDWARE_GROUP = "Hardware and model"
SERVER_GROUP = "Measuring a live server"
OUTPUT_GROUP = "Output"
FIT_FRACTION = 3
"""By default the first 1/FIT_FRACTION of the requests of each log is fitted; the others
are held out.
"""
WARN_ERROR = 0.05
"""Relative error of a mean above which a warning is printed."""
HELP = """Fit a simulator profile to measured requests, and report its error on held-out requests.

LOG is a result file of vllm bench serve (--save-detailed), guidellm, aiperf or
genai-perf, a recording, or a table of requests (CSV, JSON, JSON Lines). With --url it
is the workload to send to that server: a trace, poisson or bursts.
"""


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions(WorkloadOptions, EngineOptions):
    """Options of `dragoman calibrate`; None means not set."""

    logs: Annotated[
        tuple[str, ...],
        Argument(
            metavar="LOG",
            help="Benchmark logs; with --url a workload.",
        ),
    ]
    name: Annotated[str, Option(help="Name of the new profile.")] = "mine"
    out: Annotated[
        str | None,
        Option(
            "--out",
            "-o",
            metavar="FILE",
            help="File for the profile (.yaml).",
        ),
    ] = None
    fit_requests: Annotated[
        int | None,
        Option(
            help="Number of requests to fit on, the first of each log; by default a third.",
            minimum=1,
        ),
    ] = None
    spread: Annotated[
        bool,
        Option(
            "--spread/--no-spread",
            help="Fit six more times, to tell how far the error moves with meaningless choices.",
        ),
    ] = True
    unit: Annotated[
        str,
        Option(help="Time unit of tables whose column names do not state it: s, ms, us or ns."),
    ] = "s"

    like: Annotated[
        str | None,
        Option(
            metavar="PROFILE",
            group=HARDWARE_GROUP,
            help="Profile to copy hardware, model and engine settings from, unless given.",
        ),
    ] = None
    hardware: Annotated[
        str | None,
        Option(
            help="Name of the hardware.",
            group=HARDWARE_GROUP,
        ),
    ] = None
    memory_bandwidth: Annotated[
        float | None,
        Option(
            help="Memory bandwidth of one device, in bytes per second.",
            group=HARDWARE_GROUP,
            minimum=1,
        ),
    ] = None
    tensor_parallel_size: Annotated[
        int | None,
        Option(
            help="Number of tensor-parallel devices.",
            group=HARDWARE_GROUP,
            minimum=1,
        ),
    ] = None
    data_parallel_size: Annotated[
        int | None,
        Option(
            help="Number of data-parallel ranks; all other settings are of one rank.",
            group=HARDWARE_GROUP,
            minimum=1,
        ),
    ] = None
    enable_expert_parallel: Annotated[
        bool | None,
        Option(
            "--enable-expert-parallel/--no-enable-expert-parallel",
            help="Whether the data-parallel ranks share their experts, so that they step together.",
            group=HARDWARE_GROUP,
        ),
    ] = None
    model: Annotated[
        str | None,
        Option(help="Name of the model.", group=HARDWARE_GROUP),
    ] = None
    weight_bytes: Annotated[
        float | None,
        Option(
            help="Bytes of weights that a step reads: 2 per parameter for bf16.",
            group=HARDWARE_GROUP,
            minimum=1,
        ),
    ] = None
    kv_bytes_per_token: Annotated[
        int | None,
        Option(
            help="KV cache bytes per token: 2 * layers * KV heads * head size * bytes per value.",
            group=HARDWARE_GROUP,
            minimum=1,
        ),
    ] = None
    layers: Annotated[
        int | None,
        Option(
            help="Number of the model's layers, each of which costs a fixed time.",
            group=HARDWARE_GROUP,
            minimum=1,
        ),
    ] = None

    url: Annotated[
        str | None,
        Option(
            help="Base URL of an OpenAI-compatible server to measure.",
            group=SERVER_GROUP,
        ),
    ] = None
    served_model: Annotated[
        str | None,
        Option(
            help="Model name on that server.",
            group=SERVER_GROUP,
        ),
    ] = None
    api_key: Annotated[str | None, build_api_key_option(SERVER_GROUP)] = None
    extra_body: Annotated[str, build_extra_body_option(SERVER_GROUP)] = "{}"
    save_detailed: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="Write the measured timings of each request as JSON Lines.",
            group=SERVER_GROUP,
        ),
    ] = None

    plots: Annotated[
        str | None,
        Option(
            metavar="FILE",
            group=OUTPUT_GROUP,
            help="Write plots of measured against simulated times to this .png, .svg, .pdf or "
            ".html file (requires "
            "the extra `plots`).",
        ),
    ] = None


def _run_calibration(options: CalibrateOptions) -> None:
    # Fail before the measurement and the fit, which take minutes.
    if options.plots is not None:
        from dragoman_check.plots.figure import check_plot_path  # noqa: PLC0415 - numpy and matplotlib are slow to import; also below

        check_plot_path(options.plots)
    from dragoman_check.load.logs.measured_log import join_logs  # noqa: PLC0415

    from ..engine.kv_cache_dtype import check_kv_cache_dtype  # noqa: PLC0415
    from ..engine.profile import dumps, load  # noqa: PLC0415
    from ..lab.latency_fit import simulate  # noqa: PLC0415

    if options.kv_cache_dtype is not None:
        check_kv_cache_dtype(options.kv_cache_dtype)
    base_profile = None if options.like is None else options.merge_into_profile(load(options.like))
    logs = _read_logs(options)
    log = join_logs(logs)
    for log_note in log.notes:
        print_warning(f"{log_note}.")
    fitted_ids: set[str] = set()
    start = 0
    for size in (len(source_log.timings) for source_log in logs):
        # Fit on the first requests of each log, so that every measured load takes part.
        count = size // FIT_FRACTION if options.fit_requests is None else options.fit_requests
        fitted_ids.update(timing.id for timing in log.timings[start : start + min(count, size)])
        start += size
    profile = _fit_profile(options, base_profile, log, frozenset(fitted_ids))
    if options.out is not None:
        Path(options.out).write_text(dumps(profile), encoding="utf-8")
    click.echo(_format_fit(profile), nl=False)
    error = None if profile.calibration is None else profile.calibration.error
    worst = (
        0.0
        if error is None
        else max(abs(metric.mean) for metric in (error.ttft, error.latency, error.tpot))
    )
    if worst > WARN_ERROR:
        print_warning(
            f"the error of a mean is {worst:.0%}. Check that the engine settings match the "
            f"server's (--max-num-seqs, "
            "--max-num-batched-tokens, --num-gpu-blocks-override); vLLM logs them at startup."
        )
    if options.plots is not None:
        from .calibration_plots import draw_calibration  # noqa: PLC0415

        ranks = profile.hardware.ranks
        result = simulate(
            log.requests, profile.engine, profile.latency, profile.frontend_seconds, ranks=ranks
        )
        draw_calibration(options.plots, log.timings, result.timings, fitted_ids, profile.name)


def _read_logs(options: CalibrateOptions) -> list[MeasuredLog]:
    """Read the log files; with --url, measure that server instead."""
    from dragoman_check.load.logs.log_reader import read_any  # noqa: PLC0415
    from dragoman_check.load.logs.measured_log import LogError  # noqa: PLC0415

    if options.url is None:
        logs: list[MeasuredLog] = []
        for name in options.logs:
            try:
                logs.append(read_any(read_file(name), unit=options.unit))
            except LogError as error:
                raise LogError(f"{name}: {error}") from None
        return logs
    from dragoman_check.load.load_driver import Target, measure_server  # noqa: PLC0415 - it needs the HTTP client

    if len(options.logs) != 1:
        raise ValueError("--url takes exactly one workload: a trace, poisson or bursts")
    workload = load_workload(options.logs[0], options)
    target = Target(
        options.url, options.served_model, find_api_key(options.api_key), options.extra_body
    )
    with show_progress("requests completed", len(workload)) as tick:
        log = measure_server(target, workload, tick)
    if options.save_detailed is not None:
        Path(options.save_detailed).write_bytes(
            b"".join(msgspec.json.encode(timing) + b"\n" for timing in log.timings)
        )
    return [log]


def _fit_profile(
    options: CalibrateOptions,
    base_profile: SimulatorProfile | None,
    log: MeasuredLog,
    fitted_ids: frozenset[str],
) -> SimulatorProfile:
    """Fit a profile. Options override the base profile's hardware and model.

    base_profile: with the engine options applied; None without --like.
    """
    from ..engine.profile import Hardware, ModelProfile  # noqa: PLC0415
    from ..lab.calibration import calibrate  # noqa: PLC0415
    from ..lab.calibration_spread import NUM_VARIATIONS, measure_spread  # noqa: PLC0415
    from ..lab.prior import predict_prior, read_prior  # noqa: PLC0415

    hardware_sizes = _select_set(
        {
            "memory_bandwidth": options.memory_bandwidth,
            "tensor_parallel": options.tensor_parallel_size,
        }
    )
    model_sizes = _select_set(
        {
            "weight_bytes": options.weight_bytes,
            "kv_bytes_per_token": options.kv_bytes_per_token,
            "layers": options.layers,
        }
    )
    hardware_overrides = _select_set(
        {
            "name": options.hardware,
            "data_parallel": options.data_parallel_size,
            "lock_step": options.enable_expert_parallel,
        }
    )
    if base_profile is None:
        engine = options.merge_into(SimulatedSchedulerConfig())
        hardware = Hardware("unknown")
        model = ModelProfile("unknown", kv_cache_dtype=options.kv_cache_dtype or "auto")
    else:
        engine = base_profile.engine
        hardware = base_profile.hardware
        model = base_profile.model
    hardware = msgspec.structs.replace(hardware, **hardware_overrides, **hardware_sizes)
    model = msgspec.structs.replace(model, **_select_set({"name": options.model}), **model_sizes)
    prior = predict_prior(hardware, model)
    if base_profile is not None:
        known = read_prior(base_profile)
        # A log does not determine the cost curve of shared experts: its shape always
        # comes from the base profile. The rest does unless it is for other sizes.
        prior = (
            msgspec.structs.replace(
                prior, per_expert_token=known.per_expert_token, mixed_base=known.mixed_base
            )
            if hardware_sizes or model_sizes
            else known
        )
    profile = calibrate(
        options.name,
        (log.requests, log.timings),
        hardware=hardware,
        model=model,
        engine=engine,
        source=f"{log.format}: {', '.join(Path(name).name for name in options.logs)}",
        fitted_ids=fitted_ids,
        prior=prior,
    )
    if not options.spread:
        return profile
    with show_progress("fits", NUM_VARIATIONS) as tick:
        spread = measure_spread((log.requests, log.timings), profile, fitted_ids, tick, prior)
    assert profile.calibration is not None
    return msgspec.structs.replace(
        profile, calibration=msgspec.structs.replace(profile.calibration, spread=spread)
    )


def _select_set(overrides: Mapping[str, object]) -> dict[str, Any]:
    """Drop the options that are None."""
    return {name: value for name, value in overrides.items() if value is not None}


def _format_fit(profile: SimulatorProfile) -> str:
    """Format the fitted coefficients and the profile's errors."""
    latency = profile.latency
    calibration = profile.calibration
    assert calibration is not None
    assert calibration.error is not None
    lines = [
        f"fitted on {calibration.fitted} requests, evaluated on the other {calibration.held_out}",
        "",
        f"step             {1000 * latency.base:.4g} ms",
        *(
            f"  + per token    {1e6 * cost.seconds:.4g} us for each token beyond {cost.beyond}"
            for cost in latency.per_token
        ),
        f"  + context      {1e9 * latency.per_context_token:.4g} ns per context token while "
        f"decoding",
        f"  + prompts      {1e12 * latency.per_prefill_pair:.4g} ps per query-key pair",
        *(
            [
                f"  + mixed steps  {1e6 * latency.per_mixed_sequence:.4g} us per sequence of a "
                f"step with a prompt"
            ]
            if latency.per_mixed_sequence
            else []
        ),
        *(
            [f"  + mixed steps  {1000 * latency.mixed_base:.4g} ms for a step with a prompt"]
            if latency.mixed_base
            else []
        ),
        f"front end        {1000 * profile.frontend_seconds:.4g} ms per request",
        "",
        f"{'simulated against measured':<27}{'mean':>9}{'p50':>9}{'p90':>9}{'p99':>9}",
    ]
    rows = (
        ("TTFT", calibration.error.ttft),
        ("latency", calibration.error.latency),
        ("TPOT", calibration.error.tpot),
    )
    lines += [f"{name:<27}{_format_row(row)}" for name, row in rows]
    if calibration.spread is not None:
        lowest = calibration.spread.lowest
        highest = calibration.spread.highest
        lines += ["", "from, to, with other clocks and other requests fitted"]
        for name, low, high in (
            ("TTFT", lowest.ttft, highest.ttft),
            ("latency", lowest.latency, highest.latency),
            ("TPOT", lowest.tpot, highest.tpot),
        ):
            lines += [f"{name:<27}{_format_row(low)}", f"{'':<27}{_format_row(high)}"]
    return "\n".join(lines) + "\n"


def _format_row(error: MetricError) -> str:
    return "".join(f"{value:>+9.2%}" for value in (error.mean, error.p50, error.p90, error.p99))


COMMAND = build_command(
    "calibrate",
    CalibrateOptions,
    _run_calibration,
    help=HELP,
    short_help="Fit a simulator profile to measured requests.",
    errors=(DragomanError,),
    explain_option=explain_option,
)
