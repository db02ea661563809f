"""Failures on purpose: which request meets which one. Deterministic; knows no engine.

- {request: 3, status: 429}                  # the third request is refused
- {every: 10, cut_after: 7}                  # every tenth stream breaks off after its seventh token
- {probability: 0.05, hang: 5}               # one in twenty is silent for five seconds before its first token
- {request: 50, crash: 10}                   # the engine dies, and is back after ten seconds
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from .keyed_rng import KeyedRandom

Count = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(ge=0, le=3600)]


class Fault(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What happens, and to whom; without any of request, every and probability to everyone.

    request: the one of this number, from 1. every: all whose number it divides. status: refused with it, before
    anything else. hang: seconds of silence before the first token. cut_after, fail_after: tokens after which the
    stream breaks off without a word, or ends with its dialect's error. crash: the engine fails everything, and takes
    work again after so many seconds.
    """

    request: Count | None = None
    every: Count | None = None
    probability: Annotated[float, Meta(ge=0, le=1)] | None = None
    status: Annotated[int, Meta(ge=400, le=599)] | None = None
    message: str = "This is an injected fault."
    retry_after: Seconds | None = None
    hang: Seconds | None = None
    cut_after: Annotated[int, Meta(ge=0)] | None = None
    fail_after: Annotated[int, Meta(ge=0)] | None = None
    crash: Seconds | None = None

    def __post_init__(self) -> None:
        if not self.kinds:
            raise ValueError("a fault needs at least one of status, hang, cut_after, fail_after and crash")

    @property
    def kinds(self) -> tuple[str, ...]:
        """What it does, as metrics tell it."""
        effects = ("status", "hang", "cut_after", "fail_after", "crash")
        return tuple(name for name in effects if getattr(self, name) is not None)

    def matches(self, number: int, seed: int, index: int) -> bool:
        """Whether it meets the request of this number. place: of this fault in its plan."""
        return (
            (self.request is None or self.request == number)
            and (self.every is None or number % self.every == 0)
            and (self.probability is None or KeyedRandom("fault", seed, index, number).random() < self.probability)
        )


class FaultPlan:
    """The plan in force, and how many requests it has seen since it was."""

    def __init__(self, faults: Sequence[Fault] = (), seed: int = 0) -> None:
        self._seed = seed
        self.set(faults)

    @property
    def faults(self) -> tuple[Fault, ...]:
        return self._faults

    def set(self, faults: Sequence[Fault]) -> None:
        """From now on; requests are counted from 1 again."""
        self._faults = tuple(faults)
        self._requests = 0

    def next_fault(self) -> Fault | None:
        """The first fault that strikes the request that has come."""
        self._requests += 1
        number = self._requests
        hits = (fault for index, fault in enumerate(self._faults) if fault.matches(number, self._seed, index))
        return next(hits, None)


def parse_faults(value: object) -> tuple[Fault, ...]:
    """One fault or a list of them, from what a file or a message holds. Raises ValueError."""
    try:
        return msgspec.convert(value if isinstance(value, list) else [value], tuple[Fault, ...])
    except msgspec.ValidationError as error:
        raise ValueError(f"faults: {error}") from None
