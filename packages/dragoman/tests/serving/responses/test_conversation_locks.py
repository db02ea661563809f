"""Locks of conversations."""

from __future__ import annotations

import pytest

from dragoman.core.errors import RequestError
from dragoman.serving.routes.responses.conversation_locks import ConversationLocks


def test_second_release_does_not_free_later_lock() -> None:
    locks = ConversationLocks()
    first = locks.acquire("owner", "conv_1")
    assert first is not None
    first.release()
    second = locks.acquire("owner", "conv_1")
    first.release()
    with pytest.raises(RequestError, match="conv_1"):
        locks.acquire("owner", "conv_1")
    assert second is not None
    second.release()
    assert locks.acquire("owner", "conv_1") is not None
