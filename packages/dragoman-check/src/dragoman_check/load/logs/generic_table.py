"""A generic table of requests: CSV, JSON (a list, or an object of lists) or JSON Lines.

A request needs the times of its arrival, first token and last token, and its token
counts. Columns are recognized under many names; a suffix gives the unit (`ttft_ms`,
`latency_s`), otherwise the default unit applies.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import cast

import msgspec

from ..request_timing import Timing
from ..trace_file import read_workload
from ..workload import WorkloadError, WorkloadRequest
from .measured_log import LogError, MeasuredLog, build_log

COLUMN_NAMES: Mapping[str, tuple[str, ...]] = {
    "id": ("id", "request_id", "req_id"),
    "arrival": (
        "arrival",
        "arrival_time",
        "start",
        "start_time",
        "request_start",
        "request_start_time",
        "sent",
        "send_time",
        "submit_time",
        "timestamp",
    ),
    "scheduled": ("scheduled", "scheduled_time"),
    "first": ("first_token", "first_token_time", "first_token_at"),
    "last": (
        "last_token",
        "last_token_time",
        "end",
        "end_time",
        "finish_time",
        "request_end",
        "request_end_time",
    ),
    "ttft": ("ttft", "time_to_first_token"),
    "latency": (
        "latency",
        "e2e",
        "e2el",
        "e2e_latency",
        "request_latency",
        "total_latency",
        "duration",
        "total_time",
    ),
    "tpot": ("tpot", "time_per_output_token"),
    "input": (
        "input_tokens",
        "prompt_tokens",
        "num_prompt_tokens",
        "input_len",
        "prompt_len",
        "input_length",
        "isl",
        "input_sequence_length",
    ),
    "output": (
        "output_tokens",
        "completion_tokens",
        "num_output_tokens",
        "generated_tokens",
        "output_len",
        "output_length",
        "osl",
        "output_sequence_length",
    ),
    "error": ("error",),
}
# Seconds per unit.
UNITS = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
FORMAT = "table"
Row = Mapping[str, object]


def read_csv(data: bytes, unit: str) -> MeasuredLog:
    """Read a CSV file with a header line. Raises LogError."""
    try:
        text = data.decode("utf-8-sig")
        dialect = csv.Sniffer().sniff(text[:4096], delimiters=",;\t")
    except (UnicodeError, csv.Error):
        raise LogError("this is neither JSON nor a CSV with a heading") from None
    return _build_table_log("CSV", list(csv.DictReader(io.StringIO(text), dialect=dialect)), unit)


def read_json(data: bytes, unit: str) -> MeasuredLog:
    """Read a list of objects, an object with such a list in `requests`, or an object of
    parallel lists.

    Raises LogError.
    """
    decoded = msgspec.json.decode(data)
    if isinstance(decoded, dict):
        columns = cast("dict[str, object]", decoded)
        lists = {
            name: cast("list[object]", value)
            for name, value in columns.items()
            if isinstance(value, list)
        }
        if "requests" in lists:
            return _build_table_log("JSON", _check_rows(lists["requests"]), unit)
        length = max((len(values) for values in lists.values()), default=0)
        # A benchmark's file also has shorter lists, such as percentiles; only lists of
        # full length are columns.
        complete = {name: values for name, values in lists.items() if len(values) == length}
        return _build_table_log(
            "JSON",
            [{name: values[row] for name, values in complete.items()} for row in range(length)],
            unit,
        )
    return _build_table_log(
        "JSON",
        _check_rows(cast("list[object]", decoded) if isinstance(decoded, list) else []),
        unit,
    )


def read_json_lines(data: bytes, unit: str) -> MeasuredLog:
    """Read JSON Lines. Raises LogError."""
    rows: list[object] = []
    for number, line in enumerate(data.splitlines(), start=1):
        if line.strip():
            try:
                rows.append(msgspec.json.decode(line))
            except msgspec.MsgspecError as error:
                raise LogError(f"line {number}: {error}") from None
    prefixes: list[WorkloadRequest] = []
    if b'"block_hashes"' in data:
        # With block hashes each line is also a line of a trace.
        try:
            prefixes = read_workload(data.splitlines())
        except WorkloadError as error:
            raise LogError(str(error)) from None
    return _build_table_log("JSON Lines", _check_rows(rows), unit, prefixes)


def _check_rows(values: Sequence[object]) -> list[Row]:
    if any(not isinstance(value, dict) for value in values):
        raise LogError("a request is an object with named fields")
    return cast("list[Row]", values)


def _build_table_log(
    format: str, rows: Sequence[Row], unit: str, extra: Sequence[WorkloadRequest] = ()
) -> MeasuredLog:
    if not rows or not rows[0]:
        raise LogError(f"{format}: it does not contain any request")
    columns: dict[str, tuple[str, str | None]] = {}
    """The column of each quantity, with the unit in its name, or None."""
    for column in rows[0]:
        # "TTFT (ms)", "ttft.ms" and "ttft-ms" all become "ttft_ms".
        normalized = re.sub(r"[\s.()\[\]-]+", "_", column.strip().lower()).strip("_")
        base, _, ending = normalized.rpartition("_")
        name, column_unit = (base, ending) if base and ending in UNITS else (normalized, None)
        for quantity, names in COLUMN_NAMES.items():
            if name in names:
                columns.setdefault(quantity, (column, column_unit))
    missing: list[str] = []
    for quantity, alternatives in (
        ("arrival", ()),
        ("first", ("ttft",)),
        ("last", ("latency", "tpot")),
        ("input", ()),
        ("output", ()),
    ):
        if columns.keys().isdisjoint((quantity, *alternatives)):
            names = [
                name
                for accepted in (quantity, *alternatives)
                for name in COLUMN_NAMES[accepted][:3]
            ]
            missing.append(f"no {quantity} ({', '.join(names)})")
    if missing:
        raise LogError(f"{format}: the columns {', '.join(rows[0])} have {'; '.join(missing)}")
    successful = [row for row in rows if "error" not in columns or not row.get(columns["error"][0])]
    timings = [_build_timing(row, number, columns, unit) for number, row in enumerate(successful)]
    return build_log(format, timings, skipped=len(rows) - len(successful), extra=extra)


def _build_timing(
    row: Row, number: int, columns: Mapping[str, tuple[str, str | None]], unit: str
) -> Timing:
    def read_seconds(quantity: str) -> float | None:
        if quantity not in columns:
            return None
        column, column_unit = columns[quantity]
        value = row.get(column)
        where = f"request {number}: {column}"
        if value is None or value == "":
            return None
        # ISO 8601, such as 2026-01-31T12:00:00.
        if isinstance(value, str) and re.match(r"\d{4}-\d\d-\d\d[T ]", value):
            try:
                return datetime.fromisoformat(value).timestamp()
            except ValueError:
                raise LogError(f"{where}: {value!r} is not a time") from None
        return _parse_number(value, where) * UNITS[column_unit or unit]

    def read_count(quantity: str) -> int:
        column = columns[quantity][0]
        value = _parse_number(row.get(column), f"request {number}: {column}")
        if not value.is_integer():
            raise LogError(f"request {number}: {column}: {row.get(column)!r} is not a count")
        return int(value)

    arrival = read_seconds("arrival")
    outputs = read_count("output")
    first = _add_times(arrival, read_seconds("ttft"), known=read_seconds("first"))
    tpot = read_seconds("tpot")
    decoded = None if tpot is None else _add_times(first, tpot * (outputs - 1))
    last = _add_times(arrival, read_seconds("latency"), known=read_seconds("last"))
    # Prefer a measured end to one computed from the mean time per token, which is often
    # rounded.
    last = decoded if last is None else last
    if arrival is None or first is None or last is None:
        raise LogError(f"request {number}: a time is missing")
    id = str(row.get(columns["id"][0])) if "id" in columns else f"r{number}"
    return Timing(id, arrival, first, last, read_count("input"), outputs, read_seconds("scheduled"))


def _add_times(
    begin: float | None, length: float | None, *, known: float | None = None
) -> float | None:
    if known is not None:
        return known
    return None if begin is None or length is None else begin + length


def _parse_number(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise LogError(f"{where}: {value!r} is not a number")
    try:
        return float(value)
    except ValueError:
        raise LogError(f"{where}: {value!r} is not a number") from None
