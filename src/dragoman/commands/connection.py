"""The server that a command talks to: a running one by its URL, or one that the command starts for itself."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from .options import print_error

if TYPE_CHECKING:
    from .api_client import ApiClient, ApiError, ListedModel
    from .local_server import LocalServer

DEFAULT_URL = "http://127.0.0.1:8000"
SAMPLING_PANEL = "Sampling"


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions:
    """Which server: shared by `run` and `chat`."""

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
            help="API key of the server. By default the first one of DRAGOMAN_API_KEY, which `ps` does not show.",
            show_default=False,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class RequestOptions(ConnectionOptions):
    """What is asked for: shared by `run` and `chat`. Without a value the model decides."""

    system: Annotated[str | None, typer.Option("--system", "-s", help="System prompt.", show_default=False)] = None
    temperature: Annotated[
        float | None, typer.Option(help="Sampling temperature; 0 is greedy.", rich_help_panel=SAMPLING_PANEL, min=0)
    ] = None
    top_p: Annotated[
        float | None,
        typer.Option(help="Sample from the most probable tokens of this total.", rich_help_panel=SAMPLING_PANEL),
    ] = None
    max_tokens: Annotated[
        int | None,
        typer.Option(metavar="N", help="Maximum length of an answer.", rich_help_panel=SAMPLING_PANEL, min=1),
    ] = None
    seed: Annotated[int | None, typer.Option(metavar="N", help="Random seed.", rich_help_panel=SAMPLING_PANEL)] = None
    stop: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT", help="End the answer before this text. Repeatable.", rich_help_panel=SAMPLING_PANEL
        ),
    ] = None
    reasoning_effort: Annotated[
        str | None,
        typer.Option(
            metavar="LEVEL", help="Reasoning: none, minimal, low, medium or high.", rich_help_panel=SAMPLING_PANEL
        ),
    ] = None

    def build_parameters(self) -> dict[str, object]:
        """The parameters of a request that have a value."""
        names = ("temperature", "top_p", "max_tokens", "seed", "stop", "reasoning_effort")
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value not in (None, [])}


@dataclass(frozen=True, slots=True)
class Connection:
    """An open connection.

    model: the one to ask. server: the one that this command has started, if it has.
    """

    client: ApiClient
    model: ListedModel
    server: LocalServer | None = None

    def explain(self, error: ApiError) -> str:
        """The error, or the last lines of the server if that is why."""
        failure = self.server.read_failure() if error.is_unreachable and self.server is not None else None
        return str(error) if failure is None else f"the server ended:\n{failure}"


def resolve_api_key(option: str | None) -> str | None:
    """The key to send: as given, else the first one that the environment tells servers to accept."""
    return option or os.environ.get("DRAGOMAN_API_KEY", "").partition(",")[0].strip() or None


@contextmanager
def connect(model: str | None, options: ConnectionOptions) -> Generator[Connection]:
    """Connect to the server of the options, of a URL in the place of MODEL, or to a new one that serves MODEL.

    Exits with code 2 where that fails, and says why.
    """
    from .api_client import ApiClient, ApiError, is_url  # noqa: PLC0415 - `--help` does not wait for it

    url, name = options.url, model
    if url is None and model is not None and is_url(model):
        url, name = model, None
    api_key = resolve_api_key(options.api_key)
    try:
        if url is not None:
            with ApiClient(url, api_key) as client:
                yield Connection(client, choose_model(client, name))
            return
        with serve_model(model, api_key) as server, ApiClient(server.url, api_key) as client:
            yield Connection(client, choose_model(client, None), server)
    except ApiError as error:
        print_error(str(error))
        raise typer.Exit(2) from error


@contextmanager
def serve_model(
    model: str | None, api_key: str | None, *, port: int = 0, store: str = "none", shows_startup: bool = False
) -> Generator[LocalServer]:
    """As `start_server`. Exits with the server's code where it cannot start, after it has printed why."""
    from .local_server import ServerFailed, start_server  # noqa: PLC0415 - as above

    try:
        with start_server(
            model, print_status, api_key=api_key, port=port, store=store, shows_startup=shows_startup
        ) as server:
            yield server
    except ServerFailed as error:
        raise typer.Exit(error.code or 2) from error


def choose_model(client: ApiClient, name: str | None) -> ListedModel:
    """The model of this name; None is the first one that the server lists. Raises ApiError."""
    from .api_client import ApiError, ListedModel  # noqa: PLC0415 - as above

    models = client.list_models()
    if not models:
        raise ApiError(f"{client.url} lists no model")
    found = models[0] if name is None else next((model for model in models if model.id == name), None)
    if found is None and name is not None and any(_is_alias(name, model) for model in models):
        found = ListedModel(name)
    if found is None:
        raise ApiError(f"{client.url} has no model {name!r}; it has {', '.join(model.id for model in models)}")
    return found


def _is_alias(name: str, model: ListedModel) -> bool:
    from fnmatch import fnmatchcase  # noqa: PLC0415 - rarely needed

    return model.dragoman is not None and any(fnmatchcase(name, alias) for alias in model.dragoman.aliases)


def print_status(line: str) -> None:
    """Print a line that is no part of the answer."""
    typer.echo(line, err=True)
