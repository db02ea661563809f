"""The options of `run` and `chat`: the server, the request's parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from dragoman_cli import Option
from dragoman_cli.api_key import build_api_key_option

SAMPLING_GROUP = "Sampling"


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions:
    """The options of `run` and `chat` that select the server."""

    url: Annotated[
        str | None,
        Option(
            metavar="URL",
            help="Use this running server; MODEL is then the name of one of its models.",
        ),
    ] = None
    api_key: Annotated[str | None, build_api_key_option()] = None


@dataclass(frozen=True, kw_only=True)
class RequestOptions(ConnectionOptions):
    """The options of `run` and `chat` that are part of the request; None means the
    server's default.
    """

    system: Annotated[str | None, Option("--system", "-s", help="System prompt.")] = None
    temperature: Annotated[
        float | None,
        Option(help="Sampling temperature; 0 is greedy.", group=SAMPLING_GROUP, minimum=0),
    ] = None
    top_p: Annotated[
        float | None,
        Option(
            help="Sample from the most likely tokens whose probabilities add up to this.",
            group=SAMPLING_GROUP,
        ),
    ] = None
    max_tokens: Annotated[
        int | None,
        Option(metavar="N", help="Maximum length of an answer.", group=SAMPLING_GROUP, minimum=1),
    ] = None
    seed: Annotated[int | None, Option(metavar="N", help="Random seed.", group=SAMPLING_GROUP)] = (
        None
    )
    stop: Annotated[
        tuple[str, ...],
        Option(
            metavar="TEXT",
            help="End the answer before this text. Repeatable.",
            group=SAMPLING_GROUP,
        ),
    ] = ()
    reasoning_effort: Annotated[
        str | None,
        Option(
            metavar="LEVEL",
            help="Reasoning effort, from none or minimal to xhigh or max.",
            group=SAMPLING_GROUP,
        ),
    ] = None

    def build_parameters(self) -> dict[str, object]:
        """Build the request's parameters from the options that are set."""
        names = ("temperature", "top_p", "max_tokens", "seed", "stop", "reasoning_effort")
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value not in (None, ())}
