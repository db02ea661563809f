"""The verdicts on one server."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from .check_catalog import Check
from .client import CheckTarget
from .exchange import Exchange


class CheckOutcome(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    """The rule does not apply, or whether it holds cannot be determined."""
    UNTRIED = "untried"
    """The check did not run: the limit of requests or tokens was used up."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a check.

    reason: why it failed, was skipped or not tried; empty if it passed.
    exchanges: the requests and responses, as evidence.
    seconds: duration of the check.
    """

    check: Check
    outcome: CheckOutcome
    reason: str = ""
    exchanges: tuple[Exchange, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The verdicts on one server, in the order of the catalog.

    requests: number of requests that were sent.
    tokens: output tokens that these requests allowed.
    counts: number of verdicts by outcome.
    """

    target: CheckTarget
    claims: frozenset[str]
    verdicts: tuple[Verdict, ...]
    requests: int = 0
    tokens: int = 0
    counts: dict[CheckOutcome, int] = field(init=False)

    def __post_init__(self) -> None:
        counts = {
            outcome: sum(verdict.outcome is outcome for verdict in self.verdicts)
            for outcome in CheckOutcome
        }
        object.__setattr__(self, "counts", counts)

    @property
    def score(self) -> float | None:
        """Percentage of the passed among the passed and failed checks; a `should` has
        half the weight of a `must`. None without any.
        """
        decided = [
            verdict
            for verdict in self.verdicts
            if verdict.outcome in (CheckOutcome.PASSED, CheckOutcome.FAILED)
        ]
        weights = [
            (1.0 if verdict.check.level == "must" else 0.5, verdict.outcome) for verdict in decided
        ]
        total = sum(weight for weight, _ in weights)
        passed = sum(weight for weight, outcome in weights if outcome is CheckOutcome.PASSED)
        return 100 * passed / total if total else None

    def find_exit_code(self, *, strict: bool = False) -> int:
        """Return 1 if a `must` check failed, else 3 if the limits left checks untried,
        else 0.

        strict: a failed `should` check is an error, too.
        """
        failed = [
            verdict.check.level
            for verdict in self.verdicts
            if verdict.outcome is CheckOutcome.FAILED
        ]
        if failed if strict else "must" in failed:
            return 1
        return 3 if self.counts[CheckOutcome.UNTRIED] else 0
