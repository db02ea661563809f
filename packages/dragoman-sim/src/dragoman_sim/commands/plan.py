"""`dragoman plan`: finds the cheapest fleet for an SLO. The search is in
`dragoman_sim.lab`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import click
import msgspec

from dragoman.core.errors import DragomanError
from dragoman_check.commands.workload import WorkloadOptions, load_workload
from dragoman_cli import Argument, Option, build_command, print_warning, show_progress

from ..vllm_flags import explain_option
from .predict_profile import MODEL_HELP, OUTPUT_GROUP, SEARCH_GROUP, read_dtype

if TYPE_CHECKING:
    from ..lab.fleet_options import Speculation
    from ..lab.planner import Plan

PLAN_HELP = """Find the cheapest fleet that meets a service level objective, by simulation.

TRACE is a file or a generated workload, as for `simulate`. Every combination of GPU,
model, tensor parallelism and engine settings is predicted from datasheets, and the
smallest sufficient number of replicas of each is searched for.
"""


@dataclass(frozen=True, kw_only=True)
class PlanOptions(WorkloadOptions):
    """Options of `dragoman plan`."""

    trace: Annotated[
        str, Argument(metavar="TRACE", help="File, or `poisson`, `bursts` or `sessions`.")
    ]
    slo: Annotated[
        str,
        Option(
            metavar="OBJECTIVES",
            help='Objectives of the whole workload, such as "p99 ttft < 1s, p99 itl < 50ms".',
        ),
    ]
    gpus: Annotated[
        str,
        Option(
            metavar="NAME:PRICE,...",
            help="GPUs with the price of one per hour, such as h100-sxm:2.5,l40s:0.9.",
        ),
    ]
    models: Annotated[str, Option("--models", "--model", metavar="MODEL,...", help=MODEL_HELP)]
    dtype: Annotated[
        str | None,
        Option(help="Format of the weights; by default the config's."),
    ] = None
    tp: Annotated[
        str,
        Option(metavar="N,...", help="Tensor-parallel sizes to try.", group=SEARCH_GROUP),
    ] = "1,2,4,8"
    max_num_seqs: Annotated[
        str,
        Option(
            metavar="N,...",
            help="Values to try; empty is vLLM's default for the GPU.",
            group=SEARCH_GROUP,
        ),
    ] = ""
    max_num_batched_tokens: Annotated[
        str,
        Option(
            metavar="N,...",
            help="Values to try; empty is vLLM's default for the GPU.",
            group=SEARCH_GROUP,
        ),
    ] = ""
    prefill_decode: Annotated[
        str,
        Option(
            metavar="P:D,...",
            help="Also try disaggregated fleets with these ratios of prefill to decode replicas, "
            "such as 1:1,1:3.",
            group=SEARCH_GROUP,
        ),
    ] = ""
    dp: Annotated[
        str,
        Option(
            "--dp",
            metavar="N,...",
            help="Numbers of data-parallel ranks to try; several share the experts and run in "
            "lock-step.",
            group=SEARCH_GROUP,
        ),
    ] = "1"
    kv_cache_dtype: Annotated[
        str,
        Option(
            metavar="FORMAT,...",
            help="Number formats of keys and values to try, such as auto,fp8.",
            group=SEARCH_GROUP,
        ),
    ] = "auto"
    speculative_config: Annotated[
        str | None,
        Option(
            metavar="JSON",
            help="Speculative decoding of all fleets, in vLLM's format.",
            group=SEARCH_GROUP,
        ),
    ] = None
    acceptance_rates: Annotated[
        str | None,
        Option(
            metavar="RATES",
            help="Share of the drafts whose first, second, ... token is accepted.",
            group=SEARCH_GROUP,
        ),
    ] = None
    margin: Annotated[
        float | None,
        Option(
            metavar="SHARE",
            help="Mark fleets that are within this share of a limit; by default the error of "
            "predictions for the GPU and the kind of model.",
            minimum=0,
            group=SEARCH_GROUP,
        ),
    ] = None
    routing: Annotated[
        str,
        Option(
            help="Routing policy, as of `dragoman simulate`; round-robin is the fastest to "
            "simulate.",
            group=SEARCH_GROUP,
        ),
    ] = "round-robin"
    max_devices: Annotated[
        int,
        Option(help="Maximum number of devices of a fleet.", minimum=1, group=SEARCH_GROUP),
    ] = 64
    processes: Annotated[
        int | None,
        Option(
            help="Processes to simulate in; by default one per core.",
            minimum=1,
            group=SEARCH_GROUP,
        ),
    ] = None
    json: Annotated[bool, Option("--json", help="Print JSON.", group=OUTPUT_GROUP)] = False
    plots: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="Write plots to this .png, .svg, .pdf or .html file (requires the extra `plots`).",
            group=OUTPUT_GROUP,
        ),
    ] = None


def _plan(options: PlanOptions) -> None:
    from ..lab.fleet_options import build_candidates  # noqa: PLC0415
    from ..lab.gpus import find_gpu  # noqa: PLC0415
    from ..lab.model_shape import load_model_shape  # noqa: PLC0415
    from ..lab.objectives import parse_objectives  # noqa: PLC0415
    from ..lab.planner import plan, render_plan  # noqa: PLC0415
    from ..lab.replica_router import Routing  # noqa: PLC0415

    # Fail before the search, which takes minutes.
    if options.plots is not None:
        from dragoman_check.plots.figure import check_plot_path  # noqa: PLC0415

        check_plot_path(options.plots)
    objectives = parse_objectives(options.slo)
    try:
        routing = msgspec.convert(options.routing, Routing)
    except msgspec.ValidationError as error:
        raise ValueError(f"--routing: {error}") from None
    dtype = read_dtype(options.dtype)
    shapes = [load_model_shape(model.strip(), dtype) for model in options.models.split(",")]
    gpus = [
        (name, find_gpu(name), price) for name, price in map(_read_price, options.gpus.split(","))
    ]
    # The split 0:1 is the fleet without disaggregation, whose replicas both prefill and
    # decode.
    candidates, refused = build_candidates(
        gpus,
        shapes,
        tensor_parallel=_read_numbers("--tp", options.tp),
        max_num_seqs=_read_numbers("--max-num-seqs", options.max_num_seqs),
        max_num_batched_tokens=_read_numbers(
            "--max-num-batched-tokens", options.max_num_batched_tokens
        ),
        splits=((0, 1), *_read_splits(options.prefill_decode)),
        data_parallel=_read_numbers("--dp", options.dp),
        kv_cache_dtypes=[part.strip() for part in options.kv_cache_dtype.split(",")],
        speculation=_read_speculation(options),
    )
    # Many combinations fail for the same reason: print each reason once.
    for reason in dict.fromkeys(refused):
        print_warning(reason)
    if not candidates:
        raise ValueError(
            "no configuration is possible, for the reasons above; change --gpus, --models, --tp "
            "or --dtype"
        )
    workload = load_workload(options.trace, options)
    processes = min(options.processes or os.cpu_count() or 1, len(candidates))
    with show_progress("configurations", len(candidates)) as on_progress:
        result = plan(
            candidates,
            workload,
            objectives,
            max_devices=options.max_devices,
            routing=routing,
            margin=options.margin,
            processes=processes,
            tick=on_progress,
        )
    if options.plots is not None:
        from .plan_plots import draw_plan  # noqa: PLC0415 - it needs matplotlib

        draw_plan(options.plots, result, workload, routing)
    click.echo(_format_json(result) if options.json else render_plan(result), nl=False)


def _read_speculation(options: PlanOptions) -> Speculation | None:
    from ..engine.speculative_decoding import (  # noqa: PLC0415
        parse_acceptance_rates,
        parse_speculative_config,
    )
    from ..lab.fleet_options import Speculation  # noqa: PLC0415

    if options.speculative_config is None:
        if options.acceptance_rates is not None:
            raise ValueError("--acceptance-rates needs --speculative-config")
        return None
    return Speculation(
        parse_speculative_config(options.speculative_config),
        ()
        if options.acceptance_rates is None
        else parse_acceptance_rates(options.acceptance_rates),
    )


def _read_price(text: str) -> tuple[str, float]:
    name, _, price = text.strip().rpartition(":")
    try:
        if 0 <= (number := float(price)) < float("inf"):
            return name, number
    except ValueError:
        pass  # Reported below, as a price out of range is.
    raise ValueError(f"--gpus: {text.strip()!r} is not NAME:PRICE, such as h100-sxm:2.5")


def _read_numbers(flag: str, text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise ValueError(f"{flag}: {text!r} is not a list of positive integers, such as 1,2,4")
    return [int(part) for part in parts]


def _read_splits(text: str) -> list[tuple[int, int]]:
    splits: list[tuple[int, int]] = []
    for part in (part.strip() for part in text.split(",") if part.strip()):
        prefill, _, decode = part.partition(":")
        if not (prefill.isdecimal() and decode.isdecimal() and int(prefill) and int(decode)):
            raise ValueError(f"--prefill-decode: {part!r} is not P:D, such as 1:3")
        splits.append((int(prefill), int(decode)))
    return splits


def _format_json(result: Plan) -> str:
    """Format all fleets with their reports as JSON. Of each profile it has the
    settings, not the coefficients.
    """
    front = {id(fleet) for fleet in result.pareto}
    fleets: list[dict[str, Any]] = [
        {
            "configuration": fleet.candidate.description,
            "gpu": fleet.candidate.gpu,
            "model": fleet.candidate.profile.model.name,
            "tensor_parallel_size": fleet.candidate.profile.hardware.tensor_parallel,
            "max_num_seqs": fleet.candidate.profile.engine.max_num_seqs,
            "max_num_batched_tokens": fleet.candidate.profile.engine.max_num_batched_tokens,
            "prefill_replicas": fleet.units * fleet.candidate.prefill,
            "replicas": fleet.units * fleet.candidate.decode,
            "devices": fleet.devices,
            "meets_slo": fleet.units > 0,
            "pareto": id(fleet) in front,
            "cost_per_hour": fleet.cost_per_hour if fleet.units else None,
            "cost_per_million_tokens": fleet.cost_per_million_tokens if fleet.units else None,
            "joules_per_token": fleet.joules_per_token,
            "data_parallel_size": fleet.candidate.profile.hardware.data_parallel,
            "kv_cache_dtype": fleet.candidate.profile.model.kv_cache_dtype,
            "margins": dict(
                zip(map(str, result.objectives), map(_limit_margin, fleet.margins), strict=False)
            ),
            "within_error": fleet.is_within_error,
            "failure": fleet.failure,
            "report": fleet.report,
        }
        for fleet in result.fleets
    ]
    document = {
        "slo": [str(objective) for objective in result.objectives],
        "simulated": result.simulated,
        "fleets": fleets,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def _limit_margin(margin: float) -> float | None:
    """Return a margin that JSON can have; None is that of a figure of 0."""
    return None if margin == float("inf") else margin


COMMAND = build_command(
    "plan",
    PlanOptions,
    _plan,
    help=PLAN_HELP,
    short_help="Find the cheapest fleet that meets an objective.",
    errors=(DragomanError,),
    explain_option=explain_option,
)
