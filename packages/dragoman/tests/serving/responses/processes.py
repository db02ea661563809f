"""Run servers in separate processes that share a store and can be killed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2

SCRIPT = """\
- match: {contains: slowly}
  reply: [{text: "Once upon a time"}, {delay: 60}, {text: "."}]
- reply: Yes, indeed.
  repeat: true
"""


@dataclass
class Process:
    process: subprocess.Popen[str]
    address: str

    def http(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(base_url=self.address, timeout=60)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@asynccontextmanager
async def serving(
    store: str, folder: Path, *options: str, script_text: str = SCRIPT
) -> AsyncGenerator[Process]:
    """Run a server. It is stopped at the end, unless it was killed before."""
    script = folder / "script.yaml"
    script.write_text(script_text)
    command = [
        sys.executable,
        "-m",
        "dragoman",
        "serve",
        f"scripted:{script}",
        "--port",
        "0",
        "--store",
        store,
        *options,
    ]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("DRAGOMAN_")
    }
    with (folder / "server.log").open("a") as log:
        process = subprocess.Popen(  # noqa: ASYNC220 - nothing else runs on this loop
            command,
            env=environment | {"XDG_STATE_HOME": str(folder)},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert process.stdout is not None
        found = re.search(r"http://[\w.]+:\d+", process.stdout.readline())
        assert found is not None, (folder / "server.log").read_text()
        yield Process(process, found[0])
    finally:
        process.terminate()
        process.wait(60)
        if process.stdout is not None:
            process.stdout.close()
