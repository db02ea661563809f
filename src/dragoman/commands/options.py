"""Builds a command from a dataclass of options: each field is an option, its annotation holds typer's metadata.

Also shared by the commands: vLLM's flags for a simulated engine, and error output.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import msgspec
import typer
from typer.models import OptionInfo

from ..core.errors import DragomanError
from ..engines.simulator.config import SimulatedSchedulerConfig
from ..settings import SettingsError

Options = TypeVar("Options")
ENGINE_PANEL = "Engine (vLLM's names; defaults come from the profile)"


def build_api_key_option(panel: str, about: str) -> OptionInfo:
    """The API key of a server to measure: never on the command line, where the environment has it. about: its help."""
    return typer.Option(
        envvar="OPENAI_API_KEY", help=about, rich_help_panel=panel, show_default=False, show_envvar=True
    )


def build_extra_body_option(panel: str) -> OptionInfo:
    return typer.Option(
        metavar="JSON", help="JSON fields to merge into every request; null removes a field.", rich_help_panel=panel
    )


def build_command(options: type[Options], run: Callable[[Options], None], *, about: str) -> Callable[..., None]:
    """Build a function for `typer.Typer.command`. about: its help."""
    hints = get_type_hints(options, include_extras=True)

    def call(**values: object) -> None:
        with report_errors():
            run(options(**values))

    call.__doc__ = about
    # What typer looks at to find the options.
    fields: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(options)  # pyright: ignore[reportArgumentType]
    vars(call)["__signature__"] = inspect.Signature([_build_parameter(field, hints[field.name]) for field in fields])
    return call


def _build_parameter(field: dataclasses.Field[Any], annotation: Any) -> inspect.Parameter:  # noqa: ANN401 - a type
    default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
    if field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


@contextmanager
def report_errors() -> Generator[None]:
    """Report errors in files and options as one line and exit status 2, without a traceback."""
    try:
        yield
    except (DragomanError, SettingsError, ValueError, OSError) as error:
        print_error(_format_error(error))
        raise typer.Exit(2) from None


def print_error(message: str) -> None:
    """Print an error to standard error, in red on a terminal."""
    _print_colored(f"Error: {message}", typer.colors.RED)


def print_warning(message: str) -> None:
    """Print a warning to standard error, in yellow on a terminal."""
    _print_colored(f"Warning: {message}", typer.colors.YELLOW)


def _print_colored(line: str, color: str) -> None:
    # https://no-color.org: any value but the empty one disables colours, also on a terminal.
    typer.secho(line, fg=color, err=True, color=False if os.environ.get("NO_COLOR") else None)


def _format_error(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def read_file(path: str) -> bytes:
    """`-` is the standard input."""
    return typer.get_binary_stream("stdin").read() if path == "-" else Path(path).read_bytes()


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """vLLM's flags. Where a value is None the profile decides."""

    max_num_seqs: Annotated[
        int | None,
        typer.Option(help="Maximum number of sequences per step.", show_default=False, rich_help_panel=ENGINE_PANEL),
    ] = None
    max_num_batched_tokens: Annotated[
        int | None,
        typer.Option(help="Maximum number of tokens per step.", show_default=False, rich_help_panel=ENGINE_PANEL),
    ] = None
    block_size: Annotated[
        int | None,
        typer.Option(help="KV cache block size in tokens.", show_default=False, rich_help_panel=ENGINE_PANEL),
    ] = None
    num_gpu_blocks_override: Annotated[
        int | None, typer.Option(help="Number of KV cache blocks.", show_default=False, rich_help_panel=ENGINE_PANEL)
    ] = None
    max_model_len: Annotated[
        int | None,
        typer.Option(
            help="Maximum context length in tokens, prompt and output together.",
            show_default=False,
            rich_help_panel=ENGINE_PANEL,
        ),
    ] = None
    enable_prefix_caching: Annotated[
        bool | None,
        typer.Option(
            "--enable-prefix-caching/--no-enable-prefix-caching",
            help="Reuse the KV cache of shared prompt prefixes.",
            show_default=False,
            rich_help_panel=ENGINE_PANEL,
        ),
    ] = None
    enable_chunked_prefill: Annotated[
        bool | None,
        typer.Option(
            "--enable-chunked-prefill/--no-enable-chunked-prefill",
            help="Split long prompts over several steps.",
            show_default=False,
            rich_help_panel=ENGINE_PANEL,
        ),
    ] = None
    long_prefill_token_threshold: Annotated[
        int | None,
        typer.Option(
            help="Maximum number of tokens of one prompt per step; 0 is no limit.",
            show_default=False,
            rich_help_panel=ENGINE_PANEL,
        ),
    ] = None
    long_prefill_token_threshold_adaptive: Annotated[
        bool | None,
        typer.Option(
            "--long-prefill-token-threshold-adaptive",
            help="Raise that limit to a fair share of the tokens of a step.",
            show_default=False,
            rich_help_panel=ENGINE_PANEL,
        ),
    ] = None
    max_num_active_seqs: Annotated[
        int | None,
        typer.Option(
            help="Maximum number of sequences that run at once, up to --max-num-seqs.",
            show_default=False,
            rich_help_panel=ENGINE_PANEL,
        ),
    ] = None
    watermark: Annotated[
        float | None,
        typer.Option(
            help="Share of the KV cache that stays free when a request is admitted.",
            show_default=False,
            rich_help_panel=ENGINE_PANEL,
        ),
    ] = None
    scheduling_policy: Annotated[
        str | None,
        typer.Option(help="Scheduling policy: fcfs or priority.", show_default=False, rich_help_panel=ENGINE_PANEL),
    ] = None
    async_scheduling: Annotated[
        bool | None,
        typer.Option(
            "--async-scheduling/--no-async-scheduling",
            help="Schedule a step while the previous one runs.",
            show_default=False,
            rich_help_panel=ENGINE_PANEL,
        ),
    ] = None
    scheduler_reserve_full_isl: Annotated[
        bool | None,
        typer.Option(
            "--scheduler-reserve-full-isl/--no-scheduler-reserve-full-isl",
            help="Admit a prompt only if all of it fits into the KV cache.",
            show_default=False,
            rich_help_panel=ENGINE_PANEL,
        ),
    ] = None

    max_loras: Annotated[
        int | None,
        typer.Option(
            help="Maximum number of LoRA adapters that run at once.", show_default=False, rich_help_panel=ENGINE_PANEL
        ),
    ] = None
    speculative_config: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help="Speculative decoding, in vLLM's format: method and num_speculative_tokens.",
            show_default=False,
            rich_help_panel=ENGINE_PANEL,
        ),
    ] = None

    def overrides(self) -> dict[str, object]:
        """The options that are set, by the names of SimulatedSchedulerConfig's fields."""
        return {
            "num_gpu_blocks" if name == "num_gpu_blocks_override" else name: getattr(self, name)
            for name in (field.name for field in dataclasses.fields(EngineOptions))
            if getattr(self, name) is not None and name != "speculative_config"
        }

    def merge_into(self, config: SimulatedSchedulerConfig) -> SimulatedSchedulerConfig:
        """The configuration with these options over it. Raises ValueError."""
        from ..engines.simulator.latency import parse_speculative_config  # noqa: PLC0415

        try:
            if self.speculative_config is not None:
                config = parse_speculative_config(self.speculative_config).merge_into(config)
            return msgspec.convert(msgspec.to_builtins(config) | self.overrides(), SimulatedSchedulerConfig)
        except msgspec.ValidationError as error:
            # The error names the flag instead of msgspec's field.
            text, _, path = str(error).partition(" - at `$.")
            raise ValueError(f"--{path.rstrip('`').replace('_', '-')}: {text}" if path else text) from None
