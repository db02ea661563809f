"""Both event loops, as in `tests/http`."""

from tests.http.conftest import pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories"]
