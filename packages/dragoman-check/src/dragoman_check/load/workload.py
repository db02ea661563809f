"""Workloads: requests with times and lengths, but without text; the file format of
    traces; and timings of requests.

A trace is JSON Lines, one request per line. Unknown fields are ignored, so a log of
measured requests is a valid trace:

    {"id": "r1", "arrival_s": 0.25, "input_tokens": 1034, "output_tokens": 769,
     "block_hashes": ["dff4fb60eaa2", ...], "block_size": 16, "priority": 0, "after":
     null}

Mooncake's format is supported as well:

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47,
    48, ...]}

Its timestamp is in milliseconds; `hash_ids` are chained ids of the prompt's blocks of
512 tokens.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, overload

import msgspec
import numpy as np
from msgspec import Meta, Struct

Count = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(ge=0)]
MOONCAKE_BLOCK = 512
"""Tokens per block in Mooncake's format."""


class WorkloadRequest(Struct, frozen=True, omit_defaults=True):
    """One request of a trace.

    arrival_s: seconds since the start of the trace; with `after`, seconds since the
        last token of that request.
    block_hashes: chained hashes of the full blocks of `block_size` tokens: of the
        prompt and, if a later request continues this one, also of the output. Two
        requests share a prefix as far as these are equal.
    block_size: tokens per block.
    priority: as in vLLM: lower values are scheduled first.
    after: id of the request that must be answered first, such as the previous turn of a
        conversation; None without one.
    lora: name of the LoRA adapter; requests with different adapters share no prefix.
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


_MOST_TOKENS = 1 << 31
"""Exclusive maximum tokens of a prompt or an output in a table."""


class RequestTable(Sequence[WorkloadRequest]):
    """A workload in columns, for requests that have only a time and lengths: 32 bytes
    each, built on access.

    prefix, numbers: the id of a request is the prefix followed by its number.
    arrivals: seconds.
    inputs, outputs: tokens of prompts and of outputs.
    """

    def __init__(
        self,
        prefix: str,
        numbers: array[int],
        arrivals: array[float],
        inputs: array[int],
        outputs: array[int],
    ) -> None:
        self._prefix = prefix
        self._numbers = numbers
        self.arrivals = arrivals
        self.inputs = inputs
        self.outputs = outputs

    @classmethod
    def build(cls, prefix: str, rows: Iterable[tuple[int, float, int, int]]) -> RequestTable:
        """Build a table from rows of number, arrival, prompt tokens and output tokens."""
        table = cls(prefix, array("q"), array("d"), array("q"), array("q"))
        for number, arrival, inputs, outputs in rows:
            # Checked here, since requests are later built from the columns without
            # validation.
            if not (
                abs(arrival) < float("inf") and inputs < _MOST_TOKENS and outputs < _MOST_TOKENS
            ):
                raise WorkloadError(
                    f"request {prefix}{number}: invalid request: arrival, input and output tokens "
                    f"must be finite and "
                    f"less than {_MOST_TOKENS}, not {arrival} s, {inputs} and {outputs}"
                )
            table._numbers.append(number)
            table.arrivals.append(arrival)
            table.inputs.append(inputs)
            table.outputs.append(outputs)
        return table

    @classmethod
    def convert(cls, workload: Sequence[WorkloadRequest]) -> RequestTable | None:
        """Convert a workload; None if a request has more than a time and lengths. Ids
        become positions.
        """
        if isinstance(workload, RequestTable):
            return workload
        if any(
            request.block_hashes or request.after is not None or request.lora or request.priority
            for request in workload
        ):
            return None
        return cls.build(
            "",
            (
                (index, request.arrival_s, request.input_tokens, request.output_tokens)
                for index, request in enumerate(workload)
            ),
        )

    def sort(self) -> RequestTable:
        """Return the same requests in order of arrival, shifted to start at 0."""
        arrivals = np.array(self.arrivals)
        order = np.argsort(arrivals, kind="stable")
        if len(order):
            arrivals -= arrivals[order[0]]
        numbers, inputs, outputs = (
            array("q", np.array(column)[order].tobytes())
            for column in (self._numbers, self.inputs, self.outputs)
        )
        return RequestTable(
            self._prefix, numbers, array("d", arrivals[order].tobytes()), inputs, outputs
        )

    def scale_arrivals(self, factor: float) -> RequestTable:
        """Return the same requests, arriving `factor` times as fast."""
        scaled = array("d", (np.array(self.arrivals) / factor).tobytes())
        return RequestTable(self._prefix, self._numbers, scaled, self.inputs, self.outputs)

    def __len__(self) -> int:
        return len(self.arrivals)

    @overload
    def __getitem__(self, index: int) -> WorkloadRequest: ...

    @overload
    def __getitem__(self, index: slice) -> list[WorkloadRequest]: ...

    def __getitem__(self, index: int | slice) -> WorkloadRequest | list[WorkloadRequest]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        id = f"{self._prefix}{self._numbers[index]}"
        return WorkloadRequest(id, self.arrivals[index], self.inputs[index], self.outputs[index])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RequestTable) and list(self) == list(other)

    def __hash__(self) -> int:
        return id(self)

    def __iter__(self) -> Iterator[WorkloadRequest]:
        return (self[index] for index in range(len(self)))


class WorkloadError(ValueError):
    """A trace is invalid; the message names the line or the request."""


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
        """Convert a line. The last partial block also has an id, but cannot be shared."""
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


def assign_loras(
    requests: Iterable[WorkloadRequest], names: Sequence[str]
) -> list[WorkloadRequest]:
    """Assign LoRA adapters to the requests in turn; all turns of a conversation get the
    same one.
    """
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


def scale_arrivals(requests: Sequence[WorkloadRequest], factor: float) -> Sequence[WorkloadRequest]:
    """Return the same requests, arriving `factor` times as fast. Think times between
    turns do not change.
    """
    if not factor > 0:
        raise ValueError("factor must be more than 0")
    if factor == 1:
        return requests
    if isinstance(requests, RequestTable):
        return requests.scale_arrivals(factor)
    changes: dict[str, Any] = {}
    result: list[WorkloadRequest] = []
    for request in requests:
        # A person's think time does not depend on the load.
        changes["arrival_s"] = request.arrival_s / (1 if request.after else factor)
        result.append(msgspec.structs.replace(request, **changes))
    return result


# Times of one request, simulated or measured.


class Timing(Struct, frozen=True):
    """Times of one request, in seconds on the same clock for all requests of a run.

    arrival_s: time at which the client sent the request.
    scheduled_s: start of its first step; None if a log does not state it.
    cached_tokens: prompt tokens found in the prefix cache.
    preemptions: number of preemptions.
    replica: replica that served the request.
    prefill_replica: replica of the prefill, if it is another one.
    kv_transfer_s: duration of the transfer of keys and values from that replica.
    host_tokens: those of `cached_tokens` that were loaded from host memory, with KV
        offloading.
    """

    id: str
    arrival_s: float
    first_token_s: float
    last_token_s: float
    input_tokens: int
    output_tokens: int
    scheduled_s: float | None = None
    cached_tokens: int = 0
    preemptions: int = 0
    replica: int = 0
    prefill_replica: int | None = None
    kv_transfer_s: float = 0.0
    host_tokens: int = 0

    @property
    def ttft(self) -> float:
        """Time to the first token."""
        return self.first_token_s - self.arrival_s

    @property
    def latency(self) -> float:
        """Time to the last token."""
        return self.last_token_s - self.arrival_s

    @property
    def tpot(self) -> float | None:
        """Mean time per output token after the first; None for a response of one token."""
        if self.output_tokens < 2:
            return None
        return (self.last_token_s - self.first_token_s) / (self.output_tokens - 1)
