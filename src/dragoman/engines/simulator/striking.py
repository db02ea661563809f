"""Which fault meets which request: one that it asks for itself, or the plan's. Knows no clock and strikes nobody."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ...core.engine import TokenRequest
from ...core.errors import RequestError
from ..script import Fail, error_of
from .faults import Fault, FaultPlan, read_faults


class Striking:
    """The plan in force, and what was found for the request that came last: its choices share one fault."""

    def __init__(self, faults: Sequence[Fault], seed: int) -> None:
        self._plan = FaultPlan(faults, seed)
        self._found: tuple[object, Fault | None] = (None, None)

    def text(self) -> str:
        """The plan, as JSON."""
        return msgspec.json.encode(self._plan.faults).decode()

    def set(self, faults: object) -> None:
        """A new plan, which counts requests from 1 again. Raises RequestError."""
        try:
            self._plan.set(read_faults(faults))
        except ValueError as error:
            raise RequestError(str(error), code="invalid_fault") from None

    def meets(self, request: TokenRequest) -> Fault | None:
        """Raises RequestError for a request that asks for a fault that there is not, or may not ask for."""
        if self._found[0] is None or self._found[0] is not request.asked:
            told = dict(request.extras).get("fault")
            self._found = (request.asked, self._plan.next() if told is None else _told(told))
        return self._found[1]


def _told(text: str) -> Fault:
    """A request's own. It may not crash the engine of the others."""
    try:
        (fault,) = read_faults(msgspec.json.decode(text))
    except (ValueError, msgspec.DecodeError) as error:
        raise RequestError(f"x-dragoman-fault: {error}", code="invalid_fault") from None
    if fault.crash is not None:
        raise RequestError(
            "x-dragoman-fault: only faults set by an administrator can crash the engine", code="invalid_fault"
        )
    return fault


def refusal(fault: Fault) -> Exception:
    """What a fault that has a status is answered with."""
    assert fault.status is not None
    return error_of(Fail(fault.status, fault.message, retry_after=fault.retry_after))
