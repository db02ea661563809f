"""The options of `run` and `chat`: the server, the request's parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

SAMPLING_PANEL = "Sampling"


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions:
    """The options of `run` and `chat` that select the server."""

    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Use this running server; MODEL is then the name of one of its models.",
            show_default=False,
        ),
    ] = None
    api_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="API key of the server. By default the first one of DRAGOMAN_API_KEY, which `ps` "
            "cannot show.",
            show_default=False,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class RequestOptions(ConnectionOptions):
    """The options of `run` and `chat` that are part of the request; None means the
    server's default.
    """

    system: Annotated[
        str | None, typer.Option("--system", "-s", help="System prompt.", show_default=False)
    ] = None
    temperature: Annotated[
        float | None,
        typer.Option(
            help="Sampling temperature; 0 is greedy.", rich_help_panel=SAMPLING_PANEL, min=0
        ),
    ] = None
    top_p: Annotated[
        float | None,
        typer.Option(
            help="Sample from the most likely tokens whose probabilities add up to this.",
            rich_help_panel=SAMPLING_PANEL,
        ),
    ] = None
    max_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Maximum length of an answer.", rich_help_panel=SAMPLING_PANEL, min=1
        ),
    ] = None
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Random seed.", rich_help_panel=SAMPLING_PANEL)
    ] = None
    stop: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="End the answer before this text. Repeatable.",
            rich_help_panel=SAMPLING_PANEL,
        ),
    ] = None
    reasoning_effort: Annotated[
        str | None,
        typer.Option(
            metavar="LEVEL",
            help="Reasoning effort, from none or minimal to xhigh or max.",
            rich_help_panel=SAMPLING_PANEL,
        ),
    ] = None

    def build_parameters(self) -> dict[str, object]:
        """Build the request's parameters from the options that are set."""
        names = ("temperature", "top_p", "max_tokens", "seed", "stop", "reasoning_effort")
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value not in (None, [])}
