"""The time that a request has spent in this server's front end is part of the profile's
front-end time.
"""

from __future__ import annotations

import asyncio

import pytest

from dragoman.core.token_engine import Ended, OutputCallback, TokenOutput, TokenRequest
from dragoman_sim.build import DEFAULT_PROFILE
from dragoman_sim.engine.profile import load
from tests.virtual_time import run_in_virtual_time

from .serving import Twin, twin

FRONTEND = load(DEFAULT_PROFILE).frontend_seconds


async def measure(sim: Twin, waited: float | None) -> float:
    """Return the seconds from arrival to the only token of a request that reaches the
    engine after `waited` seconds.
    """
    loop = asyncio.get_running_loop()
    arrival = loop.time()
    done = asyncio.Event()

    def deliver(output: TokenOutput) -> None:
        if isinstance(output, Ended):
            done.set()

    await asyncio.sleep(waited or 0.0)
    sim.engine.add(
        TokenRequest(
            f"after {waited}",
            (5, 6, 7),
            max_tokens=1,
            arrival_time=None if waited is None else arrival,
        ),
        deliver,
    )
    await done.wait()
    return loop.time() - arrival


@pytest.mark.parametrize("waited", [0.0, FRONTEND / 2, FRONTEND, 2 * FRONTEND])
def test_first_token_time_is_independent_of_frontend_wait(waited: float) -> None:
    async def run() -> tuple[float, float]:
        async with twin(time_scale=1.0, enable_prefix_caching=False) as sim:
            return await measure(sim, None), await measure(sim, waited)

    at_once, later = run_in_virtual_time(run())
    assert at_once > 10 * FRONTEND
    assert later == pytest.approx(at_once, abs=1e-6)


def test_step_starts_after_previous_step_ends() -> None:
    async def run() -> tuple[float, float]:
        async with twin(time_scale=1.0, enable_prefix_caching=False) as sim:
            one = await measure(sim, None)
            first = asyncio.create_task(measure(sim, 0.0))
            # Both arrive together, and the second one reaches the engine when it is
            # idle again.
            both = await measure(sim, FRONTEND + 1.5 * (one - FRONTEND))
            await first
            return one, both

    one, both = run_in_virtual_time(run())
    assert both == pytest.approx(FRONTEND + 2 * (one - FRONTEND), abs=1e-6)


def test_http_request_arrival_time_reaches_engine() -> None:
    async def run() -> tuple[float, float | None]:
        async with twin(time_scale=1.0) as sim:
            await asyncio.sleep(5.0)
            before = asyncio.get_running_loop().time()
            requests: list[TokenRequest] = []
            add = sim.engine.add

            def record(request: TokenRequest, deliver: OutputCallback) -> None:
                requests.append(request)
                add(request, deliver)

            sim.engine.add = record
            await sim.chat(max_tokens=1)
            return before, requests[0].arrival_time

    before, arrival = run_in_virtual_time(run())
    assert arrival == before
