"""Detection of a log's format by its contents. Pure."""

from __future__ import annotations

import msgspec

from . import aiperf, genai_perf, guidellm, recording, table, vllm_bench
from .log import LogError, MeasuredLog

UNITS = tuple(table.UNITS)


def read_any(data: bytes, *, unit: str = "s") -> MeasuredLog:
    """Read a log of any supported format. unit: of times in a table whose columns do not name theirs. Raises
    LogError."""
    if unit not in table.UNITS:
        raise LogError(f"unit {unit!r} is not one of {', '.join(UNITS)}")
    # Tools' own formats first: their files are JSON too, and would pass for tables.
    for reader in (recording, vllm_bench, guidellm, genai_perf, aiperf):
        if reader.matches_format(data):
            return reader.read(data)
    begin = data.lstrip()[:1]
    if begin not in (b"{", b"["):
        return table.read_csv(data, unit)
    if begin == b"{" and _is_json_lines(data):
        return table.read_json_lines(data, unit)
    try:
        return table.read_json(data, unit)
    except msgspec.MsgspecError as error:
        raise LogError(f"this is not valid JSON: {error}") from None


def _is_json_lines(data: bytes) -> bool:
    """Whether the first line is a whole object and others follow, or it is the only one of a request."""
    first_line, _, rest = data.lstrip().partition(b"\n")
    try:
        row = msgspec.json.decode(first_line)
    except msgspec.MsgspecError:
        return False
    return bool(rest.strip()) or not any(isinstance(value, list) for value in row.values())
