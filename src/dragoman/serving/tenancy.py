"""Limits, budgets and usage of keys, the same for every dialect and way of transport.

A call is admitted by `Tenancy.admit`, which takes a request and a place from its key's counters; its tokens follow once
its prompt has been counted and when it has ended. A call that is rejected by a limit costs nothing.
"""

from __future__ import annotations

from collections import Counter
from types import TracebackType

from msgspec import Struct

from ..core.errors import BudgetExhausted, RateLimited
from ..dialects.rate_limits import RateLimitState
from ..pipeline.request_queue import ONE_QUEUE, QueueShare
from ..tenants import Counters, Demand, Tenant
from ..tenants.counters import UnmetDemand
from .auth import Caller, Keyring
from .clock import Clock
from .usage import UsageCounts, UsageKey, UsageLedger, end_of_month, start_of_day

REQUESTS, TOKENS, CONCURRENCY = "requests", "tokens", "concurrency"
SECOND = 1_000_000
"""Microseconds."""
MAX_SERIES = 1000
"""Pairs of key and model with usage of their own in the metrics; further ones are counted together as `other`."""


class KeyUsage(Struct):
    """Counters of the metrics, since the start of the process."""

    requests: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0


class KeyMetrics:
    """Usage by key and model, and rejections by key and limit. Labels are bounded: names of keys come from the file of
    keys, names of models from the server's settings.
    """

    def __init__(self) -> None:
        self.usage: dict[tuple[str, str], KeyUsage] = {}
        self.rejected: Counter[tuple[str, str]] = Counter()
        self.running: Counter[str] = Counter()

    def find_usage(self, key: str, model: str) -> KeyUsage:
        found = self.usage.get((key, model))
        if found is None:
            labels = (key, model) if len(self.usage) < MAX_SERIES else ("other", "other")
            found = self.usage.setdefault(labels, KeyUsage())
        return found

    def count_rejection(self, key: str, limit: str) -> None:
        labels = (key, limit) if (key, limit) in self.rejected or len(self.rejected) < MAX_SERIES else ("other", limit)
        self.rejected[labels] += 1


class Tenancy:
    """What a server knows of its keys."""

    def __init__(
        self, keyring: Keyring, counters: Counters, ledger: UsageLedger, metrics: KeyMetrics, clock: Clock
    ) -> None:
        self.keyring, self.ledger, self.metrics = keyring, ledger, metrics
        self._counters, self._clock = counters, clock

    def find_share(self, owner: str) -> QueueShare:
        """The owner's share of an engine. One queue for all where there is one key at most."""
        if self.keyring.n_owners < 2:
            return ONE_QUEUE
        tenant = self.keyring.find_tenant(owner)
        return QueueShare(owner, 1.0 if tenant is None else tenant.weight)

    async def admit(self, caller: Caller, model: str, kind: str) -> CallAccount | None:
        """Admit a call to a model; None where no key is configured, and nothing is counted.

        kind: as in UsageKey.

        Raises:
            AuthenticationError: the key was revoked while its connection or job was open.
            RateLimited: a limit or budget of the key is reached.
        """
        if self.keyring.is_open:
            return None
        owner = caller.owner
        tenant, name = self.keyring.find_tenant(owner), self.keyring.find_name(owner) or ""
        account = CallAccount(self, tenant, UsageKey(owner, name, kind, model, caller.is_background))
        if tenant is not None:
            self._check_budgets(tenant, name)
            # Tokens: some must be left. How many the prompt has is not known yet.
            demands = [*_build_demands(tenant), *_build_concurrency_demand(tenant)]
            rejection = await self._counters.take(tenant.id, demands)
            if rejection is not None:
                raise self._build_error(name, rejection)
        self.metrics.running[name] += 1
        return account

    async def charge_prompt(self, tenant: Tenant, name: str, tokens: int) -> None:
        """Raises RateLimited: the key has fewer tokens left, and its bucket is not full either."""
        if tenant.tokens_per_minute is None or not tokens:
            return
        demand = Demand(TOKENS, tenant.tokens_per_minute, amount=tokens, needed=tokens)
        rejection = await self._counters.take(tenant.id, [demand])
        if rejection is not None:
            raise self._build_error(name, rejection)

    def give_back(self, tenant: Tenant, counter: str, amount: int) -> None:
        """Give back what was taken; a negative amount takes more, whatever is there."""
        for demand in (*_build_demands(tenant), *_build_concurrency_demand(tenant)):
            if demand.counter == counter:
                self._counters.add(tenant.id, Demand(counter, demand.limit, demand.period, amount=-amount))

    def read_limits(self, owner: str) -> tuple[RateLimitState, ...]:
        """The state of a key's limits a minute; empty without limits."""
        if self.keyring.is_open:
            return ()
        tenant = self.keyring.peek_tenant(owner)
        if tenant is None:
            return ()
        states = self._counters.peek(tenant.id, _build_demands(tenant))
        return tuple(
            RateLimitState(each.counter, each.limit, each.remaining, each.reset_after / SECOND) for each in states
        )

    def _check_budgets(self, tenant: Tenant, name: str) -> None:
        now = self._clock.now()
        budgets = (
            ("day", tenant.tokens_per_day, self.ledger.count_tokens_of_day, start_of_day(now) + 86400),
            ("month", tenant.tokens_per_month, self.ledger.count_tokens_of_month, end_of_month(now)),
        )
        for period, budget, count, end in budgets:
            if budget is not None and (used := count(tenant.id)) >= budget:
                self.metrics.count_rejection(name, period)
                raise BudgetExhausted(
                    f"You exceeded your current quota: the key `{name}` has used {used} of {budget} tokens of this "
                    f"{period} (UTC).",
                    retry_after=end - now,
                )

    def _build_error(self, name: str, rejection: UnmetDemand) -> RateLimited:
        demand, state = rejection.demand, rejection.state
        self.metrics.count_rejection(name, demand.counter)
        if not demand.period:
            return RateLimited(
                f"Rate limit reached for the key `{name}`: {demand.limit} concurrent requests. Please try again when "
                "one has ended.",
                limit=REQUESTS,
                retry_after=1.0,
            )
        seconds = rejection.retry_after / SECOND
        used = demand.limit - state.remaining
        return RateLimited(
            f"Rate limit reached for the key `{name}` on {demand.counter} per min: Limit {demand.limit}, Used {used}, "
            f"Requested {demand.needed}. Please try again in {seconds:.3g}s.",
            limit=demand.counter,
            retry_after=seconds,
        )


class CallAccount:
    """What one call takes from its key: a context that is left when the call has ended in any way, after `settle` if
    the engine has worked on it.
    """

    def __init__(self, tenancy: Tenancy, tenant: Tenant | None, key: UsageKey) -> None:
        self._tenancy, self._tenant, self._key = tenancy, tenant, key
        self._charged = 0
        self._counts: UsageCounts | None = None

    async def charge_prompt(self, tokens: int) -> None:
        """Take the prompt's tokens. Raises RateLimited, after which the call has cost nothing."""
        if self._tenant is None:
            return
        try:
            await self._tenancy.charge_prompt(self._tenant, self._key.name, tokens)
        except RateLimited:
            self._tenancy.give_back(self._tenant, REQUESTS, 1)
            raise
        self._charged = tokens

    def settle(self, *, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> None:
        """Note what the engine has used. Called more than once, the last call counts."""
        self._counts = UsageCounts(1, prompt_tokens, cached_tokens, output_tokens)

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        tenancy, tenant, counts = self._tenancy, self._tenant, self._counts or UsageCounts()
        tenancy.metrics.running[self._key.name] -= 1
        if tenant is not None:
            tenancy.give_back(tenant, CONCURRENCY, 1)
            # The prompt's tokens of a request that never reached the engine; or the generated ones.
            tenancy.give_back(tenant, TOKENS, self._charged - counts.tokens)
        if self._counts is None:
            return
        tenancy.ledger.record(self._key, counts)
        usage = tenancy.metrics.find_usage(self._key.name, self._key.model)
        usage.requests += 1
        usage.prompt_tokens += counts.input
        usage.generation_tokens += counts.output


def _build_demands(tenant: Tenant) -> list[Demand]:
    """What a request takes from the limits a minute, before its tokens are known: one must be left."""
    demands: list[Demand] = []
    if tenant.requests_per_minute is not None:
        demands.append(Demand(REQUESTS, tenant.requests_per_minute))
    if tenant.tokens_per_minute is not None:
        demands.append(Demand(TOKENS, tenant.tokens_per_minute, amount=0))
    return demands


def _build_concurrency_demand(tenant: Tenant) -> list[Demand]:
    limit = tenant.concurrent_requests
    return [] if limit is None else [Demand(CONCURRENCY, limit, period=0)]
