"""Prints the sections of `.ci/run` that the changes since a commit need, as a JSON
array: `python .ci/sections.py BASE`.

A file that no rule names needs every section, and so does a base that is not known. The
workflow of GitHub runs these sections as parallel jobs; `bash .ci/run` runs all of
them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SECTIONS = (
    "check",
    "oldest",
    "newest",
    "host",
    "docs",
    "engines",
    "vllm",
    "ray",
    "clients",
    "mutants",
    "bench",
    "wheels",
)
TESTS = ("check", "oldest", "newest", "host", "docs", "mutants", "wheels")
RULES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("docs/*.py", ("check", "docs")),
    ("docs/*", ("docs",)),
    ("changelog.d/*", ("docs",)),
    ("mkdocs.yml", ("docs",)),
    (".github/ISSUE_TEMPLATE/*", ("docs",)),
    (".github/pull_request_template.md", ("docs",)),
    ("packages/*/README.md", ("docs", "wheels")),
    ("*.md", ("docs",)),
    ("deploy/*", ("check", "host")),
    ("training/*", ("check", "host")),
    ("benchmarks/*", ("check", "docs", "bench")),
    ("tests/clients/*", ("check", "clients")),
    ("tests/docs/*", ("check", "docs", "host")),
    ("tests/project/*", ("check", "docs")),
    ("tests/deploy/*", ("check", "host")),
    ("tests/training/*", ("check", "host")),
    ("tests/mutants.py", ("check", "mutants")),
    ("packages/dragoman-check/*", (*TESTS, "engines", "vllm")),
    ("packages/dragoman-sim/*", (*TESTS, "vllm", "bench")),
    ("packages/pytest-dragoman/*", TESTS),
)
"""The first pattern that matches a path counts; `*` matches `/` too."""


def choose_sections(paths: Iterable[str]) -> tuple[str, ...]:
    """The sections for changes of these files, in the order of `.ci/run`."""
    needed: set[str] = set()
    for path in paths:
        matches = (sections for pattern, sections in RULES if fnmatch(path, pattern))
        needed.update(next(matches, SECTIONS))
    return tuple(section for section in SECTIONS if section in needed)


def list_changes(base: str) -> list[str] | None:
    """Files that differ between `base` and HEAD; None if that cannot be said."""
    command = ["git", "diff", "--name-only", "--no-renames", f"{base}...HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else None


def main() -> None:
    changes = list_changes(sys.argv[1])
    json.dump(SECTIONS if changes is None else choose_sections(changes), sys.stdout)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
