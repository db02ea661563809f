"""`dragoman record` and `dragoman replay`: a proxy that keeps what passes, and a server that plays it again.

Knows options and sockets; what is kept and how it is played is in `recording`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from .options import build_command

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from ..settings import Settings

RECORD_HELP = """Pass requests on to an upstream, and keep them, their answers and all times in a file.

Point a client's base URL here instead of at the upstream; its API key goes on and is never written. Prompts and
answers are: treat the file as you would treat them.
"""
REPLAY_HELP = (
    """Answer recorded requests as they were answered, byte for byte and beat for beat. No model is behind it."""
)


@dataclass(frozen=True, kw_only=True)
class ListenOptions:
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(help="The port to listen on; 0 takes a free one.")] = 8000
    allowed_hosts: Annotated[
        str, typer.Option(metavar="NAMES", help="Host names to answer for, besides localhost, with commas.")
    ] = ""
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Listen on other addresses than this machine's own: it asks for no key.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class RecordOptions(ListenOptions):
    upstream: Annotated[str, typer.Option(metavar="URL", help="Where requests go: https://api.openai.com")]
    out: Annotated[str, typer.Option("--out", "-o", metavar="FILE", help="Where they are kept; it is appended to.")]


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(ListenOptions):
    file: Annotated[str, typer.Argument(metavar="FILE", help="What `dragoman record` has written.")]
    time_scale: Annotated[float, typer.Option(help="10 is ten times as fast, inf at once.")] = 1.0
    match: Annotated[
        str, typer.Option(help="question: the same body; path: the next recorded answer of that path.")
    ] = "question"


def _run_record(options: RecordOptions) -> None:
    import time  # noqa: PLC0415

    import httpx2  # noqa: PLC0415 - as the server below: `--help` does not wait for it

    from ..recording.recorder import Recorder  # noqa: PLC0415
    from ..recording.writer import CassetteWriter  # noqa: PLC0415

    settings = _build_settings(options)
    upstream_url = urlsplit(options.upstream)
    if upstream_url.scheme not in ("http", "https") or not upstream_url.hostname:
        raise ValueError(f"--upstream: {options.upstream!r} is no URL such as https://api.openai.com")
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=256)
    timeout = httpx2.Timeout(None, connect=10.0)
    client = httpx2.AsyncClient(base_url=options.upstream, timeout=timeout, limits=limits, follow_redirects=False)
    name = f"{upstream_url.scheme}://{upstream_url.hostname}" + (f":{upstream_url.port}" if upstream_url.port else "")
    cassette = CassetteWriter(Path(options.out), name)
    recorder = Recorder(client, cassette, now=time.perf_counter, hosts=_find_allowed_hosts(settings))
    _serve_app(recorder, settings, f"Recording {name} to {options.out}")


def _run_replay(options: ReplayOptions) -> None:
    from ..recording.cassette import read_cassette  # noqa: PLC0415
    from ..recording.player import Player  # noqa: PLC0415 - as above

    settings = _build_settings(options)
    if options.match not in ("question", "path"):
        raise ValueError(f"--match: {options.match!r} is neither question nor path")
    exchanges = read_cassette(Path(options.file).read_bytes().splitlines())
    player = Player(
        exchanges, hosts=_find_allowed_hosts(settings), time_scale=options.time_scale, match_mode=options.match
    )
    _serve_app(player, settings, f"Playing {len(exchanges)} exchanges of {options.file}")


def _build_settings(options: ListenOptions) -> Settings:
    """By the rules of `serve`. Raises SettingsError."""
    from ..settings import load_settings  # noqa: PLC0415

    options_set: dict[str, object] = {"host": options.host, "port": str(options.port)}
    if options.no_auth:
        options_set["no_auth"] = True
    if options.allowed_hosts:
        options_set["allowed_hosts"] = options.allowed_hosts.split(",")
    return load_settings(options_set, {})


def _find_allowed_hosts(settings: Settings) -> tuple[str, ...]:
    from ..serving.host import build_allowed_hosts  # noqa: PLC0415

    return build_allowed_hosts(settings.host, settings.allowed_hosts)


def _serve_app(app: ASGIApp, settings: Settings, description: str) -> None:
    import uvicorn  # noqa: PLC0415

    from ..launch.listener import listen  # noqa: PLC0415
    from ..launch.server import build_uvicorn_config, install_signal_handlers  # noqa: PLC0415

    config = build_uvicorn_config(app, settings)
    # Whatever headers there are come from the upstream; an answer that breaks off is no fault of this server.
    config.date_header = False
    config.log_level = "critical"
    listener, server = listen(settings), uvicorn.Server(config)
    install_signal_handlers(server)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    typer.echo(f"{description} on http://{host}:{listener.getsockname()[1]}")
    server.run(sockets=[listener])


record = build_command(RecordOptions, _run_record, about=RECORD_HELP)
replay = build_command(ReplayOptions, _run_replay, about=REPLAY_HELP)
