"""A workload: requests with times and lengths, but without text. Reads and writes it; `synthetic` makes one.

A trace is JSON Lines, one request a line; fields it does not know are ignored, so that a log of measured
requests is a trace as it stands:

    {"id": "r1", "arrival_s": 0.25, "input_tokens": 1034, "output_tokens": 769,
     "block_hashes": ["dff4fb60eaa2", ...], "block_size": 16, "priority": 0, "after": null}

Mooncake's lines are read as well:

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 48, ...]}

with a timestamp in milliseconds and the chained ids of every block of 512 tokens of the prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

Count = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(ge=0)]
MOONCAKE_BLOCK = 512


class WorkloadRequest(Struct, frozen=True, omit_defaults=True):
    """One request of a trace.

    arrival_s: seconds from the trace's beginning; with `after`, from the last token of the request of that id (a
    turn of a conversation is not sent before the one before it is answered).
    block_hashes: chained hashes of the full blocks of `block_size` tokens, of the prompt and, where a later request
    continues this one, on over the output: two requests share a prefix exactly as far as these agree.
    lora: name of its adapter; requests of different ones share no prefix.
    """

    id: str
    arrival_s: Seconds
    input_tokens: Count
    output_tokens: Count
    block_hashes: tuple[str, ...] = ()
    block_size: Count = 16
    priority: int = 0
    after: str | None = None
    lora: str = ""


class WorkloadError(ValueError):
    """A trace that cannot be replayed; the message names the line or the request."""


def read_workload(lines: Iterable[str | bytes]) -> list[WorkloadRequest]:
    """A workload from JSON Lines. Raises WorkloadError."""
    trace, mooncake = msgspec.json.Decoder(WorkloadRequest), msgspec.json.Decoder(_Mooncake)
    requests: list[WorkloadRequest] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            is_mooncake = '"input_length"' in (line if isinstance(line, str) else line.decode())
            requests.append(mooncake.decode(line).to_request(number) if is_mooncake else trace.decode(line))
        except (msgspec.MsgspecError, UnicodeError) as error:
            raise WorkloadError(f"line {number}: {error}") from None
    check_workload(requests)
    return requests


class _Mooncake(Struct):
    input_length: Count
    output_length: Count
    timestamp: Seconds = 0.0
    hash_ids: tuple[int, ...] = ()

    def to_request(self, number: int) -> WorkloadRequest:
        """Convert a line. The last partial block also has an id, but cannot be shared."""
        hashes = tuple(str(block) for block in self.hash_ids[: self.input_length // MOONCAKE_BLOCK])
        at = self.timestamp / 1000
        return WorkloadRequest(f"line{number}", at, self.input_length, self.output_length, hashes, MOONCAKE_BLOCK)


def encode_workload(requests: Iterable[WorkloadRequest]) -> str:
    """Encode as JSON Lines that `read_workload` reads."""
    return "".join(f"{msgspec.json.encode(request).decode()}\n" for request in requests)


def check_workload(requests: Sequence[WorkloadRequest]) -> None:
    """Raise WorkloadError unless ids are unique and every `after` names an earlier line."""
    ids: set[str] = set()
    for request in requests:
        if request.id in ids:
            raise WorkloadError(f"request {request.id!r}: the id is used twice")
        if request.after is not None and request.after not in ids:
            raise WorkloadError(f"request {request.id!r}: no request before it has the id {request.after!r}")
        ids.add(request.id)


def assign_loras(requests: Iterable[WorkloadRequest], names: Sequence[str]) -> list[WorkloadRequest]:
    """Give the requests these adapters in turn; all turns of a conversation have the same one."""
    loras: dict[str, str] = {}
    result: list[WorkloadRequest] = []
    count = 0
    for request in requests:
        if request.after is None:
            loras[request.id] = names[count % len(names)]
            count += 1
        else:
            loras[request.id] = loras[request.after]
        result.append(msgspec.structs.replace(request, lora=loras[request.id]))
    return result


def scale_arrivals(requests: Iterable[WorkloadRequest], factor: float) -> list[WorkloadRequest]:
    """The same requests arriving `factor` times as fast; think times between turns stay."""
    if not factor > 0:
        raise ValueError("factor must be more than 0")
    changes: dict[str, Any] = {}
    result: list[WorkloadRequest] = []
    for request in requests:
        changes["arrival_s"] = request.arrival_s / (1 if request.after else factor)
        result.append(msgspec.structs.replace(request, **changes))
    return result
