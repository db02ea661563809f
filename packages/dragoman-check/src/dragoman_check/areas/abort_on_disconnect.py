"""Checks that the server stops generating when its client disconnects."""

from __future__ import annotations

import asyncio
import time

from ..dialects import Dialect
from ..rules.json_values import JsonObject, require
from ..session import Session
from .generation import on_every_dialect

CANCEL_TIMEOUT = 20.0
"""Seconds within which a generation must stop after its client has disconnected."""


@on_every_dialect("Generation stops when the client disconnects.", claims=("cancellation",))
async def cancel(s: Session, d: Dialect) -> None:
    """Read the metrics of running requests and generated tokens; without them, measure
    the latency of the next request.
    """
    fields = {} if d.is_ollama else await find_ignore_eos(s, d)
    start = time.perf_counter()
    await s.request(d.path, d.build_request(s.model, "Name a colour.", 16))
    idle_seconds = time.perf_counter() - start
    before, tokens_before = await measure_load(s)
    body = d.build_stream_request(
        s.model, "Write a very long story. Do not stop.", CANCELLED_TOKENS, **fields
    )
    async with s.stream(d.path, body) as response:
        require(response.status == 200, f"status {response.status}")
        # Disconnect after the first piece of the stream.
        await response.read()
    start = time.perf_counter()
    if before is None:
        await s.request(d.path, d.build_request(s.model, "Name a colour.", 16))
        busy_seconds = time.perf_counter() - start
        require(
            busy_seconds < CANCEL_TIMEOUT + 2 * idle_seconds,
            f"the next response took {busy_seconds:.1f} s instead of {idle_seconds:.1f} s",
        )
        return
    polls = 0
    running = before + 1
    tokens = tokens_before
    while running is not None and running > before:
        elapsed = time.perf_counter() - start
        require(
            elapsed < CANCEL_TIMEOUT,
            f"{running} requests are running after {elapsed:.0f} s, {before} were before",
        )
        await asyncio.sleep(0.02)
        running, tokens = await measure_load(s)
        polls += 1
    # If the first poll shows no running request, a fast server may have finished before
    # the client disconnected.
    grown = (tokens or 0) - (tokens_before or 0)
    is_complete = polls > 1 and grown >= 0.9 * CANCELLED_TOKENS
    require(
        not is_complete,
        f"{grown:.0f} of {CANCELLED_TOKENS} tokens were generated after the client disconnected",
    )


async def find_ignore_eos(s: Session, d: Dialect) -> JsonObject:
    """Return vLLM's `ignore_eos` if the server accepts it, so that generation continues
    to the token limit; else no field.
    """

    async def find() -> JsonObject:
        fields = {"ignore_eos": True}
        exchange = await s.post(d.path, d.build_request(s.model, "Name a colour.", 16, **fields))
        return fields if exchange.status == 200 else {}

    return await s.share(f"{d.name}.ignore-eos", find)


CANCELLED_TOKENS = 2000
"""Token limit of the request that is cancelled."""
RUNNING_METRICS = (
    "vllm:num_requests_running",
    "sglang:num_running_reqs",
    "llamacpp:requests_processing",
    "tgi_batch_current_size",
)
TOKEN_METRICS = (
    "vllm:generation_tokens_total",
    "sglang:generation_tokens_total",
    "llamacpp:tokens_predicted_total",
)


async def measure_load(s: Session) -> tuple[float | None, float | None]:
    """Return the numbers of running requests and of generated tokens from /metrics;
    None for a missing metric.
    """
    exchange = await s.get("/metrics")
    lines = exchange.body.decode(errors="replace").splitlines() if exchange.status == 200 else []
    # Summed over the labels: each engine or model has its own line.
    running, tokens = (
        [float(line.rpartition(" ")[2]) for line in lines if line.startswith(names)]
        for names in (RUNNING_METRICS, TOKEN_METRICS)
    )
    return sum(running) if running else None, sum(tokens) if tokens else None
