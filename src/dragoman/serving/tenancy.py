"""Limits, budgets and usage of keys, the same for every dialect and way of transport.

A call is admitted by `Tenancy.admit`, which takes a request and a place from its key's counters; its tokens follow once
its prompt has been counted and when it has ended. A call that is rejected by a limit costs nothing.

Counters that are shared with other processes take one round trip before the call, and one after it: where the tokens of
the prompt are limited too, everything is taken when they are known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import TracebackType

import msgspec
from msgspec import Struct

from ..core.errors import BudgetExhausted, RateLimited
from ..dialects.errors import RateLimitState
from ..pipeline.request_queue import ONE_QUEUE, QueueShare
from ..tenants import Counters, Demand, Tenant
from ..tenants.shared import SharedCounters
from .auth import Caller, Keyring
from .clock import Clock
from .usage import UsageCounts, UsageKey, UsageLedger, end_of_month, start_of_day

REQUESTS, TOKENS, CONCURRENCY, DAY, MONTH = "requests", "tokens", "concurrency", "day", "month"
COMPLETIONS, EMBEDDINGS = "completions", "embeddings"
"""Kinds of usage, as in OpenAI's usage routes."""
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
        self.shared_counters: SharedCounters | None = None
        """None where the limits are counted in this process alone."""

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
    """The keys of a server, with their limits and usage."""

    def __init__(
        self, keyring: Keyring, counters: Counters, ledger: UsageLedger, metrics: KeyMetrics, clock: Clock
    ) -> None:
        self.keyring, self.ledger, self.metrics = keyring, ledger, metrics
        self.counters, self._clock = counters, clock
        if isinstance(counters, SharedCounters):
            metrics.shared_counters = counters

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
            demands = self._build_demands(tenant)
            # A shared counter is asked once, with the tokens of the prompt; or now, where the request will hardly pass.
            # Embeddings learn their tokens at the end.
            waits_for_prompt = self.counters.is_shared and tenant.tokens_per_minute is not None and kind == COMPLETIONS
            if not waits_for_prompt or self.counters.check(tenant.id, demands) is not None:
                await self._take(tenant, name, demands)
                account.is_begun = True
        self.metrics.running[name] += 1
        return account

    async def charge_prompt(self, account: CallAccount, tenant: Tenant, tokens: int) -> None:
        """Raises RateLimited: the key has fewer tokens left, and its bucket is not full either; or, if nothing has been
        taken yet, as `admit`.
        """
        name = account.key.name
        if not account.is_begun:
            await self._take(tenant, name, self._build_demands(tenant, tokens))
            account.is_begun = True
        elif tenant.tokens_per_minute is not None and tokens:
            demand = Demand(TOKENS, tenant.tokens_per_minute, amount=tokens, needed=tokens)
            try:
                await self._take(tenant, name, [demand])
            except RateLimited:
                # A call that a limit rejects costs nothing. Its place is given back when its account is left.
                self.add(tenant, {REQUESTS: -1})
                raise

    async def _take(self, tenant: Tenant, name: str, demands: list[Demand]) -> None:
        """Raises RateLimited: a limit or budget is reached. name: of the key."""
        unmet = await self.counters.take(tenant.id, demands) if demands else None
        if unmet is None:
            return
        demand, state = unmet.demand, unmet.state
        self.metrics.count_rejection(name, demand.counter)
        if demand.until:
            raise BudgetExhausted(
                f"You exceeded your current quota: the key `{name}` has used {state.used} of {demand.limit} tokens of "
                f"this {demand.counter} (UTC).",
                retry_after=demand.until / SECOND - self._clock.now(),
            )
        if demand.is_hold:
            raise RateLimited(
                f"Rate limit reached for the key `{name}`: {demand.limit} concurrent requests. Please try again when "
                "one has ended.",
                limit=REQUESTS,
                # When a request ends is unknown; a second is short, and bounds the rate of retries.
                retry_after=1.0,
            )
        seconds = unmet.retry_after / SECOND
        used = demand.limit - state.remaining
        raise RateLimited(
            f"Rate limit reached for the key `{name}` on {demand.counter} per min: Limit {demand.limit}, Used {used}, "
            f"Requested {demand.needed}. Please try again in {seconds:.3g}s.",
            limit=demand.counter,
            retry_after=seconds,
        )

    def add(self, tenant: Tenant, amounts: Mapping[str, int]) -> None:
        """Take amounts from counters, whatever is there; negative ones are given back."""
        for demand in self._build_demands(tenant):
            if amount := amounts.get(demand.counter, 0):
                self.counters.add(tenant.id, msgspec.structs.replace(demand, amount=amount, floor=0))

    def read_limits(self, owner: str) -> tuple[RateLimitState, ...]:
        """The state of a key's limits a minute; empty without limits."""
        if self.keyring.is_open:
            return ()
        tenant = self.keyring.peek_tenant(owner)
        if tenant is None:
            return ()
        limits = [demand for demand in self._build_demands(tenant) if demand.period]
        return tuple(
            RateLimitState(each.counter, each.limit, each.remaining, each.reset_after / SECOND)
            for each in self.counters.peek(tenant.id, limits)
        )

    def _build_demands(self, tenant: Tenant, prompt_tokens: int = 0) -> list[Demand]:
        """The demands of a request on its key's counters. While its prompt's tokens are unknown, one must be left."""
        demands: list[Demand] = []
        if tenant.requests_per_minute is not None:
            demands.append(Demand(REQUESTS, tenant.requests_per_minute))
        if tenant.tokens_per_minute is not None:
            needed = max(1, prompt_tokens)
            demands.append(Demand(TOKENS, tenant.tokens_per_minute, amount=prompt_tokens, needed=needed))
        if tenant.concurrent_requests is not None:
            demands.append(Demand(CONCURRENCY, tenant.concurrent_requests, period=0))
        now = self._clock.now()
        if tenant.tokens_per_day is not None:
            demands.append(
                Demand(
                    DAY,
                    tenant.tokens_per_day,
                    period=0,
                    amount=0,
                    until=(start_of_day(now) + 86400) * SECOND,
                    floor=self.ledger.count_tokens_of_day(tenant.id),
                )
            )
        if tenant.tokens_per_month is not None:
            demands.append(
                Demand(
                    MONTH,
                    tenant.tokens_per_month,
                    period=0,
                    amount=0,
                    until=end_of_month(now) * SECOND,
                    floor=self.ledger.count_tokens_of_month(tenant.id),
                )
            )
        return demands


class CallAccount:
    """The account of one call with its key: a context that is left when the call has ended in any way, after `settle`
    if the engine has worked on it.
    """

    def __init__(self, tenancy: Tenancy, tenant: Tenant | None, key: UsageKey) -> None:
        self._tenancy, self._tenant, self.key = tenancy, tenant, key
        self._charged = 0
        self._counts: UsageCounts | None = None
        self.is_begun = False
        """Whether its request and its place were taken."""

    async def charge_prompt(self, tokens: int) -> None:
        """Take the prompt's tokens. Raises RateLimited, after which the call has cost nothing."""
        if self._tenant is not None:
            await self._tenancy.charge_prompt(self, self._tenant, tokens)
            self._charged = tokens

    def settle(self, *, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> None:
        """Note what the engine has used. Called more than once, the last call counts."""
        self._counts = UsageCounts(1, prompt_tokens, cached_tokens, output_tokens)

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        tenancy, tenant, counts = self._tenancy, self._tenant, self._counts or UsageCounts()
        tenancy.metrics.running[self.key.name] -= 1
        if tenant is not None and self.is_begun:
            # Of the tokens a minute: the prompt of a request that never reached the engine; or what was generated.
            tokens = counts.tokens - self._charged
            tenancy.add(tenant, {CONCURRENCY: -1, TOKENS: tokens, DAY: counts.tokens, MONTH: counts.tokens})
        elif tenant is not None and (kind is None or not issubclass(kind, RateLimited)):
            # Its prompt was invalid: that costs a request.
            tenancy.add(tenant, {REQUESTS: 1})
        if self._counts is None:
            return
        tenancy.ledger.record(self.key, counts)
        usage = tenancy.metrics.find_usage(self.key.name, self.key.model)
        usage.requests += 1
        usage.prompt_tokens += counts.input
        usage.generation_tokens += counts.output
