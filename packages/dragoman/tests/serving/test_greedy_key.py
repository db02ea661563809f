"""One key of ten sends a hundred times as much as the others: the effect on them, on
the simulator in virtual time.

PYTHONPATH=src python -m tests.serving.test_greedy_key        prints the figures
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from statistics import mean, quantiles
from typing import Any

import msgspec
import pytest
from starlette.types import Message
from tests.serving.harness import scope

from dragoman.launch import build_models, build_serving_options
from dragoman.serving.app import Application, build_asgi_app
from dragoman.settings import Settings
from dragoman.tenants import KeyHash, Tenant, hash_key
from tests.virtual_time import VirtualClock, run_in_virtual_time

KEYS = 10
RATE = 0.4
SECONDS = 40.0
"""Number of keys; requests per second of each (Poisson); duration of arrivals in
seconds.
"""
SHORT = 30.0
"""Duration of arrivals in the tests."""
PROMPT = 200
OUTPUT = 100
GREEDY = "key-9"
LIMITS: dict[str, dict[str, Any]] = {
    "requests a minute": {"requests_per_minute": 24},
    "concurrent requests": {"concurrent_requests": 4},
}


@dataclass
class Outcome:
    """The outcome of a run.

    ttfts: seconds to the first token of the other keys.
    refused: rejected requests of the greedy key.
    """

    ttfts: list[float] = field(default_factory=list[float])
    failed: int = 0
    refused: int = 0


async def serve_keys(
    greedy_rate: float, limits: dict[str, Any], seconds: float = SECONDS
) -> Outcome:
    settings = Settings(model="sim", served_model_name=("m",), access_log=False)
    clock = VirtualClock()
    outcome = Outcome()
    names = [f"key-{number}" for number in range(KEYS)]
    tenants = {
        name: Tenant(
            secrets=(KeyHash(hash_key(name)),), id=name, **(limits if name == GREEDY else {})
        )
        for name in names
    }
    options = build_serving_options(settings)
    app = build_asgi_app(
        build_models(settings, clock), options=options, clock=clock, tenants=tenants
    )
    async with app.lifespan():
        await asyncio.gather(
            *(
                send_load(app, name, greedy_rate if name == GREEDY else RATE, seconds, outcome)
                for name in names
            )
        )
    return outcome


async def send_load(
    app: Application, key: str, rate: float, seconds: float, outcome: Outcome
) -> None:
    rng = random.Random(key)
    loop = asyncio.get_running_loop()
    requests: list[asyncio.Task[None]] = []
    while loop.time() < seconds:
        await asyncio.sleep(rng.expovariate(rate))
        prompt = [rng.randrange(300, 2000) for _ in range(PROMPT)]
        requests.append(asyncio.create_task(ask(app, key, prompt, outcome)))
    await asyncio.gather(*requests)


async def ask(app: Application, key: str, prompt: list[int], outcome: Outcome) -> None:
    loop = asyncio.get_running_loop()
    fields = {
        "model": "m",
        "prompt": prompt,
        "max_tokens": OUTPUT,
        "ignore_eos": True,
        "stream": True,
    }
    bodies = [msgspec.json.encode(fields)]
    start = loop.time()
    statuses = list[int]()
    ttfts = list[float]()

    async def receive() -> Message:
        if not bodies:
            await loop.create_future()
        return {"type": "http.request", "body": bodies.pop(), "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])
        elif message["body"].startswith(b"data:"):
            ttfts.append(loop.time() - start)

    await app(scope("/v1/completions", {"authorization": f"Bearer {key}"}), receive, send)
    if key == GREEDY:
        outcome.refused += statuses == [429]
    else:
        outcome.failed += statuses != [200]
        outcome.ttfts += ttfts[:1]


@pytest.mark.parametrize("limit", LIMITS)
def test_greedy_key_limited_raises_other_ttft_at_most_10_percent(limit: str) -> None:
    fair = run_in_virtual_time(serve_keys(RATE, LIMITS[limit], SHORT))
    greedy = run_in_virtual_time(serve_keys(100 * RATE, LIMITS[limit], SHORT))
    assert (fair.failed, greedy.failed) == (0, 0)
    assert greedy.refused > 1000
    assert len(greedy.ttfts) == len(fair.ttfts) > 100
    assert mean(greedy.ttfts) <= 1.1 * mean(fair.ttfts)


@pytest.mark.parametrize(
    ("factor", "limit"), [(20, 0.2), pytest.param(100, 0.6, marks=pytest.mark.long)]
)
def test_greedy_key_unlimited_does_not_starve_others(factor: int, limit: float) -> None:
    """Only weighted fair queueing: none of their requests is rejected or waits for an
    empty engine.
    """
    greedy = run_in_virtual_time(serve_keys(factor * RATE, {}, SHORT))
    assert (greedy.failed, greedy.refused) == (0, 0)
    assert mean(greedy.ttfts) < limit


def main() -> None:
    for name, limits in {"no limit": dict[str, Any](), **LIMITS}.items():
        for factor in (1, 20, 100):
            outcome = run_in_virtual_time(serve_keys(factor * RATE, limits))
            ttfts = outcome.ttfts
            refused = outcome.refused
            p90 = quantiles(ttfts, n=10)[8]
            print(
                f"{name}, {factor} x: mean {mean(ttfts):.4f} s, p90 {p90:.4f} s; {refused} refused"
            )


if __name__ == "__main__":
    main()
