"""Reduction of the limits at which a model's computation changes (windows, chunks,
sparse blocks, scales), so that the few tokens of the self-check exceed them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

Limits: TypeAlias = dict[str, list[tuple[Any, int]]]
"""Limits by the name of their attribute: the objects that have it, with their values."""

_REDUCED_LIMITS = (
    (re.compile(r"original_max_pos"), 40),
    # A number of blocks, beside the size of one.
    (re.compile(r"blocks"), 2),
    (re.compile(r"block|floor"), 16),
    (re.compile(r"window|chunk|top_?k|local|attention_len|max_distance"), 24),
)
"""Patterns of the names of integer attributes, and their values in a check. The first
match counts.

A list of exact names would miss the next architecture's: the names that libraries give
to such limits have these words.
"""
_NO_LIMIT = re.compile(r"layer|expert|head|dim|kernel|multiple|token|group|rank|vocab|stride")
"""Names with these words are sizes of weights, or counts."""


def find_reduced_limit(name: str) -> int | None:
    """Return the value of an integer attribute in a check; None if its name is not that
    of a limit.
    """
    if _NO_LIMIT.search(name):
        return None
    return next((value for pattern, value in _REDUCED_LIMITS if pattern.search(name)), None)


def find_limits(holders: Iterable[object]) -> Limits:
    """Find the limits that are larger than in a check: by name, the objects that have
    them, with their values.

    holders: configurations and modules of a model.
    """
    limits: Limits = {}
    for holder in {id(holder): holder for holder in holders}.values():
        for name, value in vars(holder).items():
            if type(value) is not int:
                continue
            reduced = find_reduced_limit(name)
            if reduced is not None and value > reduced:
                limits.setdefault(name, []).append((holder, value))
    return limits


@contextmanager
def reduce_attributes(limits: Limits) -> Generator[None]:
    """Reduce limits, as `find_limits` returns them, until the end of the block."""
    try:
        for name, owners in limits.items():
            reduced = find_reduced_limit(name)
            assert reduced is not None
            # All are reduced by the same number, since some modules add 1 to the
            # configuration's window.
            reduction = min(value for _, value in owners) - reduced
            for holder, value in owners:
                setattr(holder, name, value - reduction)
        yield
    finally:
        for name, owners in limits.items():
            for holder, value in owners:
                setattr(holder, name, value)


def compute_reducible(
    limits: Limits, compute: Callable[[Limits], T], kind: str
) -> tuple[Limits, T]:
    """Compute with as many reduced limits as possible: some cannot be reduced, since
    tensors of the model have their sizes. Returns those that were, and the result.

    compute: computes with the given limits reduced; may raise any exception.
    kind: the model's type, for the log.

    Raises what `compute` raises without any reduced limit.
    """
    try:
        return limits, compute(limits)
    except Exception:
        result = compute({})
    reducible: Limits = {}
    for name, owners in limits.items():
        try:
            result = compute(reducible | {name: owners})
        except Exception:
            log.warning(
                "%s: the computation beyond %s (%d) is not checked, since it cannot be reduced",
                kind,
                name,
                min(value for _, value in owners),
            )
        else:
            reducible[name] = owners
    return reducible, result
