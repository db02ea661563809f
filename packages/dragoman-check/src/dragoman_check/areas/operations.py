"""Checks of the routes for operators: health, version, metrics."""

from __future__ import annotations

import re

from ..check_catalog import Area
from ..check_exceptions import Skipped
from ..rules.json_values import require
from ..session import Session
from .vllm import VLLM_DOCS, request_chat

OPERATIONS = Area("operations", claims=(), source=VLLM_DOCS)


@OPERATIONS.check("`/health` returns 200.", claims=("health",))
async def health(s: Session) -> None:
    exchange = await s.get("/health")
    require(exchange.status == 200, f"status {exchange.status}")


METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*(\{.*\})? -?(\d|NaN|[+-]?Inf).*")
"""A sample in Prometheus' text format: a name, optional labels, and a value."""


async def get_metrics(s: Session) -> list[str]:
    exchange = await s.get("/metrics")
    if exchange.status in (401, 403, 501):
        raise Skipped(f"status {exchange.status}")
    require(exchange.status == 200, f"status {exchange.status}")
    return exchange.body.decode().splitlines()


@OPERATIONS.check("`/metrics` is in the Prometheus text format.", claims=("metrics",))
async def metrics_form(s: Session) -> None:
    lines = [line for line in await get_metrics(s) if line and not line.startswith("#")]
    wrong = [line for line in lines if not METRIC.fullmatch(line)]
    require(lines and not wrong, f"{len(lines)} samples, malformed are {wrong[:3]}")


@OPERATIONS.check(
    "`/metrics` has no duplicate samples (same name and labels).", claims=("metrics",)
)
async def metrics_once(s: Session) -> None:
    names = [
        line.rpartition(" ")[0]
        for line in await get_metrics(s)
        if line and not line.startswith("#")
    ]
    # `count` makes this quadratic, so a long list is not checked.
    duplicates = (
        {name for name in names if names.count(name) > 1} if len(names) < 5000 else set[str]()
    )
    require(not duplicates, f"duplicates: {sorted(duplicates)[:3]}")


@OPERATIONS.check(
    "The token counters increase by exactly the reported usage.", claims=("metrics", "chat")
)
async def metrics_tokens(s: Session) -> None:
    async def count(name: str) -> float | None:
        lines = [
            line
            for line in await get_metrics(s)
            if re.match(rf"(vllm|sglang|llamacpp):{name}(_total)?[{{ ]", line)
        ]
        return sum(float(line.rpartition(" ")[2]) for line in lines) if lines else None

    names = ("generation_tokens", "prompt_tokens")
    before = [await count(name) for name in names]
    if None in before:
        raise Skipped("the server has no such counters")
    usage = (await request_chat(s))["usage"]
    after = [await count(name) for name in names]
    increases = [(b or 0) - (a or 0) for a, b in zip(before, after, strict=True)]
    expected = [usage["completion_tokens"], usage["prompt_tokens"]]
    require(increases == expected, f"the counters increased by {increases}, usage is {expected}")


@OPERATIONS.check("`/version` returns the version.", claims=("vllm", "health"), level="should")
async def version(s: Session) -> None:
    exchange = await s.get("/version")
    require(exchange.status == 200 and exchange.json().get("version"), f"status {exchange.status}")
