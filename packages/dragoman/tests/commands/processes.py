"""The `dragoman` command in a separate process, as its users run it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from dragoman.settings import ENV_PREFIX

TIMEOUT = 60.0
"""Timeout of a command in seconds."""
COMMAND = (sys.executable, "-m", "dragoman")


def build_environment(**variables: str) -> dict[str, str]:
    """Return the environment without Dragoman's settings, colors and proxies, and with
    these variables.
    """
    dropped = ("NO_PROXY", "no_proxy", "FORCE_COLOR")
    outside = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(ENV_PREFIX) and name not in dropped
    }
    return {**outside, "NO_COLOR": "1", **variables}


def run_command(
    *arguments: str, stdin: str | None = None, cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to completion.

    stdin: None means an empty input.
    """
    return subprocess.run(
        [*COMMAND, *arguments],
        input=stdin or "",
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
        cwd=cwd,
        env=build_environment(**variables),
    )


@contextmanager
def start_command(*arguments: str, **variables: str) -> Generator[subprocess.Popen[str]]:
    """Start a command with pipes, and kill it at the end of the block if it still runs."""
    pipe = subprocess.PIPE
    command = [*COMMAND, *arguments]
    environment = build_environment(**variables)
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def read_until(stream: IO[str], text: str) -> str:
    """Read the stream up to this text, which must occur."""
    seen = ""
    while text not in seen:
        character = stream.read(1)
        assert character, f"the output ended before {text!r}: {seen!r}"
        seen += character
    return seen
