"""The rows of a CSV trace."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from .workload import WorkloadError


def read_rows(data: bytes) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows of a CSV with their line numbers; column names are lower-cased."""
    lines = io.TextIOWrapper(io.BytesIO(data), "utf-8-sig", newline="")
    try:
        for number, row in enumerate(csv.DictReader(lines), start=2):
            yield (
                number,
                {
                    (name or "").strip().lower(): (value or "").strip()
                    for name, value in row.items()
                },
            )
    except UnicodeError:
        raise WorkloadError("the file is not UTF-8 text") from None
