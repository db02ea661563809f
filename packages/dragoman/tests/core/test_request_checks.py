"""Checks of a request against the model."""

from __future__ import annotations

import pytest

from dragoman.core.errors import RequestError
from dragoman.core.request_checks import check_ids


def test_check_ids_error_lists_ten_ids_and_counts_rest():
    with pytest.raises(RequestError) as rejected:
        check_ids([7, *range(100, 125), 100], 100, "prompt")
    listed = "100, 101, 102, 103, 104, 105, 106, 107, 108, 109 and 15 more"
    assert (
        rejected.value.message == f"Token ids {listed} are not in this model's vocabulary of 100."
    )
    with pytest.raises(RequestError, match="Token id -1 is not in this model's vocabulary of 100"):
        check_ids([-1], 100, "prompt")
    check_ids([0, 99], 100, "prompt")
