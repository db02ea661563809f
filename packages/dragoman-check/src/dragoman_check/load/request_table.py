"""A workload in columns, for requests that have only a time and lengths."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import numpy as np

from .workload import WorkloadError, WorkloadRequest

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
        """Build a table from rows of number, arrival, prompt tokens and output
        tokens.
        """
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
