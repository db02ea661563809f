"""Fault injection: selects the fault of each request, from the request itself or from a
plan.

The selection is deterministic. The engine injects the fault. A plan:

    - {request: 3, status: 429}     # the third request is rejected
    - {every: 10, cut_after: 7}     # every tenth stream is cut after 7 tokens
    - {probability: 0.05, hang: 5}  # 5% of requests hang for 5 seconds at first
    - {probability: 0.1, errors: [rate_limit, server_error]}  # 10% fail in one of two ways
    - {request: 50, crash: 10}      # the engine crashes, and restarts after 10 s
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from dragoman.core.errors import RequestError
from dragoman.core.token_engine import TokenRequest
from dragoman.engines.script import Fail, build_error

from .keyed_random import KeyedRandom

Count = Annotated[int, Meta(ge=1)]
MAX_SECONDS = 3600
"""Longest time that a fault or a coefficient set at run time may take."""
Seconds = Annotated[float, Meta(ge=0, le=MAX_SECONDS)]


ErrorName = Literal[
    "rate_limit",
    "invalid_api_key",
    "context_length",
    "server_error",
    "invalid_request",
    "model_not_found",
]
"""An error of OpenAI's API; the names are those of llm-d-inference-sim."""
_ERRORS = MappingProxyType(
    {
        "rate_limit": Fail(429, code="rate_limit_exceeded"),
        "invalid_api_key": Fail(401, code="invalid_api_key"),
        "context_length": Fail(400, code="context_length_exceeded", param="messages"),
        "server_error": Fail(500),
        "invalid_request": Fail(400, code="invalid_request_error"),
        "model_not_found": Fail(404, code="model_not_found", param="model"),
    }
)


class Fault(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A fault and the requests to which it applies; all requests if request, every and
    probability are None.

    request: number of the request, from 1.
    every: applies to the requests whose number is a multiple of it.
    probability: share of requests to which it applies, 0 to 1.
    status: HTTP status with which the request is rejected.
    errors: errors of which each request gets one, chosen at random.
    retry_after: seconds, for the `Retry-After` header of that response.
    hang: seconds without output before the first token.
    cut_after: number of tokens after which the connection is cut.
    fail_after: number of tokens after which the stream ends with an error in the format
        of its API.
    crash: seconds until the engine restarts, after failing all requests.
    """

    request: Count | None = None
    every: Count | None = None
    probability: Annotated[float, Meta(ge=0, le=1)] | None = None
    status: Annotated[int, Meta(ge=400, le=599)] | None = None
    errors: tuple[ErrorName, ...] = ()
    message: str = "This is an injected fault."
    retry_after: Seconds | None = None
    hang: Seconds | None = None
    cut_after: Annotated[int, Meta(ge=0)] | None = None
    fail_after: Annotated[int, Meta(ge=0)] | None = None
    crash: Seconds | None = None

    def __post_init__(self) -> None:
        if not self.kinds:
            raise ValueError(
                "a fault needs at least one of status, errors, hang, cut_after, fail_after and "
                "crash"
            )
        if self.status is not None and self.errors:
            raise ValueError("a fault has either a status or errors")

    @property
    def kinds(self) -> tuple[str, ...]:
        """Labels of the fault's kinds in metrics."""
        effects = ("status", "errors", "hang", "cut_after", "fail_after", "crash")
        return tuple(name for name in effects if getattr(self, name) not in (None, ()))

    @property
    def is_rejection(self) -> bool:
        """Whether the request is rejected."""
        return self.status is not None or bool(self.errors)

    def matches(self, number: int, seed: int, index: int) -> bool:
        """Whether the fault applies to the request of this number. index: of this fault
        in its plan.
        """
        return (
            (self.request is None or self.request == number)
            and (self.every is None or number % self.every == 0)
            and (
                self.probability is None
                or KeyedRandom("fault", seed, index, number).random() < self.probability
            )
        )

    def draw_error(self, generator: KeyedRandom) -> Fault:
        """Return the fault with one of its errors, if it has several."""
        if len(self.errors) < 2:
            return self
        chosen = self.errors[generator.randbelow(len(self.errors))]
        return msgspec.structs.replace(self, errors=(chosen,))


class FaultPlan:
    """A fault plan, and the number of requests since it was set."""

    def __init__(self, faults: Sequence[Fault] = (), seed: int = 0) -> None:
        self._seed = seed
        self.set(faults)

    @property
    def faults(self) -> tuple[Fault, ...]:
        return self._faults

    def set(self, faults: Sequence[Fault]) -> None:
        """Replace the plan; request numbers start from 1 again."""
        self._faults = tuple(faults)
        self._requests = 0

    def next_fault(self) -> Fault | None:
        """Count a request and return the first fault that applies to it."""
        self._requests += 1
        if not self._faults:
            return None
        number = self._requests
        for index, fault in enumerate(self._faults):
            if fault.matches(number, self._seed, index):
                return fault.draw_error(KeyedRandom("error", self._seed, index, number))
        return None


def parse_faults(value: object) -> tuple[Fault, ...]:
    """Parse one fault or a list of them from decoded JSON or YAML. Raises ValueError."""
    try:
        return msgspec.convert(value if isinstance(value, list) else [value], tuple[Fault, ...])
    except msgspec.ValidationError as error:
        raise ValueError(f"faults: {error}") from None


class FaultInjector:
    """The active plan, and the fault of the most recent request: its choices share one
    fault.
    """

    def __init__(self, faults: Sequence[Fault], seed: int) -> None:
        self._plan = FaultPlan(faults, seed)
        self._seed = seed
        self._own_faults = 0
        self._last_lookup: tuple[object, Fault | None] = (None, None)

    def encode_plan(self) -> str:
        """Encode the plan as JSON."""
        return msgspec.json.encode(self._plan.faults).decode()

    def set_plan(self, faults: object) -> None:
        """Replace the plan; request numbers start from 1 again. Raises RequestError."""
        try:
            self._plan.set(parse_faults(faults))
        except ValueError as error:
            raise RequestError(str(error), code="invalid_fault") from None

    def find_fault(self, request: TokenRequest) -> Fault | None:
        """Find the fault of a request; None without one. Raises RequestError if its own
        fault is invalid or a crash.
        """
        header = request.extras.fault
        if header is None and not self._plan.faults:
            return None  # a new plan counts from 1, so there is nothing to count
        # Compared by identity: the choices of one request share a fault, but equal
        # requests count separately.
        if self._last_lookup[0] is None or self._last_lookup[0] is not request.origin:
            self._last_lookup = (
                request.origin,
                self._plan.next_fault() if header is None else self._read_own_fault(header),
            )
        return self._last_lookup[1]

    def _read_own_fault(self, header: str) -> Fault:
        """Read a request's own fault. Its error depends on the number of earlier ones,
        which the plan does not count.
        """
        fault = _parse_request_fault(header)
        self._own_faults += 1
        return fault.draw_error(KeyedRandom("own error", self._seed, self._own_faults))


def _parse_request_fault(text: str) -> Fault:
    """Parse a request's own fault. It may not crash the engine, which other requests
    share.
    """
    try:
        (fault,) = parse_faults(msgspec.json.decode(text))
    except (ValueError, msgspec.DecodeError) as error:
        raise RequestError(f"x-dragoman-fault: {error}", code="invalid_fault") from None
    if fault.crash is not None:
        raise RequestError(
            "x-dragoman-fault: only faults set by an administrator can crash the engine",
            code="invalid_fault",
        )
    return fault


def build_fault_error(fault: Fault) -> Exception:
    """Build the error of a fault that rejects the request."""
    fail = _ERRORS[fault.errors[0]] if fault.errors else Fail(fault.status or 500)
    return build_error(
        msgspec.structs.replace(fail, message=fault.message, retry_after=fault.retry_after)
    )
