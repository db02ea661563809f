"""`dragoman profile`: predicts a simulator profile from datasheets. The prediction is
in `dragoman_sim.lab`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
import msgspec

from dragoman_cli import Option, build_command

from ..vllm_flags import explain_option
from .engine_options import EngineOptions

if TYPE_CHECKING:
    from ..lab.model_shape import Dtype


PARALLEL_GROUP = "Parallelism"


SEARCH_GROUP = "Search"


OUTPUT_GROUP = "Output"


MODEL_HELP = "A model of the built-in table, a config.json, or a directory with one."


PROFILE_HELP = """Predict a simulator profile from a GPU's datasheet and a model's
config.json, without measurements.

The prediction is a roofline: bytes and operations of a step over the device's bandwidth
and operations per second, plus collectives between devices. Use `calibrate` where there
is a benchmark log.
"""


@dataclass(frozen=True, kw_only=True)
class ProfileOptions(EngineOptions):
    """Options of `dragoman profile`."""

    gpu: Annotated[
        str,
        Option(metavar="NAME|FILE", help="GPU of the table, or a YAML file with its figures."),
    ]
    model: Annotated[str, Option(metavar="MODEL", help=MODEL_HELP)]
    dtype: Annotated[
        str | None,
        Option(
            help="Format of the weights: bf16, fp8, int8, int4 or fp4; by default the config's.",
        ),
    ] = None
    tensor_parallel_size: Annotated[
        int,
        Option(
            "--tensor-parallel-size",
            "--tp",
            help="Devices per replica.",
            minimum=1,
            group=PARALLEL_GROUP,
        ),
    ] = 1
    data_parallel_size: Annotated[
        int,
        Option(
            "--data-parallel-size",
            "--dp",
            help="Data-parallel ranks.",
            minimum=1,
            group=PARALLEL_GROUP,
        ),
    ] = 1
    enable_expert_parallel: Annotated[
        bool,
        Option(
            "--enable-expert-parallel",
            "--ep",
            help="Share the experts among all ranks, which then run in lock-step.",
            group=PARALLEL_GROUP,
        ),
    ] = False
    gpu_memory_utilization: Annotated[
        float,
        Option(
            help="Share of a device's memory for weights, activations and KV cache.",
            minimum=0.01,
            maximum=1.0,
        ),
    ] = 0.9
    name: Annotated[str | None, Option(help="Name of the profile.")] = None
    out: Annotated[
        str | None,
        Option(
            "--out",
            "-o",
            metavar="FILE",
            help="File for the profile (.yaml); by default standard output.",
        ),
    ] = None


def _predict(options: ProfileOptions) -> None:
    from ..engine.profile import dumps  # noqa: PLC0415 - numpy is slow to load
    from ..engine.speculative_decoding import parse_speculative_config  # noqa: PLC0415
    from ..lab.gpus import find_gpu  # noqa: PLC0415
    from ..lab.model_shape import load_model_shape  # noqa: PLC0415
    from ..lab.roofline import Parallelism, predict_profile  # noqa: PLC0415

    shape = load_model_shape(options.model, read_dtype(options.dtype))
    if options.kv_cache_dtype is not None:
        shape = msgspec.structs.replace(shape, kv_cache_dtype=options.kv_cache_dtype)
    parallelism = Parallelism(
        options.tensor_parallel_size, options.data_parallel_size, options.enable_expert_parallel
    )
    gpu = find_gpu(options.gpu)
    name = (
        options.name
        or f"{Path(options.gpu).stem}-{shape.name}-tp{options.tensor_parallel_size}".lower()
    )
    profile = predict_profile(
        gpu,
        shape,
        parallelism,
        name=name,
        settings=options.overrides(),
        memory_utilization=options.gpu_memory_utilization,
        hybrid_kv_cache=not options.disable_hybrid_kv_cache_manager,
    )
    if options.speculative_config is not None:
        config = parse_speculative_config(options.speculative_config)
        profile = msgspec.structs.replace(profile, engine=config.merge_into(profile.engine))
    text = dumps(profile)
    if options.out is None:
        click.echo(text, nl=False)
    else:
        Path(options.out).write_text(text, encoding="utf-8")
        click.echo(
            f"{options.out}: {profile.model.name} on {profile.hardware.name}, predicted from "
            f"datasheets"
        )


def read_dtype(value: str | None) -> Dtype | None:
    from ..lab.model_shape import DTYPES, Dtype  # noqa: PLC0415

    if value is None:
        return None
    if value not in DTYPES:
        raise ValueError(f"--dtype: must be one of {', '.join(DTYPES)}, not {value!r}")
    return msgspec.convert(value, Dtype)


COMMAND = build_command(
    "profile",
    ProfileOptions,
    _predict,
    help=PROFILE_HELP,
    short_help="Predict a simulator profile from datasheets.",
    explain_option=explain_option,
)
