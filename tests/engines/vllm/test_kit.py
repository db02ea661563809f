"""The kit over vLLM. It takes seconds to start, so that all of these tests share one, and its event loop."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio

from tests.engines.kit import Subject
from tests.engines.test_kit import *  # noqa: F403 # pyright: ignore[reportAssignmentType] - each test there is one here

from .serving import settings, started

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.asyncio(loop_scope="module"),
    # vLLM's own, and of what it imports.
    pytest.mark.filterwarnings("ignore"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def subject() -> AsyncGenerator[Subject]:
    async with started(settings()) as models:
        yield Subject(next(iter(models)))
