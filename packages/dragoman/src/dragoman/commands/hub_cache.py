"""`dragoman pull`, `models` and `rm`: download, list and remove models of the Hugging
Face hub on this machine.
"""

from __future__ import annotations

import os
from datetime import datetime
from typing import Annotated

import msgspec
import typer

from ..core.errors import EngineError
from ..hub import (
    HubError,
    LocalModel,
    download,
    format_bytes,
    is_adapter,
    list_local_models,
    parse_reference,
    remove_local_model,
)
from ..settings import load_keywords, state_directory
from .options import print_warning, report_errors


def pull(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="`org/name`, `org/name:QUANT` or `org/name@REVISION`."
        ),
    ],
    revision: Annotated[
        str | None,
        typer.Option(help="Branch, tag or commit; `main` by default.", show_default=False),
    ] = None,
) -> None:
    """Download a model, or its newest version, without serving it."""
    with report_errors():
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
        display = DownloadDisplay(prepared.name, print_line=typer.echo)
        with display:
            download(plan, display.update)
        size = format_bytes(plan.size)
        revision = f"revision {plan.revision} (commit {plan.commit})"
        typer.echo(f"{prepared.name}: {size} in {plan.target}, {revision}")
        is_used_with = "MODEL --lora-modules NAME=" if is_adapter(plan.files) else ""
        typer.echo(f"Serve it: dragoman serve {is_used_with}{reference[0]}")


def list_models() -> None:
    """List the models of the hub on this machine."""
    with report_errors():
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
            typer.echo("No models. Download one: dragoman pull org/name")
            return
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            typer.echo(
                "  ".join(
                    cell.ljust(width) for cell, width in zip(row, widths, strict=True)
                ).rstrip()
            )


def _find_engine(model: LocalModel) -> str:
    """Return the engine that last served the model, else the one that would; empty if
    none is installed.
    """
    if model.usage is not None and model.usage.engine is not None:
        return model.usage.engine
    if model.file is not None:
        return "llamacpp"
    if (model.directory / "adapter_config.json").is_file():
        return "(adapter)"
    from ..launch.engine_choice import choose_directory_engine  # noqa: PLC0415 - imports the whole server

    try:
        return choose_directory_engine(model.directory).engine
    except (OSError, ValueError):
        return ""


class _Config(msgspec.Struct):
    max_position_embeddings: int | None = None


def _find_context(model: LocalModel) -> int | None:
    """Return the context length in tokens: as last served, else the model's maximum;
    None if unknown.
    """
    if model.usage is not None and model.usage.max_model_len is not None:
        return model.usage.max_model_len
    try:
        if model.file is not None:
            from ..engines.llamacpp.gguf_metadata import read_metadata  # noqa: PLC0415 - numpy is slow to import

            metadata = read_metadata(model.directory / model.file)
            return metadata.get_number(metadata.build_architecture_key("context_length"))
        return msgspec.json.decode(
            (model.directory / "config.json").read_bytes(), type=_Config
        ).max_position_embeddings
    except (OSError, msgspec.DecodeError, EngineError):
        return None


def remove(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="`org/name`, or `org/name:QUANT` for one GGUF file."),
    ],
) -> None:
    """Remove a model of the hub from this machine."""
    with report_errors():
        freed = remove_local_model(parse_reference(model.removeprefix("hf:")))
        typer.echo(f"Removed {model}: {format_bytes(freed)} freed")
