"""Selection of the fault for each request: one that it requests itself, or the plan's. Pure; injects nothing."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ...core.engine import TokenRequest
from ...core.errors import RequestError
from ..script import Fail, build_error
from .faults import Fault, FaultPlan, parse_faults


class FaultInjector:
    """The active plan, and the fault of the most recent request: its choices share one fault."""

    def __init__(self, faults: Sequence[Fault], seed: int) -> None:
        self._plan = FaultPlan(faults, seed)
        self._last_lookup: tuple[object, Fault | None] = (None, None)

    def encode_plan(self) -> str:
        """Encode the plan as JSON."""
        return msgspec.json.encode(self._plan.faults).decode()

    def set_plan(self, faults: object) -> None:
        """A new plan, which counts requests from 1 again. Raises RequestError."""
        try:
            self._plan.set(parse_faults(faults))
        except ValueError as error:
            raise RequestError(str(error), code="invalid_fault") from None

    def find_fault(self, request: TokenRequest) -> Fault | None:
        """Find the fault of a request. Raises RequestError if it names an unknown fault, or one that requests may not
        name."""
        if self._last_lookup[0] is None or self._last_lookup[0] is not request.origin:
            header = dict(request.extras).get("fault") if request.extras else None
            self._last_lookup = (
                request.origin,
                self._plan.next_fault() if header is None else _parse_request_fault(header),
            )
        return self._last_lookup[1]


def _parse_request_fault(text: str) -> Fault:
    """Parse a request's own fault. It may not crash the engine, which other requests share."""
    try:
        (fault,) = parse_faults(msgspec.json.decode(text))
    except (ValueError, msgspec.DecodeError) as error:
        raise RequestError(f"x-dragoman-fault: {error}", code="invalid_fault") from None
    if fault.crash is not None:
        raise RequestError(
            "x-dragoman-fault: only faults set by an administrator can crash the engine", code="invalid_fault"
        )
    return fault


def build_fault_error(fault: Fault) -> Exception:
    """Build the error of a fault that has a status."""
    assert fault.status is not None
    return build_error(Fail(fault.status, fault.message, retry_after=fault.retry_after))
