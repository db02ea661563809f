"""Run a Ray cluster on this machine with `dragoman deploy`, and control it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tests.launch.multiprocess.processes import Client

from tests.loopback import find_free_port

STARTUP = 400.0
"""Startup timeout of a cluster in seconds; an idle machine needs 5 to 20 s."""


T = TypeVar("T")


def wait_until(condition: Callable[[], T]) -> T:
    """Poll until the result is truthy. Ray does not notify other processes of changes
    of its replicas.
    """
    pause = threading.Event()
    for _ in range(1200):
        if answer := condition():
            return answer
        pause.wait(0.1)
    raise AssertionError("it has not happened in two minutes")


@dataclass
class Cluster:
    """A running cluster.

    log: the command's output so far.
    """

    url: str
    process: subprocess.Popen[str]
    log: list[str]

    @property
    def client(self) -> Client:
        return Client(self.url.removeprefix("http://"))

    def list_processes(self, title: str) -> list[int]:
        """Return the processes whose command line contains this name.

        Ray appends the method that an actor runs at the moment to its name.
        """
        name = re.compile(rf"{re.escape(title)}(?!\w)")
        return [id for id, command in list_descendants(self.process.pid) if name.search(command)]

    def list_replicas(self) -> list[int]:
        """Return the process ids of the replicas."""
        return self.list_processes("ServeReplica:dragoman:Dragoman")

    def list_ready(self, deployment: str = "Dragoman") -> list[int]:
        """Return the process ids of the replicas behind HAProxy that serve."""
        started = re.findall(
            rf"ServeReplica:dragoman:{deployment} pid=(\d+)\)\S* .* -- Started HTTP server",
            "".join(self.log),
        )
        return sorted(
            {int(id) for id in started}
            & set(self.list_processes(f"ServeReplica:dragoman:{deployment}"))
        )

    def list_direct_urls(self) -> list[str]:
        """Return the replicas' own addresses, behind HAProxy."""
        found = re.findall(
            r"dragoman_Dragoman \S+ -- Started HTTP server on port (\d+)", "".join(self.log)
        )
        return [f"http://127.0.0.1:{port}" for port in found]


def list_descendants(root: int) -> list[tuple[int, str]]:
    """Return process ids and command lines of all descendants of this process."""
    parents: dict[int, int] = {}
    commands: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            id = int(folder.name)
            status = (folder / "stat").read_text()
            commands[id] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
            parents[id] = int(status.rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue  # It has just ended.
    found = {root}
    while added := {id for id, parent in parents.items() if parent in found} - found:
        found |= added
    return [(id, commands[id]) for id in sorted(found - {root})]


@contextmanager
def run_cluster(
    *arguments: str, settings: str = "", environment: dict[str, str] | None = None
) -> Generator[Cluster]:
    """Run `dragoman deploy` with these arguments until the end of the context.
    settings: of the file.
    """
    # Ray's sockets are in it, and their paths are limited to 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    port = find_free_port()
    (folder / "dragoman.yaml").write_text(f"port: {port}\n{settings}")
    # A limit of open files as on small machines, too low for HAProxy with Ray's default
    # number of connections.
    limit = ["sh", "-c", 'ulimit -n 4096; exec "$@"', "sh"]
    command = [
        *limit,
        sys.executable,
        "-m",
        "dragoman",
        "deploy",
        "--config",
        str(folder / "dragoman.yaml"),
        *arguments,
    ]
    process = subprocess.Popen(
        command,
        env=build_environment(folder) | (environment or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    log: list[str] = []
    is_up = threading.Event()
    reader = threading.Thread(target=read_log, args=(process, log, is_up))
    reader.start()
    try:
        is_up.wait(STARTUP)
        assert process.poll() is None, "".join(log[-20:])
        assert any(line.startswith("Serving on ") for line in log), "".join(log[-20:])
        yield Cluster(f"http://127.0.0.1:{port}", process, log)
    finally:
        stop(process)
        reader.join()
        assert process.stdout is not None
        process.stdout.close()
        shutil.rmtree(folder, ignore_errors=True)


def build_environment(folder: Path) -> dict[str, str]:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("RAY_", "DRAGOMAN_"))
    }
    # Caches of bytecode: dozens of processes import the same modules.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    source = str(Path(__file__).parents[2] / "src")
    return environment | {
        "HOME": str(folder),
        "PYTHONPATH": os.pathsep.join(filter(None, (source, environment.get("PYTHONPATH")))),
        "RAY_TMPDIR": str(folder),
        "RAY_DEDUP_LOGS": "0",
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "h" / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "h" / "admin.sock"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(folder / "h" / "metrics.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder / "h"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "h" / "state"),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(find_free_port()),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(find_free_port()),
        "XDG_STATE_HOME": str(folder),
    }


def read_log(process: subprocess.Popen[str], log: list[str], is_up: threading.Event) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        log.append(line)
        if line.startswith("Serving on "):
            is_up.set()
    is_up.set()


def stop(process: subprocess.Popen[str]) -> None:
    """Stop the cluster and all of its remaining processes."""
    started = list_descendants(process.pid)
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for id, command in started:
        try:
            now = Path(f"/proc/{id}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
            if now == command:
                os.kill(id, signal.SIGKILL)
        except (OSError, ProcessLookupError):
            continue
