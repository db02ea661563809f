"""Reads a log of any supported format, which is detected from the content."""

from __future__ import annotations

import msgspec

from . import generic_table
from .aiperf import is_aiperf, read_aiperf
from .dragoman_recording import is_recording, read_recording
from .genai_perf import is_genai_perf, read_genai_perf
from .guidellm import is_guidellm, read_guidellm
from .measured_log import LogError, MeasuredLog
from .vllm_bench import is_vllm_bench, read_vllm_bench

UNITS = tuple(generic_table.UNITS)

_TOOLS = (
    (is_recording, read_recording),
    (is_vllm_bench, read_vllm_bench),
    (is_guidellm, read_guidellm),
    (is_genai_perf, read_genai_perf),
    (is_aiperf, read_aiperf),
)


def read_any(data: bytes, *, unit: str = "s") -> MeasuredLog:
    """Read a log of any supported format.

    unit: unit of times in a table whose column names do not state it.

    Raises:
        LogError: the log is invalid, or of an unknown format.
    """
    if unit not in generic_table.UNITS:
        raise LogError(f"unit {unit!r} is not one of {', '.join(UNITS)}")
    # The formats of tools first: their files are JSON too, and would be read as tables.
    for matches_format, read in _TOOLS:
        if matches_format(data):
            return read(data)
    begin = data.lstrip()[:1]
    if begin not in (b"{", b"["):
        return generic_table.read_csv(data, unit)
    if begin == b"{":
        first_line, _, further_lines = data.lstrip().partition(b"\n")
        try:
            first_row: dict[str, object] | None = msgspec.json.decode(
                first_line, type=dict[str, object]
            )
        except msgspec.MsgspecError:
            first_row = None
        # JSON Lines if the first line is a complete object, and more lines follow or it
        # is a single request.
        if first_row is not None and (
            further_lines.strip()
            or not any(isinstance(value, list) for value in first_row.values())
        ):
            return generic_table.read_json_lines(data, unit)
    try:
        return generic_table.read_json(data, unit)
    except msgspec.MsgspecError as error:
        raise LogError(f"this is not valid JSON: {error}") from None
