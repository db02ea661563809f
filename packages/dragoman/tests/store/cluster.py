"""Run a PostgreSQL server: a new cluster in a temporary folder, reachable only by a
Unix socket.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

MISSING = "no PostgreSQL server is installed (Debian: apt-get install postgresql)"


def programs() -> Path | None:
    """Return the folder of initdb and pg_ctl: on the PATH, or the newest in Debian's
    location.
    """
    found = shutil.which("pg_ctl")
    if found is not None:
        return Path(found).parent
    versions = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"), key=lambda path: float(path.parts[4])
    )
    return versions[-1].parent if versions else None


@contextmanager
def cluster(bin: Path) -> Generator[str]:
    """Run a server and yield a DSN without a query. It does not fsync: no test
    simulates a power failure.
    """
    home = Path(tempfile.mkdtemp(prefix="dragoman-pg-"))
    user = None
    if os.geteuid() == 0:
        # PostgreSQL refuses to run as root.
        user = "postgres" if Path("/var/lib/postgresql").exists() else "nobody"
        shutil.chown(home, user)

    def run(program: str, *arguments: str) -> None:
        with (home / "said").open("ab") as log:
            subprocess.run(
                [bin / program, "-D", home / "data", *arguments],
                check=True, user=user, cwd=home, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    try:
        run("initdb", "-U", "dragoman", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C")
        run(
            "pg_ctl",
            "-w",
            "-o",
            f"-c listen_addresses= -c unix_socket_directories={home} -c fsync=off",
            "start",
        )
        try:
            yield f"postgresql://dragoman@/postgres?host={home}"
        finally:
            run("pg_ctl", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(home, ignore_errors=True)
