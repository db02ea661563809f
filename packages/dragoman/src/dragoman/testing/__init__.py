"""Tests for engines of third parties. Needs pytest and pytest-asyncio, which Dragoman
itself does not.
"""

import pytest

pytest.register_assert_rewrite("dragoman.testing.engine_kit")

from .engine_kit import EngineKit  # noqa: E402 - after its assertions are registered
from .engine_under_test import EngineUnderTest, serve_engine  # noqa: E402 - after its assertions are registered

__all__ = ["EngineKit", "EngineUnderTest", "serve_engine"]
