"""Runs checks against a server, and collects verdicts with their evidence."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from ..conformance.checks import require
from .profiles import find_claims, find_model, limit_to_abilities
from .registry import Check, Skipped
from .session import CheckTarget, Client, Exchange, LimitReached, Session


class CheckOutcome(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    """It does not apply here, or cannot be judged."""
    UNTRIED = "untried"
    """The limit of requests or tokens was used up."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a check. reason: why it failed or was skipped. seconds: that it took."""

    check: Check
    outcome: CheckOutcome
    reason: str = ""
    exchanges: tuple[Exchange, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The verdicts on one server, in the order of the catalog."""

    target: CheckTarget
    claims: frozenset[str]
    verdicts: tuple[Verdict, ...]
    requests: int = 0
    tokens: int = 0
    counts: dict[CheckOutcome, int] = field(init=False)

    def __post_init__(self) -> None:
        counts = {outcome: sum(verdict.outcome is outcome for verdict in self.verdicts) for outcome in CheckOutcome}
        object.__setattr__(self, "counts", counts)

    @property
    def score(self) -> float | None:
        """The share of judged rules that hold, in percent; a `should` weighs half as much as a `must`."""
        judged = [verdict for verdict in self.verdicts if verdict.outcome in (CheckOutcome.PASSED, CheckOutcome.FAILED)]
        weights = [(1.0 if verdict.check.level == "must" else 0.5, verdict.outcome) for verdict in judged]
        total = sum(weight for weight, _ in weights)
        passed = sum(weight for weight, outcome in weights if outcome is CheckOutcome.PASSED)
        return 100 * passed / total if total else None

    def find_exit_code(self, *, strict: bool = False) -> int:
        """0: every rule that a server must follow holds. 1: one does not. 3: the limits left some untried.

        strict: rules that a server should follow count, too.
        """
        failed = [verdict.check.level for verdict in self.verdicts if verdict.outcome is CheckOutcome.FAILED]
        if failed if strict else "must" in failed:
            return 1
        return 3 if self.counts[CheckOutcome.UNTRIED] else 0


OnVerdict = Callable[[Verdict], None]


async def run_checks(
    target: CheckTarget,
    checks: Sequence[Check],
    *,
    allow_destructive: bool = False,
    on_verdict: OnVerdict = lambda _: None,
) -> CheckReport:
    """Run the checks one after the other.

    Raises Violation if the server cannot be reached, is not ready, or lists no model.
    """
    client = Client(target)
    try:
        try:
            claims = await find_claims(client)
            if "health" in claims:
                # Servers that load their model answer every request with 503: no rule would be judged.
                health = await Session(client, claims).get("/health")
                require(health.status != 503, f"the server is not ready: GET /health: status 503: {health.message()}")
            if not target.model:
                client.target = target = replace(target, model=await find_model(client))
            claims = await limit_to_abilities(client, claims)
        except LimitReached as limit:
            untried = tuple(Verdict(check, CheckOutcome.UNTRIED, str(limit)) for check in checks)
            return CheckReport(target, frozenset(), untried, client.requests, client.tokens)
        verdicts: list[Verdict] = []
        for check in checks:
            verdicts.append(await _run_check(check, client, claims, allow_destructive))
            on_verdict(verdicts[-1])
        return CheckReport(target, claims, tuple(verdicts), client.requests, client.tokens)
    finally:
        await client.close()


async def _run_check(check: Check, client: Client, claims: frozenset[str], allow_destructive: bool) -> Verdict:
    missing = check.claims - claims
    if missing:
        return Verdict(check, CheckOutcome.SKIPPED, f"not claimed: {', '.join(sorted(missing))}")
    if client.target.profile in check.except_for:
        return Verdict(check, CheckOutcome.SKIPPED, f"{client.target.profile} documents another behaviour")
    if check.is_destructive and not allow_destructive:
        return Verdict(check, CheckOutcome.SKIPPED, "destructive: run with --destructive")
    session, start = Session(client, claims), time.perf_counter()
    outcome, reason = CheckOutcome.PASSED, ""
    try:
        await check.run(session)
    except LimitReached as limit:
        outcome, reason = CheckOutcome.UNTRIED, str(limit)
    except Skipped as skipped:
        outcome, reason = CheckOutcome.SKIPPED, str(skipped)
    except AssertionError as violation:
        outcome, reason = CheckOutcome.FAILED, str(violation) or "the rule does not hold"
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        # A field that the check reads is absent, or of another type.
        outcome, reason = CheckOutcome.FAILED, f"unexpected shape: {type(error).__name__}: {error}"
    return Verdict(check, outcome, reason, tuple(session.exchanges), time.perf_counter() - start)
