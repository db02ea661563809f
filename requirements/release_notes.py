"""Prints the section of CHANGELOG.md for a version: `python
requirements/release_notes.py 0.1.0 dist`.

It fails if there is no such section, if a fragment is left in changelog.d, or if a
package of the folder is missing or has another version.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def read_section(version: str) -> str:
    """The text below the heading of the version, without the heading."""
    changelog = (ROOT / "CHANGELOG.md").read_text()
    heading = rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)\n(.*?)(?=^## |\Z)"
    found = re.search(heading, changelog, re.MULTILINE | re.DOTALL)
    if found is None:
        raise SystemExit(f"CHANGELOG.md has no section {version}")
    return found[1].strip() + "\n"


def check_packages(version: str, folder: Path) -> None:
    """Check that the folder has a wheel and a source archive of each package."""
    names = (file.parent.name for file in ROOT.glob("packages/*/pyproject.toml"))
    stems = [f"{name.replace('-', '_')}-{version}" for name in names]
    expected = {f"{stem}{end}" for stem in stems for end in ("-py3-none-any.whl", ".tar.gz")}
    present = {file.name for file in folder.iterdir() if file.suffix in (".whl", ".gz")}
    if present != expected:
        raise SystemExit(f"{folder}: {sorted(present ^ expected)} missing or unexpected")


def check_fragments() -> None:
    left = [file.name for file in (ROOT / "changelog.d").glob("*.md") if file.name != "README.md"]
    if left:
        raise SystemExit(f"changelog.d has fragments of the next release: {sorted(left)}")


if __name__ == "__main__":
    check_packages(sys.argv[1], Path(sys.argv[2]))
    check_fragments()
    sys.stdout.write(read_section(sys.argv[1]))
