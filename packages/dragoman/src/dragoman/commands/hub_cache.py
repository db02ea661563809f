"""`dragoman pull`, `models` and `rm`: download, list and remove models of the Hugging
Face hub on this machine.
"""

from __future__ import annotations

import os
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import click

from dragoman_cli import Argument, Option, build_command, print_warning, render_table

from ..core.errors import EngineError
from ..settings import load_keywords, state_directory
from .errors import COMMAND_ERRORS

if TYPE_CHECKING:
    from ..hub import LocalModel
    from ..launch.engine_spec import EngineSpec


def pull(
    model: Annotated[
        str,
        Argument(metavar="MODEL", help="`org/name`, `org/name:QUANT` or `org/name@REVISION`."),
    ],
    revision: Annotated[
        str | None,
        Option(help="Branch, tag or commit; `main` by default."),
    ] = None,
) -> None:
    """Download a model, or its newest version, without serving it."""
    from ..hub import HubError, download, format_bytes, is_adapter  # noqa: PLC0415 - `--help` needs no hub
    from ..launch.hub_models import DownloadDisplay, prepare_pull  # noqa: PLC0415 - imports the whole server
    from ..launch.hub_reference import find_reference  # noqa: PLC0415 - imports the whole server

    reference = find_reference(model, revision)
    if reference is None:
        raise HubError(
            f"{model} is not a model of the hub; write `org/name`, or `hf:NAME` for one "
            f"without `org/`"
        )
    prepared = prepare_pull(load_keywords({}), *reference)
    plan = prepared.plan
    if not prepared.choice.engine:
        print_warning(prepared.choice.reason)
    display = DownloadDisplay(prepared.name, print_line=click.echo)
    with display:
        download(plan, display.update)
    size = format_bytes(plan.size)
    revision = f"revision {plan.revision} (commit {plan.commit})"
    click.echo(f"{prepared.name}: {size} in {plan.target}, {revision}")
    is_used_with = "MODEL --lora-modules NAME=" if is_adapter(plan.files) else ""
    click.echo(f"Serve it: dragoman serve {is_used_with}{reference[0]}")


def list_models() -> None:
    """List the models of the hub on this machine."""
    from ..hub import format_bytes, list_local_models  # noqa: PLC0415 - as above

    rows = [("MODEL", "SIZE", "ENGINE", "CONTEXT", "LAST USE", "REVISION")]
    for model in list_local_models(state_directory(os.environ)):
        usage = model.usage
        context = _find_context(model)
        last_use = (
            ""
            if usage is None
            else datetime.fromtimestamp(usage.used_at).strftime("%Y-%m-%d %H:%M")
        )
        commit = model.commit[:12]
        revision = commit if model.revision == model.commit else f"{model.revision} ({commit})"
        context_text = "" if context is None else str(context)
        rows.append(
            (
                model.name,
                format_bytes(model.size),
                _find_engine(model),
                context_text,
                last_use,
                revision,
            )
        )
    if len(rows) == 1:
        click.echo("No models. Download one: dragoman pull org/name")
        return
    click.echo(render_table(rows), nl=False)


def _find_engine(model: LocalModel) -> str:
    """Return the engine that last served the model, else the one that would; empty if
    none is installed.
    """
    if model.usage is not None and model.usage.engine is not None:
        return model.usage.engine
    if model.file is not None:
        loader = _find_gguf_engine()
        return "" if loader is None else loader.name
    if (model.directory / "adapter_config.json").is_file():
        return "(adapter)"
    from ..launch.engine_choice import choose_directory_engine  # noqa: PLC0415 - imports the whole server

    try:
        return choose_directory_engine(model.directory).engine
    except (OSError, ValueError):
        return ""


def _find_context(model: LocalModel) -> int | None:
    """Return the context length in tokens: as last served, else the model's maximum;
    None if unknown.
    """
    if model.usage is not None and model.usage.max_model_len is not None:
        return model.usage.max_model_len
    try:
        if model.file is None:
            from ..launch.safetensors_format import SAFETENSORS  # noqa: PLC0415 - as below

            return SAFETENSORS.read_context(model.directory)
        loader = _find_gguf_engine()
        if loader is None or loader.local is None:
            return None
        return loader.local.format.read_context(model.directory / model.file)
    except (OSError, EngineError):
        return None


def _find_gguf_engine() -> EngineSpec | None:
    from ..launch.engine_registry import find_engine_of_format  # noqa: PLC0415 - `--help` needs no engine

    return find_engine_of_format("gguf")


def remove(
    model: Annotated[
        str,
        Argument(metavar="MODEL", help="`org/name`, or `org/name:QUANT` for one GGUF file."),
    ],
) -> None:
    """Remove a model of the hub from this machine."""
    from ..hub import format_bytes, parse_reference, remove_local_model  # noqa: PLC0415 - as above

    freed = remove_local_model(parse_reference(model.removeprefix("hf:")))
    click.echo(f"Removed {model}: {format_bytes(freed)} freed")


PULL = build_command(
    "pull",
    pull,
    short_help="Download a model, or its newest version.",
    errors=COMMAND_ERRORS,
)
MODELS = build_command("models", list_models, errors=COMMAND_ERRORS)
REMOVE = build_command("rm", remove, errors=COMMAND_ERRORS)
