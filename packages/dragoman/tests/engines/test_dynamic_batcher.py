"""A batching thread whose model has failed."""

from __future__ import annotations

import asyncio
import threading

import pytest

from dragoman.core.errors import EngineError
from dragoman.engines.dynamic_batcher import Batcher


async def test_batcher_restart_computes_probe_beside_event_loop() -> None:
    is_broken = True
    has_loop_run = threading.Event()

    def compute(inputs: list[int]) -> list[int]:
        if is_broken:
            raise RuntimeError("CUDA error")
        assert has_loop_run.wait(60)
        return inputs

    batcher = Batcher[int, int](compute, lambda _: 1, probe=1)
    await batcher.start()
    with pytest.raises(EngineError):
        await batcher.run([1])
    while not batcher.health().failed:  # noqa: ASYNC110 - the thread reports it next
        await asyncio.sleep(0)
    await batcher.stop()
    is_broken = False
    restart = asyncio.create_task(batcher.start())
    await asyncio.sleep(0)
    has_loop_run.set()
    await restart
    assert await batcher.run([1, 2]) == [1, 2]
    await batcher.stop()
