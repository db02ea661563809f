"""The fixtures of the store's tests: a separate PostgreSQL, if it is installed."""

from __future__ import annotations

from tests.store.conftest import postgres, postgres_server

__all__ = ["postgres", "postgres_server"]
