"""The tests of all engines, with the engine of the package `parrot`."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest_asyncio

from dragoman.launch import build_models
from dragoman.serving.clock import SystemClock
from dragoman.settings import load_keywords
from dragoman.testing import EngineKit, EngineUnderTest


class TestParrot(EngineKit):
    @pytest_asyncio.fixture
    async def subject(self) -> AsyncGenerator[EngineUnderTest]:
        models = build_models(load_keywords({"model": "parrot:polly"}), SystemClock())
        await models.start()
        try:
            yield EngineUnderTest(next(iter(models)))
        finally:
            await models.stop()
