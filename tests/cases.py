"""Many cheap cases in one test, which names all that fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

Case = TypeVar("Case")


def check_each(cases: Mapping[str, Case], check: Callable[[Case], None]) -> None:
    """Check all cases. A parametrized test would cost two milliseconds for each.

    check: raises an exception for a wrong case.

    Raises: ExceptionGroup of the exceptions, each with the name of its case as a note.
    """
    errors: list[Exception] = []
    for name, case in cases.items():
        try:
            check(case)
        except Exception as error:
            error.add_note(f"case: {name}")
            errors.append(error)
    if errors:
        raise ExceptionGroup(f"{len(errors)} of {len(cases)} cases failed", errors)
