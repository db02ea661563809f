"""Builds commands from dataclasses: each field is an option, and its annotation
contains typer's metadata.

Also shared by the commands: error output, vLLM's flags for a simulated engine, the
progress bar, and the reasons why the simulator lacks other flags of vLLM.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import msgspec
import typer
from typer.models import OptionInfo

from dragoman_sim.engine.scheduler_config import SimulatedSchedulerConfig

from ..core.errors import DragomanError
from ..settings import SettingsError

Options = TypeVar("Options")
ENGINE_PANEL = "Engine (vLLM's names; defaults come from the profile)"


def build_api_key_option(panel: str, about: str) -> OptionInfo:
    """Build the option for the API key of a server to measure; OPENAI_API_KEY is its
    default.

    about: its help.
    """
    return typer.Option(
        envvar="OPENAI_API_KEY",
        help=about,
        rich_help_panel=panel,
        show_default=False,
        show_envvar=True,
    )


def build_extra_body_option(panel: str) -> OptionInfo:
    return typer.Option(
        metavar="JSON",
        help="JSON fields to merge into every request; null removes a field.",
        rich_help_panel=panel,
    )


def build_engine_option(
    about: str, *flags: str, metavar: str | None = None, minimum: int | None = None
) -> OptionInfo:
    """Build an option of the simulated engine, whose default is the profile's.

    about: its help.
    flags: by default derived from the field's name.
    """
    return typer.Option(
        *flags,
        help=about,
        metavar=metavar,
        min=minimum,
        show_default=False,
        rich_help_panel=ENGINE_PANEL,
    )


def build_command(
    options: type[Options], run: Callable[[Options], None], *, about: str
) -> Callable[..., None]:
    """Build a function for `typer.Typer.command`.

    options: a dataclass; each field becomes an option or argument.
    run: the command itself.
    about: its help.
    """
    hints = get_type_hints(options, include_extras=True)

    def call(**values: object) -> None:
        with report_errors():
            run(options(**values))

    parameters: list[inspect.Parameter] = []
    fields: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(options)  # pyright: ignore[reportArgumentType]
    for field in fields:
        default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters.append(
            inspect.Parameter(field.name, kind, default=default, annotation=hints[field.name])
        )
    call.__doc__ = about
    # Typer reads the options from the signature.
    vars(call)["__signature__"] = inspect.Signature(parameters)
    return call


@contextmanager
def report_errors() -> Generator[None]:
    """Report errors in files and options as one line without a traceback, and exit with
    code 2.
    """
    try:
        yield
    except (DragomanError, SettingsError, ValueError, OSError) as error:
        if isinstance(error, OSError) and error.filename:
            print_error(f"{error.filename}: {error.strerror}")
        else:
            print_error(str(error))
        raise typer.Exit(2) from None


def print_error(message: str) -> None:
    """Print an error to standard error, in red on a terminal."""
    _print_colored(f"Error: {message}", typer.colors.RED)


def print_warning(message: str) -> None:
    """Print a warning to standard error, in yellow on a terminal."""
    _print_colored(f"Warning: {message}", typer.colors.YELLOW)


def _print_colored(line: str, color: str) -> None:
    # https://no-color.org: any non-empty value disables colors, even on a terminal.
    typer.secho(line, fg=color, err=True, color=False if os.environ.get("NO_COLOR") else None)


def read_file(path: str) -> bytes:
    """Read a file; `-` is the standard input. Raises OSError."""
    return typer.get_binary_stream("stdin").read() if path == "-" else Path(path).read_bytes()


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """vLLM's flags for the simulated engine; None means the profile's value."""

    max_num_seqs: Annotated[
        int | None, build_engine_option("Maximum number of sequences per step.")
    ] = None
    max_num_batched_tokens: Annotated[
        int | None, build_engine_option("Maximum number of tokens per step.")
    ] = None
    block_size: Annotated[int | None, build_engine_option("KV cache block size in tokens.")] = None
    num_gpu_blocks_override: Annotated[
        int | None, build_engine_option("Number of KV cache blocks.")
    ] = None
    max_model_len: Annotated[
        int | None,
        build_engine_option("Maximum context length in tokens, prompt and output together."),
    ] = None
    enable_prefix_caching: Annotated[
        bool | None,
        build_engine_option(
            "Reuse the KV cache of shared prompt prefixes.",
            "--enable-prefix-caching/--no-enable-prefix-caching",
        ),
    ] = None
    enable_chunked_prefill: Annotated[
        bool | None,
        build_engine_option(
            "Split long prompts over several steps.",
            "--enable-chunked-prefill/--no-enable-chunked-prefill",
        ),
    ] = None
    long_prefill_token_threshold: Annotated[
        int | None,
        build_engine_option("Maximum number of tokens of one prompt per step; 0 is no limit."),
    ] = None
    long_prefill_token_threshold_adaptive: Annotated[
        bool | None,
        build_engine_option(
            "Raise that limit to max-num-batched-tokens / number of requests.",
            "--long-prefill-token-threshold-adaptive",
        ),
    ] = None
    max_num_active_seqs: Annotated[
        int | None,
        build_engine_option("Maximum number of sequences that run at once, up to --max-num-seqs."),
    ] = None
    watermark: Annotated[
        float | None,
        build_engine_option("Fraction of the KV cache that stays free when a request is admitted."),
    ] = None
    scheduling_policy: Annotated[
        str | None, build_engine_option("Scheduling policy: fcfs or priority.")
    ] = None
    async_scheduling: Annotated[
        bool | None,
        build_engine_option(
            "Schedule a step while the previous one runs.",
            "--async-scheduling/--no-async-scheduling",
        ),
    ] = None
    scheduler_reserve_full_isl: Annotated[
        bool | None,
        build_engine_option(
            "Admit a prompt only if all of it fits into the KV cache.",
            "--scheduler-reserve-full-isl/--no-scheduler-reserve-full-isl",
        ),
    ] = None

    max_loras: Annotated[
        int | None, build_engine_option("Maximum number of LoRA adapters that run at once.")
    ] = None
    speculative_config: Annotated[
        str | None,
        build_engine_option(
            "Speculative decoding, in vLLM's format: method and num_speculative_tokens.",
            metavar="JSON",
        ),
    ] = None

    def overrides(self) -> dict[str, object]:
        """Return the options that are set, by field name of SimulatedSchedulerConfig,
        without speculative_config.
        """
        return {
            "num_gpu_blocks" if name == "num_gpu_blocks_override" else name: getattr(self, name)
            for name in (field.name for field in dataclasses.fields(EngineOptions))
            if getattr(self, name) is not None and name != "speculative_config"
        }

    def merge_into(self, config: SimulatedSchedulerConfig) -> SimulatedSchedulerConfig:
        """Override the configuration with the options that are set. Raises ValueError."""
        from dragoman_sim.engine.speculative_decoding import parse_speculative_config  # noqa: PLC0415

        try:
            if self.speculative_config is not None:
                config = parse_speculative_config(self.speculative_config).merge_into(config)
            return msgspec.convert(
                msgspec.to_builtins(config) | self.overrides(), SimulatedSchedulerConfig
            )
        except msgspec.ValidationError as error:
            # Name the flags instead of msgspec's path of the field, or of the fields
            # that a check of them names.
            message, _, path = str(error).partition(" - at `$.")
            if path:
                raise ValueError(f"--{path.rstrip('`').replace('_', '-')}: {message}") from None
            flags = {"num_gpu_blocks": "--num-gpu-blocks-override"} | {
                field.name: f"--{field.name.replace('_', '-')}"
                for field in dataclasses.fields(EngineOptions)
            }
            raise ValueError(
                re.sub(r"\w+", lambda word: flags.get(word[0], word[0]), message)
            ) from None


# Progress bar.

OnProgress = Callable[[int], None]
"""Called with the number of completed items."""


@contextmanager
def show_progress(label: str, total: int) -> Generator[OnProgress]:
    """Show a progress bar on standard error while the block runs, if that is a
    terminal.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415 - the import takes 0.1 s
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )  # noqa: PLC0415

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress_bar:
        task = progress_bar.add_task(label, total=total)
        yield lambda done: progress_bar.update(task, completed=done)


# vLLM's engine flags that the simulator does not have: the reason, and what to use
# instead.

_TIMES = (
    "it changes the time that steps take, which the profile determines; measure a server with "
    "this flag and fit a "
    "profile to it with `dragoman calibrate`"
)
_MEMORY = (
    "it changes the number of KV cache blocks; set that with --num-gpu-blocks-override, or let "
    "`dragoman profile "
    "--gpu-memory-utilization` predict it"
)
_DEVICES = (
    "the devices of a replica are those of its profile; use a profile of such servers, from "
    "`dragoman profile "
    "--tensor-parallel-size N --data-parallel-size N --enable-expert-parallel` or `dragoman "
    "calibrate`"
)
_PIPELINE = (
    "layers or contexts divided among devices this way are not simulated; only tensor, "
    "data and expert parallelism are"
)
_OFFLOADING = (
    "a profile has times of steps, not of a second tier of the KV cache; `dragoman simulate` and "
    "`dragoman serve sim` "
    "have this flag"
)
_CACHES = (
    "caches other than of full attention are not simulated: every layer keeps all keys and values "
    "of a request. Leave "
    "it out"
)
_MODEL = (
    "no model is loaded: the profile names hardware and model, and `dragoman serve sim` takes "
    "texts from --tokenizer "
    "and replies from --sim-replies. Leave it out"
)
_PROCESSES = "it places processes and workers, and a simulated server is one process. Leave it out"
_MULTIMODAL = (
    "no multimodal encoder is simulated; `dragoman serve sim --sim-image-tokens N` "
    "accepts images as N tokens each"
)
_OBSERVABILITY = (
    "it concerns vLLM's own logs and traces; the metrics of `dragoman serve sim` are "
    "always on. Leave it out"
)
_ADAPTERS = (
    "the cost of adapters is in the profile (lora_base, per_lora_token, lora_load), "
    "whatever their form. Leave it out"
)
_SLEEP = (
    "`/sleep` and `/wake_up` of `dragoman serve sim` are always on, without memory to "
    "release. Leave it out"
)
_TEXTS = (
    "it concerns the content of answers, and simulated ones are random or come from "
    "--sim-replies. Leave it out"
)

_REASONS: dict[str, str] = {
    _TIMES: (
        "dtype quantization quantization-config allow-deprecated-quantization enforce-eager "
        "attention-backend "
        "attention-config compilation-config cudagraph-capture-sizes max-cudagraph-capture-size "
        "optimization-level "
        "performance-mode kernel-config ir-op-priority enable-flashinfer-autotune monokernel "
        "moe-backend "
        "linear-backend sparse-indexer-topk-backend disable-cascade-attn use-fp64-gumbel "
        "disable-custom-all-reduce "
        "all2all-backend enable-dbo ubatch-size dbo-decode-token-threshold "
        "dbo-prefill-token-threshold enable-eplb "
        "eplb-config expert-placement-strategy enable-batch-sharded-sampling enable-hc-sp "
        "gdn-prefill-backend "
        "kda-prefill-backend kda-decode-backend disable-nccl-for-dp-synchronization "
        "cpu-offload-gb cpu-offload-params "
        "offload-backend offload-group-size offload-num-in-group offload-prefetch-step "
        "offload-params model-impl "
        "engram-config additional-config use-v2-block-manager num-scheduler-steps q cc ac"
    ),
    _MEMORY: (
        "gpu-memory-utilization device-memory-utilization kv-cache-memory-bytes kv-cache-dtype "
        "kv-cache-dtype-skip-layers"
    ),
    _DEVICES: "tensor-parallel-size tp data-parallel-size dp enable-expert-parallel ep",
    _PIPELINE: (
        "pipeline-parallel-size pp decode-context-parallel-size dcp prefill-context-parallel-size "
        "pcp "
        "dcp-comm-backend dcp-q-replicate dcp-kv-cache-interleave-size "
        "cp-kv-cache-interleave-size enable-elastic-ep "
        "elastic-ep-max-dp-size dp-sync-interval prefill-schedule-interval diffusion-config dc"
    ),
    _OFFLOADING: "kv-offloading-size kv-offloading-backend",
    _CACHES: (
        "disable-sliding-window disable-hybrid-kv-cache-manager kv-sharing-fast-prefill "
        "swa-bounded-replay "
        "prefix-cache-retention-interval prefix-match-unit mamba-backend mamba-ssu-algorithm "
        "enable-mamba-cache-stochastic-rounding mamba-cache-philox-rounds mamba-cache-dtype "
        "mamba-ssm-cache-dtype "
        "mamba-block-size mamba-cache-mode enable-mamba-shared-prefix-checkpoint "
        "replayssm-buffer-len use-replayssm"
    ),
    _MODEL: (
        "model runner convert tokenizer tokenizer-mode trust-remote-code hf-config-path "
        "allowed-local-media-path "
        "allowed-media-domains revision code-revision tokenizer-revision skip-tokenizer-init "
        "served-model-name "
        "config-format hf-token hf-overrides model-class-overrides pooler-config load-format "
        "download-dir "
        "safetensors-load-strategy safetensors-prefetch-num-threads "
        "safetensors-prefetch-block-size "
        "model-loader-extra-config ignore-patterns use-tqdm-on-load pt-load-map-location "
        "weight-transfer-config "
        "enable-prompt-embeds renderer-num-workers io-processor-plugin aux-output-config "
        "enable-return-routed-experts "
        "enable-trace-replay chat-template prefix-caching-hash-algo"
    ),
    _PROCESSES: (
        "distributed-executor-backend master-addr master-port nnodes n node-rank r "
        "distributed-timeout-seconds "
        "cpu-distributed-timeout-seconds numa-bind numa-bind-nodes numa-bind-cpus device-ids "
        "data-parallel-rank dpn "
        "data-parallel-start-rank dpr data-parallel-size-local dpl data-parallel-address dpa "
        "data-parallel-rpc-port "
        "dpp data-parallel-backend dpb data-parallel-hybrid-lb dph data-parallel-external-lb dpe "
        "data-parallel-multi-port-external-lb dpm enable-ep-weight-filter enable-shm-tensor-arena "
        "max-parallel-loading-workers ray-workers-use-nsight worker-cls worker-extension-cls "
        "enable-fault-tolerance "
        "fault-tolerance-config shutdown-timeout fail-on-environ-validation watchdog-config "
        "enable-cumem-allocator "
        "enable-nccl-comm-suspend scheduler-cls stream-interval"
    ),
    _MULTIMODAL: (
        "language-model-only limit-mm-per-prompt enable-mm-embeds media-io-kwargs "
        "mm-processor-kwargs "
        "mm-processor-cache-gb mm-processor-cache-type mm-hasher-algorithm "
        "mm-shm-cache-max-object-size-mb "
        "mm-encoder-only mm-encoder-tp-mode mm-encoder-attn-backend mm-encoder-attn-dtype "
        "mm-encoder-fp8-scale-path "
        "mm-encoder-fp8-scale-save-path mm-encoder-fp8-scale-save-margin interleave-mm-strings "
        "skip-mm-profiling "
        "video-pruning-rate video-pruning-method mm-tensor-ipc mm-processor-device "
        "mm-ipc-gpu-memory-gb "
        "mm-device-do-normalize disable-chunked-mm-input ec-transfer-config ec-manager-config"
    ),
    _OBSERVABILITY: (
        "disable-log-stats aggregate-engine-logging enable-log-requests logging-config log-level "
        "log-config-file "
        "show-hidden-metrics-for-version otlp-traces-endpoint collect-detailed-traces "
        "per-request-spec-decode-metrics "
        "kv-cache-metrics kv-cache-metrics-sample custom-histogram-buckets cudagraph-metrics "
        "enable-layerwise-nvtx-tracing enable-mfu-metrics enable-logging-iteration-details "
        "jit-monitor-mode "
        "jit-monitor-verbose profiler-config"
    ),
    _ADAPTERS: (
        "max-lora-rank lora-dtype enable-tower-connector-lora max-cpu-loras fully-sharded-loras "
        "lora-target-modules "
        "default-mm-loras specialize-active-lora enable-mixed-moe-lora-format "
        "enable-moe-shared-loras "
        "max-lora-cls-labels disable-lora lora-modules"
    ),
    _SLEEP: (
        "enable-sleep-mode sleep-mode-backend sleep-mode-offload-cudagraph "
        "sleep-preserve-parameter-names"
    ),
    _TEXTS: (
        "max-logprobs logprobs-mode return-sampling-mask generation-config "
        "override-generation-config "
        "logits-processors reasoning-parser reasoning-parser-plugin reasoning-config "
        "structured-outputs-config "
        "watermark-config"
    ),
    "speculative decoding is set as a whole; use --speculative-config": "spec-method spec-model "
    "spec-tokens sc",
    "the tokens of a step are limited by one number; use --max-num-batched-tokens": "max-num-scheduled-tokens",
    "the queue is limited by `dragoman serve sim --max-queued-requests` and --max-queued-tokens": (
        "max-num-queued-reqs max-num-queued-tokens"
    ),
    "simulated replicas do not publish events; use it with `dragoman serve sim`": "kv-events-config",
    "replicas for each are set with --prefill-replicas and --decode-replicas; `dragoman serve "
    "sim` has this flag": ("kv-transfer-config"),
    "it is off unless the profile sets it. Leave it out": "no-long-prefill-token-threshold-adaptive",
    "random numbers come from the workload's options": "seed",
    "vLLM has no such flag any more; preempted requests are computed again, here as there. Leave "
    "it out": ("swap-space preemption-mode"),
}
_REASON_BY_NAME = {name: reason for reason, names in _REASONS.items() for name in names.split()}


def explain_vllm_flag(flag: str) -> str | None:
    """Return why the simulator lacks this flag, and what to use instead; None if no
    reason is listed for it.

    As in vLLM, `_` and `-` are equivalent, a flag can be negated (`--no-X`,
    `--disable-X`), and a field of a JSON value follows a dot
    (`--compilation-config.mode`).
    """
    name = flag.lstrip("-").partition("=")[0].partition(".")[0].replace("_", "-")
    positive = name.removeprefix("no-")
    candidates = [name, positive]
    for prefix, opposite in (("disable-", "enable-"), ("enable-", "disable-")):
        if positive.startswith(prefix):
            stem = positive.removeprefix(prefix)
            candidates += stem, opposite + stem
    return next(
        (_REASON_BY_NAME[candidate] for candidate in candidates if candidate in _REASON_BY_NAME),
        None,
    )


def find_vllm_flag(arguments: Iterable[str], own_flags: frozenset[str]) -> tuple[str, str] | None:
    """Find the first argument that is a vLLM flag which the command lacks. Return the
    flag and the reason, or None.

    own_flags: flags of the command.
    """
    for argument in arguments:
        flag = argument.partition("=")[0].replace("_", "-")
        # A flag `--disable-X` of vLLM 0.33 was `--no-enable-X` before, which the
        # command may have.
        if (
            len(flag) < 2
            or not flag.startswith("-")
            or not own_flags.isdisjoint((flag, flag.replace("--disable-", "--no-enable-", 1)))
        ):
            continue
        if (reason := explain_vllm_flag(flag)) is not None:
            return flag.partition(".")[0], reason
    return None


def list_explained_flags() -> list[tuple[str, str]]:
    """List the unsupported flags of each reason, formatted for docs, with the reason."""
    return [
        (
            ", ".join(
                (f"`-{name}`" if len(name) <= 3 else f"`--{name}`") for name in names.split()
            ),
            reason,
        )
        for reason, names in _REASONS.items()
    ]
