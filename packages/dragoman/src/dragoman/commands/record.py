"""`dragoman record` and `dragoman replay`: a recording proxy, and a server that replays
the recording.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import click

from dragoman_cli import Argument, Option, build_command

from .errors import COMMAND_ERRORS

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from ..settings import Settings

RECORD_HELP = """Proxy requests to an upstream, and record them with their responses and timings in
a file.

Point a client's base URL here instead of at the upstream. API keys are forwarded and
never recorded; prompts and responses are, so protect the file accordingly.
"""
REPLAY_HELP = (
    """Replay recorded responses byte for byte, with the original timing. No model is needed."""
)


@dataclass(frozen=True, kw_only=True)
class ListenOptions:
    host: Annotated[str, Option(help="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Option(help="Port to listen on; 0 picks a free port.")] = 8000
    allowed_hosts: Annotated[
        str,
        Option(
            metavar="NAMES",
            help="Additional host names to accept in the Host header, besides localhost, "
            "comma-separated.",
        ),
    ] = ""
    no_auth: Annotated[
        bool,
        Option(
            "--no-auth", help="Allow a non-loopback address. This command has no authentication."
        ),
    ] = False


@dataclass(frozen=True, kw_only=True)
class RecordOptions(ListenOptions):
    upstream: Annotated[
        str,
        Option(metavar="URL", help="Server to forward requests to: https://api.openai.com"),
    ]
    out: Annotated[
        str,
        Option(
            "--out",
            "-o",
            metavar="FILE",
            help="Recording; if the file exists, the new exchanges are appended.",
        ),
    ]


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(ListenOptions):
    file: Annotated[str, Argument(metavar="FILE", help="Recording written by `dragoman record`.")]
    time_scale: Annotated[
        float, Option(help="Replay speed: 10 is ten times as fast, inf is without delays.")
    ] = 1.0
    match: Annotated[
        str,
        Option(
            help="How to find the recorded response: `question`, by the same body; `path`, the "
            "next one for the same "
            "path."
        ),
    ] = "question"


def _run_record(options: RecordOptions) -> None:
    import time  # noqa: PLC0415
    from math import inf  # noqa: PLC0415

    from dragoman_http import (  # noqa: PLC0415 - imports inside the functions keep `--help` fast
        ClientTimeouts,
        HttpClient,
        parse_url,
    )

    from ..recording.cassette import CassetteWriter  # noqa: PLC0415
    from ..recording.proxy import RecordingProxy  # noqa: PLC0415

    settings = _build_settings(options)
    upstream_url = urlsplit(options.upstream)
    if upstream_url.scheme not in ("http", "https") or not upstream_url.hostname:
        raise ValueError(
            f"--upstream: {options.upstream!r} is not a URL such as https://api.openai.com"
        )
    if "?" in options.upstream or "#" in options.upstream:
        raise ValueError(
            "--upstream: a URL without query and fragment is required; clients send their own query"
        )
    try:
        parse_url(options.upstream)
    except ValueError as error:
        raise ValueError(f"--upstream: {error}") from None
    client = HttpClient(ClientTimeouts(connect=10.0, read=inf), decodes_bodies=False, max_idle=256)
    name = f"{upstream_url.scheme}://{upstream_url.hostname}" + (
        f":{upstream_url.port}" if upstream_url.port else ""
    )
    cassette = CassetteWriter(Path(options.out), name)
    proxy = RecordingProxy(
        client,
        options.upstream,
        cassette,
        now=time.perf_counter,
        hosts=_find_allowed_hosts(settings),
    )
    _serve_app(proxy, settings, f"Recording {name} to {options.out}")


def _run_replay(options: ReplayOptions) -> None:
    from ..recording.cassette import read_cassette  # noqa: PLC0415 - as above
    from ..recording.replay import ReplayApp  # noqa: PLC0415 - as above

    settings = _build_settings(options)
    if options.match not in ("question", "path"):
        raise ValueError(f"--match: {options.match!r} must be `question` or `path`")
    exchanges = read_cassette(Path(options.file).read_bytes().splitlines())
    app = ReplayApp(
        exchanges,
        hosts=_find_allowed_hosts(settings),
        time_scale=options.time_scale,
        match_mode=options.match,
    )
    _serve_app(app, settings, f"Replaying {len(exchanges)} exchanges from {options.file}")


def _build_settings(options: ListenOptions) -> Settings:
    """Build the server's settings, with the same validation as for `serve`. Raises
    SettingsError.
    """
    from ..settings import load_settings  # noqa: PLC0415

    options_set: dict[str, object] = {"host": options.host, "port": str(options.port)}
    if options.no_auth:
        options_set["no_auth"] = True
    if options.allowed_hosts:
        options_set["allowed_hosts"] = options.allowed_hosts.split(",")
    return load_settings(options_set, {})


def _find_allowed_hosts(settings: Settings) -> tuple[str, ...]:
    from ..serving.host_header import build_allowed_hosts  # noqa: PLC0415

    # The upstream may need no key.
    return build_allowed_hosts(settings.host, settings.allowed_hosts, requires_key=False)


def _serve_app(app: ASGIApp, settings: Settings, description: str) -> None:
    import uvicorn  # noqa: PLC0415

    from ..launch.listener import listen  # noqa: PLC0415
    from ..launch.signals import install_signal_handlers  # noqa: PLC0415
    from ..launch.uvicorn_config import build_uvicorn_config  # noqa: PLC0415

    config = build_uvicorn_config(app, settings)
    # The Date header comes from the upstream, and a truncated response is not an error
    # of this server.
    config.date_header = False
    config.log_level = "critical"
    listener = listen(settings)
    server = uvicorn.Server(config)
    install_signal_handlers(server)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    click.echo(f"{description} on http://{host}:{listener.getsockname()[1]}")
    server.run(sockets=[listener])


RECORD = build_command(
    "record",
    RecordOptions,
    _run_record,
    help=RECORD_HELP,
    short_help="Record requests to a server and its responses.",
    errors=COMMAND_ERRORS,
)
REPLAY = build_command(
    "replay",
    ReplayOptions,
    _run_replay,
    help=REPLAY_HELP,
    short_help="Replay recorded responses with their timing.",
    errors=COMMAND_ERRORS,
)
