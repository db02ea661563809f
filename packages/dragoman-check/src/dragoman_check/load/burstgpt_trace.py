"""BurstGPT (github.com/HPMLL/BurstGPT): CSV of Timestamp (seconds), Request tokens,
Response tokens.

A failed request has 0 response tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

from .csv_rows import read_rows
from .request_table import RequestTable
from .trace_options import Trace
from .workload import WorkloadError


def read_burstgpt(data: bytes) -> Trace:
    failed = 0

    def parse() -> Iterator[tuple[int, float, int, int]]:
        nonlocal failed
        begin: float | None = None
        for number, row in read_rows(data):
            try:
                at = float(row["timestamp"])
                inputs = int(float(row["request tokens"]))
                outputs = int(float(row["response tokens"]))
            except (KeyError, ValueError, OverflowError):
                raise WorkloadError(
                    f"line {number}: a BurstGPT trace has Timestamp, Request tokens, Response "
                    f"tokens"
                ) from None
            if inputs < 1 or outputs < 1:
                failed += 1
                continue
            begin = at if begin is None else begin
            yield number, at - begin, inputs, outputs

    requests = RequestTable.build("line", parse()).sort()
    return Trace(
        requests, (f"{failed} failed requests without tokens are skipped",) if failed else ()
    )
