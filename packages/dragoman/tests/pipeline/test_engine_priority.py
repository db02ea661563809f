"""The priority of a request orders the requests of its own key only."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from dragoman.core.request import Conversation, GenerateRequest
from dragoman.pipeline.call_terms import CallTerms
from dragoman.pipeline.request_preparation import find_engine_priority
from dragoman.pipeline.request_queue import ONE_QUEUE, QueueShare


@pytest.mark.parametrize(
    ("share", "is_background", "expected"),
    [
        (ONE_QUEUE, False, -7),
        (QueueShare("team-a"), False, 0),
        # The server's own priority for work without a waiting client.
        (QueueShare("team-a"), True, -7),
    ],
)
def test_engine_priority_is_the_clients_only_with_one_key(
    share: QueueShare, is_background: bool, expected: int
) -> None:
    terms = CallTerms("a", str, datetime.now(UTC), queue_share=share, is_background=is_background)
    request = GenerateRequest("m", Conversation(()), priority=-7)
    assert find_engine_priority(request, terms) == expected
