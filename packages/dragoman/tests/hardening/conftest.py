"""Both event loops, as in `tests/http`, of which each test takes one: half of the tests
run on asyncio's, the others on uvloop's. The long suite runs all of them on both.
"""

from __future__ import annotations

from importlib.util import find_spec
from zlib import crc32

import pytest
from tests.http.conftest import pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories"]

LOOPS = ("asyncio", "uvloop")
HERE = __name__.rpartition(".")[0].replace(".", "/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if find_spec("uvloop") is None:
        return
    for item in items:
        name, bracket, parameters = item.nodeid.partition("[")
        loop = next((loop for loop in LOOPS if parameters.startswith(loop)), None)
        if HERE in name and loop is not None:
            others = parameters.removeprefix(loop)
            chosen = LOOPS[crc32(f"{name}{bracket}{others}".encode()) % 2]
            if loop != chosen:
                item.add_marker(pytest.mark.long)
