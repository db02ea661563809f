"""Builds the wheels and source archives of all packages: `python
requirements/build_dist.py dist`.

Everything is built twice, in different folders, and the bytes must be the same: the
time stamps are those of the last commit (`SOURCE_DATE_EPOCH`), and hatchling, which the
locks pin, writes sorted archives. A wheel is built from the unpacked source archive, so
that the archive is known to be complete. Nothing is downloaded.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUFFIXES = (".whl", ".tar.gz")


def read_commit_time() -> str:
    """Unix seconds, for SOURCE_DATE_EPOCH."""
    command = ["git", "log", "-1", "--format=%ct"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def build(folder: Path, target: str, out: Path, epoch: str) -> Path:
    """Build one archive of the package in `folder`. target: sdist or wheel."""
    before = set(out.iterdir())
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch}
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "-d", str(out)]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{folder.name}: the {target} could not be built:\n{done.stderr}")
    (built,) = set(out.iterdir()) - before
    return built


def build_packages(out: Path, epoch: str) -> dict[str, bytes]:
    """Build all packages into `out`, an empty folder; return the files by name."""
    for file in sorted(ROOT.glob("packages/*/pyproject.toml")):
        archive = build(file.parent, "sdist", out, epoch)
        with tempfile.TemporaryDirectory() as unpacked:
            shutil.unpack_archive(archive, unpacked)
            (source,) = Path(unpacked).iterdir()
            build(source, "wheel", out, epoch)
    return {file.name: file.read_bytes() for file in sorted(out.iterdir())}


def main(out: Path) -> None:
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or read_commit_time()
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        files = build_packages(Path(first), epoch)
        again = build_packages(Path(second), epoch)
    changed = [name for name in files | again if files.get(name) != again.get(name)]
    if changed:
        raise SystemExit(f"built twice, these files differ: {', '.join(sorted(changed))}")
    out.mkdir(parents=True, exist_ok=True)
    for old in out.iterdir():
        if old.name.endswith(SUFFIXES):
            old.unlink()
    for name, content in files.items():
        (out / name).write_bytes(content)
        sys.stdout.write(f"{out / name} ({len(content):,} bytes)\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
