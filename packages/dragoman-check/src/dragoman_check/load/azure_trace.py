"""Azure LLM inference traces (github.com/Azure/AzurePublicDataset): CSV of TIMESTAMP,
ContextTokens, GeneratedTokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime

from .csv_rows import read_rows
from .workload import WorkloadError

# A fraction of a second with more than six digits.
_FRACTION = re.compile(r"\.(\d{6})\d+")


def parse_azure(data: bytes) -> Iterator[tuple[int, float, int, int]]:
    begin: float | None = None
    for number, row in read_rows(data):
        try:
            # Azure writes seven digits of a second; Python parses at most six.
            at = datetime.fromisoformat(_FRACTION.sub(r".\1", row["timestamp"])).timestamp()
            inputs = int(row["contexttokens"])
            outputs = int(row["generatedtokens"])
        except (KeyError, ValueError):
            raise WorkloadError(
                f"line {number}: an Azure trace has TIMESTAMP, ContextTokens, GeneratedTokens"
            ) from None
        begin = at if begin is None else begin
        if inputs > 0 and outputs > 0:
            yield number, at - begin, inputs, outputs
