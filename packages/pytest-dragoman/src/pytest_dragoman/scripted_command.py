"""`dragoman scripted --for-tests`: the server of the fixture as a program, for tests in
other languages.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
import threading
from dataclasses import dataclass
from typing import Annotated

import click

from dragoman_cli import Command, Option, build_command

HELP = """Start the scripted server of pytest-dragoman for tests in other languages.

It listens on the loopback interface, and prints one line of JSON with its addresses
when it is ready. The control route at `control_url` queues replies, lists the requests,
and judges the client. The server ends with SIGTERM, or when its standard input, if that
is a pipe, is closed.
"""


@dataclass(frozen=True, kw_only=True)
class ScriptedOptions:
    for_tests: Annotated[
        bool,
        Option(
            "--for-tests",
            help="Required: anyone on this machine can then change what the server replies.",
        ),
    ] = False
    port: Annotated[int, Option(metavar="PORT", help="By default a free one.")] = 0


def _run(options: ScriptedOptions) -> None:
    if not options.for_tests:
        raise ValueError("--for-tests is required; `dragoman serve scripted` has no control route")
    from .control_app import PREFIX, ControlApp  # noqa: PLC0415 - imports the server
    from .event_loop_thread import EventLoopThread  # noqa: PLC0415 - as above
    from .scripted_server import Dragoman  # noqa: PLC0415 - as above

    # Before the addresses are printed: the signal may come as soon as they are read.
    _end_with_signals()
    loop_thread = EventLoopThread()
    server = Dragoman(loop_thread, port=options.port, wrap_app=ControlApp)
    addresses = {
        "base_url": server.base_url,
        "openai_base_url": server.openai_base_url,
        "control_url": f"{server.base_url}{PREFIX.rstrip('/')}",
        "environment": dict(server.environment),
    }
    try:
        click.echo(json.dumps(addresses))
        sys.stdout.flush()
        _wait_for_end()
    finally:
        server.close()
        loop_thread.close()


def _end_with_signals() -> None:
    def end(_number: int, _frame: object) -> None:
        raise click.exceptions.Exit(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)


def _wait_for_end() -> None:
    mode = os.fstat(0).st_mode
    # A test runner that dies leaves no server behind. Node's pipes are sockets.
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        while os.read(0, 4096):
            pass
    else:
        threading.Event().wait()


COMMAND: Command = build_command(
    "scripted", ScriptedOptions, _run, help=HELP, errors=(ValueError, OSError)
)
