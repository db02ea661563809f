"""The extension as an application finds it."""

from __future__ import annotations

from collections.abc import Callable

from dragoman.http.leaving import EXTENSION, watch_of


def test_a_server_may_have_it_or_not() -> None:
    def watch(_: Callable[[], object] | None, /) -> None: ...

    assert watch_of({"extensions": {EXTENSION: watch}}) is watch
    assert watch_of({"extensions": {"tls": {}}}) is None
    assert watch_of({"type": "http"}) is None
    assert watch_of({"extensions": None}) is None
