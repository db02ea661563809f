"""The server that a command uses: a running one, by its URL, or one that the command
starts.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase

import click

from dragoman_cli import print_error
from dragoman_cli.api_key import find_api_key

from .api_client import ApiClient, ApiError, ListedModel, is_url
from .client_options import ConnectionOptions
from .local_server import LocalServer, ServerFailed, start_server

DEFAULT_URL = "http://127.0.0.1:8000"


@dataclass(frozen=True, slots=True)
class Connection:
    """A connection to a server.

    model: the model to use.
    server: the server that this command started; None if it was running before.
    """

    client: ApiClient
    model: ListedModel
    server: LocalServer | None = None

    def explain(self, error: ApiError) -> str:
        """Return the error message, or the last log lines of this command's server if
        it has ended.
        """
        failure = (
            self.server.read_failure() if error.is_unreachable and self.server is not None else None
        )
        return str(error) if failure is None else f"the server ended:\n{failure}"


@contextmanager
def connect(model: str | None, options: ConnectionOptions) -> Generator[Connection]:
    """Connect to the server of `--url` or of a URL given as MODEL; otherwise start a
    server for MODEL.

    If that fails, prints the reason and exits with code 2, or with that of the server.
    """
    url = options.url
    name = model
    if url is None and model is not None and is_url(model):
        url = model
        name = None
    api_key = find_api_key(options.api_key)
    try:
        if url is not None:
            with ApiClient(url, api_key) as client:
                yield Connection(client, choose_model(client, name))
            return
        with serve_model(model, api_key) as server, ApiClient(server.url, api_key) as client:
            yield Connection(client, choose_model(client, None), server)
    except ApiError as error:
        print_error(str(error))
        raise click.exceptions.Exit(2) from error


@contextmanager
def serve_model(
    model: str | None,
    api_key: str | None,
    *,
    port: int = 0,
    store: str = "none",
    shows_startup: bool = False,
) -> Generator[LocalServer]:
    """Call `start_server` for a command. If the server cannot start, exit with its
    code; it has printed the reason.
    """
    try:
        with start_server(
            model,
            print_status,
            api_key=api_key,
            port=port,
            store=store,
            shows_startup=shows_startup,
        ) as server:
            yield server
    except ServerFailed as error:
        raise click.exceptions.Exit(error.code or 2) from error


def choose_model(client: ApiClient, name: str | None) -> ListedModel:
    """Choose the model or alias of this name, or the first listed model if name is
    None. Raises ApiError.
    """
    models = client.list_models()
    if not models:
        raise ApiError(f"{client.url} lists no model")
    if name is None:
        return models[0]
    for model in models:
        if model.id == name:
            return model
    aliases = [
        alias for model in models if model.dragoman is not None for alias in model.dragoman.aliases
    ]
    if any(fnmatchcase(name, alias) for alias in aliases):
        return ListedModel(name)
    raise ApiError(
        f"{client.url} has no model {name!r}; it has {', '.join(model.id for model in models)}"
    )


def print_status(line: str) -> None:
    """Print a line that is not part of the answer to standard error."""
    click.echo(line, err=True)
