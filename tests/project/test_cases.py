"""Many cases in one test."""

from __future__ import annotations

import pytest

from tests.cases import check_each


def test_check_each_reports_all_failing_cases_by_name() -> None:
    def check(number: int) -> None:
        assert number % 2 == 0

    with pytest.raises(ExceptionGroup, match="2 of 4 cases failed") as failed:
        check_each({"one": 1, "two": 2, "three": 3, "four": 4}, check)
    notes = [error.__notes__ for error in failed.value.exceptions]
    assert notes == [["case: one"], ["case: three"]]
    check_each({"two": 2}, check)
