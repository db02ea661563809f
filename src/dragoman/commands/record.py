"""`dragoman record` and `dragoman replay`: a proxy that keeps what passes, and a server that plays it again.

Knows options and sockets; what is kept and how it is played is in `recording`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from .options import command

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from ..settings import Settings

RECORD = """Proxy requests to an upstream, and record them with their responses and timings in a file.

Point a client's base URL here instead of at the upstream. API keys are forwarded and never recorded; prompts and
responses are, so protect the file accordingly.
"""
REPLAY = """Replay recorded responses byte for byte, with the original timing. No model is needed."""


@dataclass(frozen=True, kw_only=True)
class Listening:
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, typer.Option(help="Port to listen on; 0 picks a free port.")] = 8000
    allowed_hosts: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="Additional host names to accept in the Host header, besides localhost, comma-separated.",
        ),
    ] = ""
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Allow a non-loopback address. This command has no authentication.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class RecordOptions(Listening):
    upstream: Annotated[str, typer.Option(metavar="URL", help="Server to forward requests to: https://api.openai.com")]
    out: Annotated[
        str,
        typer.Option(
            "--out", "-o", metavar="FILE", help="Recording; if the file exists, the new exchanges are appended."
        ),
    ]


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(Listening):
    file: Annotated[str, typer.Argument(metavar="FILE", help="Recording written by `dragoman record`.")]
    time_scale: Annotated[float, typer.Option(help="Replay speed: 10 is ten times as fast, inf is without delays.")] = (
        1.0
    )
    match: Annotated[
        str,
        typer.Option(
            help="How to find the recorded response: `question`, by the same body; `path`, the next one for the same "
            "path."
        ),
    ] = "question"


def _record(options: RecordOptions) -> None:
    import time  # noqa: PLC0415

    import httpx2  # noqa: PLC0415 - as the server below: `--help` does not wait for it

    from ..recording.recorder import Recorder  # noqa: PLC0415
    from ..recording.writer import TapeWriter  # noqa: PLC0415

    settings = _settings(options)
    parts = urlsplit(options.upstream)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"--upstream: {options.upstream!r} is not a URL such as https://api.openai.com")
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=256)
    timeout = httpx2.Timeout(None, connect=10.0)
    client = httpx2.AsyncClient(base_url=options.upstream, timeout=timeout, limits=limits, follow_redirects=False)
    name = f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")
    tape = TapeWriter(Path(options.out), name)
    recorder = Recorder(client, tape, now=time.perf_counter, hosts=_hosts(settings))
    _serve(recorder, settings, f"Recording {name} to {options.out}")


def _replay(options: ReplayOptions) -> None:
    from ..recording.player import Player  # noqa: PLC0415 - as above
    from ..recording.tape import read  # noqa: PLC0415

    settings = _settings(options)
    if options.match not in ("question", "path"):
        raise ValueError(f"--match: {options.match!r} must be `question` or `path`")
    exchanges = read(Path(options.file).read_bytes().splitlines())
    player = Player(exchanges, hosts=_hosts(settings), time_scale=options.time_scale, match=options.match)
    _serve(player, settings, f"Replaying {len(exchanges)} exchanges from {options.file}")


def _settings(options: Listening) -> Settings:
    """By the rules of `serve`. Raises SettingsError."""
    from ..settings import load  # noqa: PLC0415

    said: dict[str, object] = {"host": options.host, "port": str(options.port)}
    if options.no_auth:
        said["no_auth"] = True
    if options.allowed_hosts:
        said["allowed_hosts"] = options.allowed_hosts.split(",")
    return load(said, {})


def _hosts(settings: Settings) -> tuple[str, ...]:
    from ..serving.host import allowed_hosts  # noqa: PLC0415

    return allowed_hosts(settings.host, settings.allowed_hosts)


def _serve(app: ASGIApp, settings: Settings, what: str) -> None:
    import uvicorn  # noqa: PLC0415

    from ..launch.listener import listen  # noqa: PLC0415
    from ..launch.server import exit_in_peace, uvicorn_config  # noqa: PLC0415

    config = uvicorn_config(app, settings)
    # Whatever headers there are come from the upstream; an answer that breaks off is no fault of this server.
    config.date_header = False
    config.log_level = "critical"
    listener, server = listen(settings), uvicorn.Server(config)
    exit_in_peace(server)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    typer.echo(f"{what} on http://{host}:{listener.getsockname()[1]}")
    server.run(sockets=[listener])


record = command(RecordOptions, _record, about=RECORD)
replay = command(ReplayOptions, _replay, about=REPLAY)
