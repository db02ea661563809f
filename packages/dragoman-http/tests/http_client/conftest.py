"""Tests of connections run on both event loops: uvloop's, if it is installed, and
asyncio's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

Factory = Callable[[], asyncio.AbstractEventLoop]


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories() -> Mapping[str, Factory]:
    factories: dict[str, Factory] = {"asyncio": asyncio.new_event_loop}
    try:
        import uvloop
    except ImportError:
        return factories
    return {**factories, "uvloop": uvloop.new_event_loop}
