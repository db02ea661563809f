"""Fixtures of the tests of the page at /ui: servers, and a tab of Chromium."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from .devtools import Page, browsing
from .page_servers import Servers


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    group = Servers(tmp_path_factory.mktemp("servers"))
    yield group
    group.close()


@pytest.fixture
def page(tmp_path: Path) -> Generator[Page]:
    """Yield a page of a new browser; at the end it must have logged no error and called
    only one server.
    """
    with browsing(tmp_path) as new_page:
        new_page.resize(1280, 800)
        yield new_page
        # Errors of the last command have been reported by now.
        new_page.evaluate("0")
        origins = ("about:", *(url.partition("/ui")[0] for url in new_page.opened))
        assert new_page.complaints == []
        assert [url for url in new_page.requested if not url.startswith(origins)] == []
