"""The tenancy of API keys: their rate limits, budgets, usage, for every dialect.

`Tenancy.admit` admits a call: it takes one request and one concurrency slot from the
key's counters. Prompt tokens are taken when they have been counted, output tokens when
the call has ended. A call that a limit rejects costs nothing.

Counters that are shared with other processes cost one round trip before the call and
one after it: if prompt tokens are limited too, everything is taken at once, when their
number is known.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType

from ..core.errors import BudgetExhausted, RateLimited
from ..dialects.rate_limit_headers import RateLimitState
from ..isolation.fair_threads import FairThreads
from ..pipeline.request_queue import ONE_QUEUE, QueueShare
from ..tenants import Counters, Demand, Tenant
from ..tenants.shared_counters import SharedCounters
from .auth import Caller, Keyring
from .clock import Clock
from .key_metrics import KeyMetrics
from .usage_ledger import UsageCounts, UsageKey, UsageLedger, end_of_month, start_of_day

REQUESTS = "requests"
READS = "reads"
TOKENS = "tokens"
CONCURRENCY = "concurrency"
DAY = "day"
MONTH = "month"
COMPLETIONS = "completions"
EMBEDDINGS = "embeddings"
TRANSCRIPTIONS = "audio_transcriptions"
"""Kinds of usage, as in OpenAI's usage routes."""
READS_PER_REQUEST = 10
MIN_READS = 60
"""Reads per minute: a client that polls once per second must not be refused."""
SECOND = 1_000_000
"""Microseconds per second: counters measure time in microseconds."""


class _Limits:
    """The limits of a tenant that do not depend on the time, as demands of a request whose
    prompt is not yet counted.

    demands: all of them.
    rates: those per minute, which the response headers report.
    has_budgets: the tenant has limits of a day or a month too.
    """

    __slots__ = ("demands", "has_budgets", "rates", "tenant")

    def __init__(self, tenant: Tenant) -> None:
        self.tenant = tenant
        self.demands: list[Demand] = []
        if tenant.requests_per_minute is not None:
            self.demands.append(Demand(REQUESTS, tenant.requests_per_minute))
        if tenant.tokens_per_minute is not None:
            self.demands.append(Demand(TOKENS, tenant.tokens_per_minute, amount=0))
        if tenant.concurrent_requests is not None:
            self.demands.append(Demand(CONCURRENCY, tenant.concurrent_requests, period=0))
        self.rates = [demand for demand in self.demands if demand.period]
        self.has_budgets = tenant.tokens_per_day is not None or tenant.tokens_per_month is not None


class Tenancy:
    """The API keys of a server, with their limits and usage."""

    def __init__(
        self,
        keyring: Keyring,
        counters: Counters,
        ledger: UsageLedger,
        metrics: KeyMetrics,
        clock: Clock,
    ) -> None:
        self.keyring = keyring
        self.ledger = ledger
        self.metrics = metrics
        self.counters = counters
        self._clock = clock
        self._threads = FairThreads()
        self._limits: dict[str, _Limits] = {}
        """By the tenant's id. Rebuilt when the keys file has changed the tenant."""
        if isinstance(counters, SharedCounters):
            metrics.shared_counters = counters

    def find_share(self, owner: str) -> QueueShare:
        """Return the owner's share of an engine. With at most one key, all requests
        share one queue.
        """
        if len(self.keyring.owners) < 2:
            return ONE_QUEUE
        tenant = self.keyring.find_tenant(owner)
        return QueueShare(owner, 1.0 if tenant is None else tenant.weight, self._threads)

    async def admit(self, caller: Caller, model: str, kind: str) -> CallAccount | None:
        """Admit a call to a model, and return its account; None if the server has no
        keys and so counts nothing.

        kind: COMPLETIONS, EMBEDDINGS or TRANSCRIPTIONS.

        Raises:
            AuthenticationError: the key was revoked while its connection or job was
                open.
            RateLimited: a limit or budget of the key is reached.
        """
        if self.keyring.is_open:
            return None
        owner = caller.owner
        tenant = self.keyring.find_tenant(owner)
        name = self.keyring.find_name(owner) or ""
        account = CallAccount(
            self, tenant, UsageKey(owner, name, kind, model, caller.is_background)
        )
        if tenant is not None:
            demands = self._build_demands(tenant)
            # Shared counters are asked once, when the prompt tokens are known; or now
            # if the last known state would reject the call. For embeddings and
            # transcriptions the tokens are known only at the end.
            waits_for_prompt = (
                self.counters.is_shared
                and tenant.tokens_per_minute is not None
                and kind == COMPLETIONS
            )
            if not waits_for_prompt or self.counters.check(tenant.id, demands) is not None:
                await self._take(tenant, name, demands)
                account.is_begun = True
        self.metrics.running[name] += 1
        return account

    async def admit_request(self, caller: Caller) -> AbstractContextManager[None]:
        """Admit a request that calls no model. The context is its concurrency slot.

        Raises:
            AuthenticationError, RateLimited: as `admit`.
        """
        tenant = self.keyring.find_tenant(caller.owner)
        if tenant is None:
            return nullcontext()
        limits = [
            demand
            for demand in self._build_demands(tenant)
            if demand.counter in (REQUESTS, CONCURRENCY)
        ]
        await self._take(tenant, self.keyring.find_name(caller.owner) or "", limits)
        return self._hold_slot(tenant)

    @contextmanager
    def _hold_slot(self, tenant: Tenant) -> Generator[None]:
        try:
            yield
        finally:
            self.add(tenant, {CONCURRENCY: -1})

    async def admit_read(self, caller: Caller) -> None:
        """Admit a request that only reads or deletes what is stored: clients poll, so
        these have a limit of their own.

        Raises:
            AuthenticationError, RateLimited: as `admit`.
        """
        tenant = self.keyring.find_tenant(caller.owner)
        if tenant is None or tenant.requests_per_minute is None:
            return
        limit = max(MIN_READS, READS_PER_REQUEST * tenant.requests_per_minute)
        name = self.keyring.find_name(caller.owner) or ""
        await self._take(tenant, name, [Demand(READS, limit)])

    async def charge_prompt(self, account: CallAccount, tenant: Tenant, tokens: int) -> None:
        """Take the prompt's tokens, and what `admit` has not taken yet.

        Raises:
            RateLimited: the key has too few tokens left, and its bucket is not full;
                or, if `admit` has taken nothing, any limit or budget of the key is
                reached.
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
                # A call that a limit rejects costs nothing. `CallAccount.__exit__`
                # frees its concurrency slot.
                self.add(tenant, {REQUESTS: -1})
                raise

    async def _take(self, tenant: Tenant, name: str, demands: Sequence[Demand]) -> None:
        """Take the demands from the key's counters, all or none.

        name: name of the key.

        Raises:
            RateLimited: a limit or budget is reached.
        """
        unmet = await self.counters.take(tenant.id, demands) if demands else None
        if unmet is None:
            return
        demand = unmet.demand
        state = unmet.state
        self.metrics.count_rejection(name, demand.counter)
        if demand.until:
            raise BudgetExhausted(
                f"You exceeded your current quota: the key `{name}` has used {state.used} of "
                f"{demand.limit} tokens of "
                f"this {demand.counter} (UTC).",
                retry_after=demand.until / SECOND - self._clock.now(),
            )
        if demand.is_hold:
            raise RateLimited(
                f"Rate limit reached for the key `{name}`: {demand.limit} concurrent requests. "
                f"Please try again when "
                "one of them has ended.",
                limit=REQUESTS,
                # It is unknown when a request will end; one second is short, yet bounds
                # the rate of retries.
                retry_after=1.0,
            )
        seconds = unmet.retry_after / SECOND
        used = demand.limit - state.remaining
        raise RateLimited(
            f"Rate limit reached for the key `{name}` on {demand.counter} per min: Limit "
            f"{demand.limit}, Used {used}, "
            f"Requested {demand.needed}. Please try again in {seconds:.3g}s.",
            limit=REQUESTS if demand.counter == READS else demand.counter,
            retry_after=seconds,
        )

    def add(self, tenant: Tenant, amounts: Mapping[str, int]) -> None:
        """Take amounts from counters without checking their limits. Negative amounts
        are given back.
        """
        for demand in self._build_demands(tenant):
            if amount := amounts.get(demand.counter, 0):
                change = Demand(
                    demand.counter,
                    demand.limit,
                    demand.period,
                    amount,
                    demand.needed,
                    demand.until,
                )
                self.counters.add(tenant.id, change)

    def read_limits(self, owner: str) -> tuple[RateLimitState, ...]:
        """Return the state of a key's per-minute limits; empty without limits."""
        if self.keyring.is_open:
            return ()
        tenant = self.keyring.peek_tenant(owner)
        if tenant is None:
            return ()
        rates = self._find_limits(tenant).rates
        return tuple(
            [
                RateLimitState(each.counter, each.limit, each.remaining, each.reset_after / SECOND)
                for each in self.counters.peek(tenant.id, rates)
            ]
        )

    def _find_limits(self, tenant: Tenant) -> _Limits:
        limits = self._limits.get(tenant.id)
        if limits is None or limits.tenant is not tenant:
            limits = self._limits[tenant.id] = _Limits(tenant)
        return limits

    def _build_demands(self, tenant: Tenant, prompt_tokens: int = 0) -> Sequence[Demand]:
        """Build the demands of a request on its key's counters.

        While the prompt tokens are unknown, at least one token must be left.
        """
        limits = self._find_limits(tenant)
        if not limits.has_budgets and not prompt_tokens:
            return limits.demands
        demands = [
            Demand(TOKENS, demand.limit, amount=prompt_tokens, needed=prompt_tokens)
            if prompt_tokens and demand.counter == TOKENS
            else demand
            for demand in limits.demands
        ]
        now = self._clock.now()
        if tenant.tokens_per_day is not None:
            demands.append(
                Demand(
                    DAY,
                    tenant.tokens_per_day,
                    period=0,
                    amount=0,
                    until=(start_of_day(now) + 86400) * SECOND,
                    floor=self.ledger.get_tokens_today(tenant.id),
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
                    floor=self.ledger.get_tokens_this_month(tenant.id),
                )
            )
        return demands


class CallAccount:
    """The account of one call with its key: a context manager that ends with the call,
    however that ends.

    Call `settle` before the exit if the engine has processed the call.
    """

    def __init__(self, tenancy: Tenancy, tenant: Tenant | None, key: UsageKey) -> None:
        self._tenancy = tenancy
        self._tenant = tenant
        self.key = key
        self._charged = 0
        self._counts: UsageCounts | None = None
        self.is_begun = False
        """Whether a request and a concurrency slot have been taken."""

    async def charge_prompt(self, tokens: int) -> None:
        """Take the prompt's tokens. Raises RateLimited, after which the call has cost
        nothing.
        """
        if self._tenant is not None:
            await self._tenancy.charge_prompt(self, self._tenant, tokens)
            self._charged = tokens

    def settle(self, *, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> None:
        """Set the tokens that the engine has used. If called several times, the last
        call counts.
        """
        self._counts = UsageCounts(1, prompt_tokens, cached_tokens, output_tokens)

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None
    ) -> None:
        tenancy = self._tenancy
        tenant = self._tenant
        counts = self._counts or UsageCounts()
        tenancy.metrics.running[self.key.name] -= 1
        if tenant is not None and self.is_begun:
            # The minute's tokens: negative if the prompt was charged but never reached
            # the engine, else the output.
            tokens = counts.tokens - self._charged
            tenancy.add(
                tenant, {CONCURRENCY: -1, TOKENS: tokens, DAY: counts.tokens, MONTH: counts.tokens}
            )
        elif tenant is not None and (kind is None or not issubclass(kind, RateLimited)):
            # The prompt was invalid: that still costs a request.
            tenancy.add(tenant, {REQUESTS: 1})
        if self._counts is None:
            return
        tenancy.ledger.record(self.key, counts)
        usage = tenancy.metrics.find_usage(self.key.name, self.key.model)
        usage.requests += 1
        usage.prompt_tokens += counts.input
        usage.generation_tokens += counts.output
