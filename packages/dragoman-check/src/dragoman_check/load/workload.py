"""One request of a workload: a time and lengths, but no text."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

Count = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(ge=0)]


class WorkloadRequest(Struct, frozen=True, omit_defaults=True):
    """One request of a trace.

    arrival_s: seconds since the start of the trace; with `after`, seconds since the
        last token of that request.
    block_hashes: chained hashes of the full blocks of `block_size` tokens: of the
        prompt and, if a later request continues this one, also of the output. Two
        requests share a prefix as far as these are equal.
    block_size: tokens per block.
    priority: as in vLLM: lower values are scheduled first.
    after: id of the request that must complete first, such as the previous turn of a
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


class WorkloadError(ValueError):
    """A trace is invalid; the message names the line or the request."""
