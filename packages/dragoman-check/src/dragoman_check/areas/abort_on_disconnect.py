"""Checks that the server stops generating when its client disconnects."""

from __future__ import annotations

import asyncio
import time

from ..dialects import Dialect
from ..rules.json_values import require
from ..session import Json, Session
from .generation import on_every_dialect

CANCEL_TIMEOUT = 20.0
"""Seconds within which a generation must stop after its client has disconnected."""


@on_every_dialect(
    "An answer stops being generated when its client disconnects.", claims=("cancellation",)
)
async def cancel(s: Session, d: Dialect) -> None:
    """Judge by the server's metrics of running requests and generated tokens; without
    them, by the next latency.
    """
    fields = {} if d.is_ollama else await find_endless(s, d)
    start = time.perf_counter()
    await s.ask(d.path, d.ask(s.model, "Name a colour.", 16))
    alone = time.perf_counter() - start
    before, tokens_before = await measure_load(s)
    body = d.ask_stream(
        s.model, "Write a very long story. Do not stop.", ABANDONED_TOKENS, **fields
    )
    async with s.stream(d.path, body) as response:
        require(response.status_code == 200, f"status {response.status_code}")
        async for _ in response.aiter_bytes():
            break
    start = time.perf_counter()
    if before is None:
        await s.ask(d.path, d.ask(s.model, "Name a colour.", 16))
        busy = time.perf_counter() - start
        require(
            busy < CANCEL_TIMEOUT + 2 * alone,
            f"the next answer took {busy:.1f} s instead of {alone:.1f} s",
        )
        return
    polls = 0
    running = before + 1
    tokens = tokens_before
    while running is not None and running > before:
        took = time.perf_counter() - start
        require(
            took < CANCEL_TIMEOUT,
            f"{running} requests still run after {took:.0f} s, {before} ran before",
        )
        await asyncio.sleep(0.02)
        running, tokens = await measure_load(s)
        polls += 1
    # If the first poll shows no running request, a fast server may have finished before
    # the client disconnected.
    grown = (tokens or 0) - (tokens_before or 0)
    is_whole = polls > 1 and grown >= 0.9 * ABANDONED_TOKENS
    require(
        not is_whole,
        f"{grown:.0f} tokens were generated of {ABANDONED_TOKENS}, though the client disconnected",
    )


async def find_endless(s: Session, d: Dialect) -> Json:
    """Return vLLM's `ignore_eos` if the server accepts it, so that an answer runs to
    its token limit; else no field.
    """

    async def find() -> Json:
        fields = {"ignore_eos": True}
        exchange = await s.post(d.path, d.ask(s.model, "Name a colour.", 16, **fields))
        return fields if exchange.status == 200 else {}

    return await s.share(f"{d.name}.endless", find)


ABANDONED_TOKENS = 2000
"""Token limit of the answer that the cancellation check abandons."""


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
    """Return the running requests and the tokens generated so far from /metrics; None
    for a missing metric.
    """
    exchange = await s.get("/metrics")
    lines = exchange.body.decode(errors="replace").splitlines() if exchange.status == 200 else []
    # Summed over the labels: each engine or model has its own line.
    running, tokens = (
        [float(line.rpartition(" ")[2]) for line in lines if line.startswith(names)]
        for names in (RUNNING_METRICS, TOKEN_METRICS)
    )
    return sum(running) if running else None, sum(tokens) if tokens else None
