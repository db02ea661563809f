"""Runs checks against a server, one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from .check_catalog import Check
from .check_exceptions import LimitReached, Skipped
from .check_report import CheckOutcome, CheckReport, Verdict
from .claims import find_claims, limit_to_abilities
from .client import CheckTarget, Client
from .json_objects import get_objects
from .rules.json_values import JsonObject, Violation, require
from .session import Session


async def find_model(client: Client) -> str:
    """Return the first model that the server lists. Raises Violation if it lists
    none.
    """
    session = Session(client, frozenset())
    exchange = await session.get("/v1/models")
    if exchange.status == 200:
        models: list[JsonObject] = exchange.json().get("data") or []
        if models:
            return str(models[0]["id"])
    exchange = await session.get("/api/tags")
    if exchange.status == 200 and (models := get_objects(exchange.json(), "models")):
        return str(models[0]["name"])
    raise Violation("the server lists no model: set --model")


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
                # A server that is still loading its model returns 503 for every request,
                # so every check would fail.
                health = await Session(client, claims).get("/health")
                require(
                    health.status != 503,
                    f"the server is not ready: GET /health: status 503: {health.message()}",
                )
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


async def _run_check(
    check: Check, client: Client, claims: frozenset[str], allow_destructive: bool
) -> Verdict:
    missing = check.claims - claims
    if missing:
        return Verdict(check, CheckOutcome.SKIPPED, f"not claimed: {', '.join(sorted(missing))}")
    if client.target.profile in check.except_for:
        return Verdict(
            check, CheckOutcome.SKIPPED, f"{client.target.profile} documents another behavior"
        )
    if check.is_destructive and not allow_destructive:
        return Verdict(check, CheckOutcome.SKIPPED, "destructive: run with --destructive")
    session = Session(client, claims)
    start = time.perf_counter()
    outcome = CheckOutcome.PASSED
    reason = ""
    try:
        await check.run(session)
    except LimitReached as limit:
        outcome = CheckOutcome.UNTRIED
        reason = str(limit)
    except Skipped as skipped:
        outcome = CheckOutcome.SKIPPED
        reason = str(skipped)
    except AssertionError as violation:
        outcome = CheckOutcome.FAILED
        reason = str(violation) or "the rule does not hold"
    except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
        # The response lacks a field that the check reads, or the field has another
        # type; or its JSON nests too deeply.
        outcome = CheckOutcome.FAILED
        reason = f"unexpected shape: {type(error).__name__}: {error}"
    return Verdict(check, outcome, reason, tuple(session.exchanges), time.perf_counter() - start)
