"""A PostgreSQL server of the test's own: a fresh cluster in a temporary folder, reached by a Unix socket only."""

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
    """Where initdb and pg_ctl are: on the PATH, or where Debian keeps them; the newest."""
    found = shutil.which("pg_ctl")
    if found is not None:
        return Path(found).parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"), key=lambda path: float(path.parts[4]))
    return versions[-1].parent if versions else None


@contextmanager
def cluster(bin: Path) -> Generator[str]:
    """Yields a DSN without a query. It does not wait for the disk: no test cuts the power."""
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
        run("pg_ctl", "-w", "-o", f"-c listen_addresses= -c unix_socket_directories={home} -c fsync=off", "start")
        try:
            yield f"postgresql://dragoman@/postgres?host={home}"
        finally:
            run("pg_ctl", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(home, ignore_errors=True)
