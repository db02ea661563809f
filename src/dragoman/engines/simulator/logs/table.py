"""A table of requests that anyone may have: CSV, JSON (a list, or an object of lists) or JSON Lines. Pure.

A request needs a time of arrival, of its first and of its last token, and the counts of its tokens. Columns are known
by many names; a name's ending tells its unit (`ttft_ms`, `latency_s`), otherwise it is the one that is given.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import cast

import msgspec

from ..timing import Timing
from ..workload import Request, WorkloadError, read
from .log import Log, LogError, log_of

NAMES: Mapping[str, tuple[str, ...]] = {
    "id": ("id", "request_id", "req_id"),
    "arrival": (
        "arrival", "arrival_time", "start", "start_time", "request_start", "request_start_time", "sent", "send_time",
        "submit_time", "timestamp",
    ),
    "scheduled": ("scheduled", "scheduled_time"),
    "first": ("first_token", "first_token_time", "first_token_at"),
    "last": ("last_token", "last_token_time", "end", "end_time", "finish_time", "request_end", "request_end_time"),
    "ttft": ("ttft", "time_to_first_token"),
    "latency": ("latency", "e2e", "e2el", "e2e_latency", "request_latency", "total_latency", "duration", "total_time"),
    "tpot": ("tpot", "time_per_output_token"),
    "input": (
        "input_tokens", "prompt_tokens", "num_prompt_tokens", "input_len", "prompt_len", "input_length", "isl",
        "input_sequence_length",
    ),
    "output": (
        "output_tokens", "completion_tokens", "num_output_tokens", "generated_tokens", "output_len", "output_length",
        "osl", "output_sequence_length",
    ),
    "error": ("error",),
}  # fmt: skip
UNITS = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
FORMAT = "table"
TIMES = ("arrival", "scheduled", "first", "last", "ttft", "latency", "tpot")
Row = Mapping[str, object]


def read_csv(data: bytes, unit: str) -> Log:
    """Raises LogError."""
    try:
        text = data.decode("utf-8-sig")
        dialect = csv.Sniffer().sniff(text[:4096], delimiters=",;\t")
    except (UnicodeError, csv.Error):
        raise LogError("this is neither JSON nor a CSV with a heading") from None
    return _log("CSV", list(csv.DictReader(io.StringIO(text), dialect=dialect)), unit)


def read_json(data: bytes, unit: str) -> Log:
    """A list of objects, an object with such a list in `requests`, or an object of parallel lists. Raises LogError."""
    told = msgspec.json.decode(data)
    if isinstance(told, dict):
        columns = cast("dict[str, object]", told)
        lists = {name: cast("list[object]", value) for name, value in columns.items() if isinstance(value, list)}
        if "requests" in lists:
            return _log("JSON", _rows(lists["requests"]), unit)
        long = max((len(values) for values in lists.values()), default=0)
        full = {name: values for name, values in lists.items() if len(values) == long}
        return _log("JSON", [{name: values[row] for name, values in full.items()} for row in range(long)], unit)
    return _log("JSON", _rows(cast("list[object]", told) if isinstance(told, list) else []), unit)


def read_json_lines(data: bytes, unit: str) -> Log:
    """Raises LogError."""
    rows: list[object] = []
    for number, line in enumerate(data.splitlines(), start=1):
        if line.strip():
            try:
                rows.append(msgspec.json.decode(line))
            except msgspec.MsgspecError as error:
                raise LogError(f"line {number}: {error}") from None
    return _log("JSON Lines", _rows(rows), unit, _prefixes(data))


def _prefixes(data: bytes) -> list[Request]:
    """Lines that are also lines of a trace tell what the prompts share."""
    if b'"block_hashes"' not in data:
        return []
    try:
        return read(data.splitlines())
    except WorkloadError as error:
        raise LogError(str(error)) from None


def _rows(values: Sequence[object]) -> list[Row]:
    if any(not isinstance(value, dict) for value in values):
        raise LogError("a request is an object with named fields")
    return cast("list[Row]", values)


def _log(format: str, rows: Sequence[Row], unit: str, extra: Sequence[Request] = ()) -> Log:
    if not rows or not rows[0]:
        raise LogError(f"{format}: there is no request in it")
    columns = _columns(rows[0])
    _check(format, columns, rows[0])
    answered = [row for row in rows if "error" not in columns or not row.get(columns["error"][0])]
    timings = [_timing(row, number, columns, unit) for number, row in enumerate(answered)]
    return log_of(format, timings, skipped=len(rows) - len(answered), extra=extra)


def _columns(row: Row) -> dict[str, tuple[str, str | None]]:
    """For each quantity the column that has it, and the unit that its name tells."""
    found: dict[str, tuple[str, str | None]] = {}
    for column in row:
        plain = re.sub(r"[\s.()\[\]-]+", "_", column.strip().lower()).strip("_")
        base, _, ending = plain.rpartition("_")
        name, unit = (base, ending) if base and ending in UNITS else (plain, None)
        for quantity, names in NAMES.items():
            if name in names:
                found.setdefault(quantity, (column, unit))
    return found


def _check(format: str, columns: Mapping[str, object], row: Row) -> None:
    lacks: list[str] = []
    for quantity, others in (
        ("arrival", ()), ("first", ("ttft",)), ("last", ("latency", "tpot")), ("input", ()), ("output", ()),
    ):  # fmt: skip
        if quantity not in columns and not any(other in columns for other in others):
            lacks.append(
                f"no {quantity} ({', '.join(name for each in (quantity, *others) for name in NAMES[each][:3])})"
            )
    if lacks:
        raise LogError(f"{format}: the columns {', '.join(row)} have {'; '.join(lacks)}")


def _timing(row: Row, number: int, columns: Mapping[str, tuple[str, str | None]], unit: str) -> Timing:
    def seconds(quantity: str) -> float | None:
        if quantity not in columns:
            return None
        column, own = columns[quantity]
        return _seconds(row.get(column), UNITS[own or unit], f"request {number}: {column}")

    def count(quantity: str) -> int:
        column = columns[quantity][0]
        told = _number(row.get(column), f"request {number}: {column}")
        if not told.is_integer():
            raise LogError(f"request {number}: {column}: {row.get(column)!r} is not a count")
        return int(told)

    arrival, outputs = seconds("arrival"), count("output")
    first = _sum(arrival, seconds("ttft"), instead=seconds("first"))
    tpot = seconds("tpot")
    decoded = None if tpot is None else _sum(first, tpot * (outputs - 1))
    last = _sum(arrival, seconds("latency"), instead=seconds("last"))
    last = decoded if last is None else last
    if arrival is None or first is None or last is None:
        raise LogError(f"request {number}: a time is missing")
    id = str(row.get(columns["id"][0])) if "id" in columns else f"r{number}"
    return Timing(id, arrival, first, last, count("input"), outputs, seconds("scheduled"))


def _sum(begin: float | None, length: float | None, *, instead: float | None = None) -> float | None:
    if instead is not None:
        return instead
    return None if begin is None or length is None else begin + length


def _seconds(value: object, unit: float, place: str) -> float | None:
    if value is None or value == "":
        return None
    if isinstance(value, str) and re.match(r"\d{4}-\d\d-\d\d[T ]", value):
        try:
            return datetime.fromisoformat(value).timestamp()
        except ValueError:
            raise LogError(f"{place}: {value!r} is not a time") from None
    return _number(value, place) * unit


def _number(value: object, place: str) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise LogError(f"{place}: {value!r} is not a number")
    try:
        return float(value)
    except ValueError:
        raise LogError(f"{place}: {value!r} is not a number") from None
