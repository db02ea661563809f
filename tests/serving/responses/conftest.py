"""What the store's tests have: a PostgreSQL of their own, where one is installed."""

from __future__ import annotations

from tests.store.conftest import postgres, postgres_server

__all__ = ["postgres", "postgres_server"]
