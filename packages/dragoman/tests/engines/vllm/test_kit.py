"""The test kit for engines on vLLM. vLLM takes seconds to start, so these tests share
one and its event loop.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio

from dragoman.testing import EngineKit, EngineUnderTest

from .serving import settings, start_vllm

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.asyncio(loop_scope="module"),
    # Warnings of vLLM and of its dependencies.
    pytest.mark.filterwarnings("ignore"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def subject() -> AsyncGenerator[EngineUnderTest]:
    async with start_vllm(settings()) as models:
        yield EngineUnderTest(next(iter(models)))


# Copied rather than inherited: the kit's marker gives each test a separate event loop.
TestVllm = type(
    "TestVllm",
    (),
    {name: value for name, value in vars(EngineKit).items() if name.startswith("test_")},
)
