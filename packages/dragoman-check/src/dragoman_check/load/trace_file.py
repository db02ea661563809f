"""The file format of traces: JSON Lines, one request per line.

Unknown fields are ignored, so a log of measured requests is a valid trace:

    {"id": "r1", "arrival_s": 0.25, "input_tokens": 1034, "output_tokens": 769,
     "block_hashes": ["dff4fb60eaa2", ...], "block_size": 16,
     "priority": 0, "after": null}

Mooncake's format is supported as well:

    {"timestamp": 27482, "input_length": 6955, "output_length": 52,
     "hash_ids": [46, 47, 48, ...]}

Its timestamp is in milliseconds; `hash_ids` are chained ids of the prompt's blocks of
512 tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from .workload import Count, Seconds, WorkloadError, WorkloadRequest

MOONCAKE_BLOCK = 512
"""Tokens per block in Mooncake's format."""


def read_workload(lines: Iterable[str | bytes]) -> list[WorkloadRequest]:
    """Parse a workload from JSON Lines. Raises WorkloadError."""
    trace = msgspec.json.Decoder(WorkloadRequest)
    mooncake = msgspec.json.Decoder(_Mooncake)
    requests: list[WorkloadRequest] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            # Per line, not per file: traces of both formats may be concatenated.
            is_mooncake = '"input_length"' in (line if isinstance(line, str) else line.decode())
            requests.append(
                mooncake.decode(line).to_request(number) if is_mooncake else trace.decode(line)
            )
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
        """Convert a line. The last partial block also has an id, but cannot be
        shared.
        """
        hashes = tuple(str(block) for block in self.hash_ids[: self.input_length // MOONCAKE_BLOCK])
        at = self.timestamp / 1000
        return WorkloadRequest(
            f"line{number}", at, self.input_length, self.output_length, hashes, MOONCAKE_BLOCK
        )


def encode_workload(requests: Iterable[WorkloadRequest]) -> str:
    """Encode as JSON Lines that `read_workload` reads."""
    return "".join(f"{msgspec.json.encode(request).decode()}\n" for request in requests)


def check_workload(requests: Sequence[WorkloadRequest]) -> None:
    """Raise WorkloadError unless ids are unique and every `after` names an earlier
    line.
    """
    ids: set[str] = set()
    for request in requests:
        if request.id in ids:
            raise WorkloadError(f"request {request.id!r}: the id is used twice")
        if request.after is not None and request.after not in ids:
            raise WorkloadError(
                f"request {request.id!r}: no request before it has the id {request.after!r}"
            )
        ids.add(request.id)
