"""Run `dragoman` in a separate process with the stub as its hub, and kill it during a
download.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2
import pytest
from tests.hub.stub import HubStub


def start(hub: HubStub, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start a command.

    folder: for the cache and the state; created if missing.
    """
    folder.mkdir(exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {
        "HF_ENDPOINT": hub.url,
        "HF_HUB_CACHE": str(folder / "cache"),
        "HF_HOME": str(folder / "home"),
        "XDG_STATE_HOME": str(folder / "state"),
    }
    command = [sys.executable, "-m", "dragoman", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, env=environment, stdout=pipe, stderr=pipe, text=True, cwd=folder
    )


def find_partial_files(folder: Path) -> dict[str, int]:
    """Return the bytes of each interrupted download by the name of its blob."""
    sizes: dict[str, int] = {}
    for file in folder.rglob("*.dragoman.incomplete"):
        # A download that completes meanwhile renames its file.
        with suppress(FileNotFoundError):
            sizes[file.name.partition(".")[0]] = file.stat().st_size
    return sizes


def find_resumable_files(hub: HubStub, folder: Path) -> dict[str, int]:
    """Return the interrupted downloads that are neither empty nor complete."""
    sizes = {
        hashlib.sha256(data).hexdigest(): len(data)
        for repository in hub.repositories.values()
        for data in repository.files.values()
    }
    return {
        blob: size
        for blob, size in find_partial_files(folder).items()
        if 0 < size < sizes.get(blob, 0)
    }


def kill_during_download(hub: HubStub, folder: Path, *arguments: str) -> dict[str, int]:
    """Start a command, kill it while a large file stalls halfway, and return the
    downloads to resume.

    Then clear the hub's recorded requests, and let it answer in full.
    """
    hub.stalled.clear()
    hub.released.clear()
    hub.stall_after = 5_000
    with start(hub, folder, *arguments) as process:
        try:
            assert hub.stalled.wait(60), "no large file was requested"
            # The bytes are on disk when a partial file contains them.
            for _ in range(600):
                if find_resumable_files(hub, folder):
                    break
                with pytest.raises(subprocess.TimeoutExpired):
                    process.wait(0.05)
        finally:
            # Also if this fails: leaving the block waits for the process.
            process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
    hub.released.set()
    hub.stall_after = None
    hub.requests.clear()
    return find_resumable_files(hub, folder)


@contextmanager
def serve(
    hub: HubStub, folder: Path, *arguments: str
) -> Generator[tuple[httpx2.Client, list[str]]]:
    """Run a server until its model is loaded. After it has stopped, the list contains
    its log.
    """
    logged: list[str] = []
    # Without the access log: the pipe is not read meanwhile, and would fill up.
    with start(
        hub, folder, "serve", *arguments, "--port", "0", "--store", "none", "--no-access-log"
    ) as process:
        try:
            assert process.stdout is not None
            found = re.match(r"Serving \S.* on (http://[0-9.:]+)", process.stdout.readline())
            assert found is not None, process.communicate(timeout=60)[1]
            with httpx2.Client(base_url=found[1], timeout=60) as client:
                while client.get("/readyz").status_code != 200:
                    assert process.poll() is None, process.communicate(timeout=60)[1]
                yield client, logged
            process.terminate()
            logged += process.communicate(timeout=60)[1].splitlines()
        finally:
            process.kill()
