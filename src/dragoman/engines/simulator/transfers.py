"""What one engine core keeps for other instances, and what it fetches from them. Pure; the clock is a driver's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec
from msgspec import Struct

from ...core.engine import Ended, Failed
from ...core.errors import RequestError
from ...core.events import FinishReason
from .disaggregation import Address, KvTransferParams, Leases, Link, TransferCost, prefilled
from .scheduler import Fetch, Scheduler
from .sequence import Sequence

KvRole = Literal["kv_producer", "kv_consumer", "kv_both"]
_PARAM = "kv_transfer_params"


class Exchange(Struct, frozen=True):
    """How an instance takes part. report: tells the instance that is named there that its blocks are wanted no more."""

    address: Address
    cost: TransferCost
    lease_seconds: float
    report: Callable[[KvTransferParams], None]


def read_asked(text: str, role: KvRole) -> KvTransferParams:
    """A request's own. Raises RequestError, also for what an instance of this role does not do."""
    try:
        asked = msgspec.json.decode(text, type=KvTransferParams)
    except msgspec.DecodeError as error:
        raise RequestError(f"{_PARAM}: {error}", param=_PARAM) from None
    if asked.do_remote_decode and asked.do_remote_prefill:
        raise RequestError(f"{_PARAM}: do_remote_decode and do_remote_prefill cannot be combined", param=_PARAM)
    if asked.do_remote_decode and role == "kv_consumer":
        raise RequestError(f"{_PARAM}: this instance is a kv_consumer; do_remote_decode needs a producer", param=_PARAM)
    if asked.do_remote_prefill and role == "kv_producer":
        raise RequestError(
            f"{_PARAM}: this instance is a kv_producer; do_remote_prefill needs a consumer", param=_PARAM
        )
    return asked


class Transfers:
    """Of one rank. wake: something may be able to run now that could not."""

    def __init__(
        self,
        scheduler: Scheduler,
        exchange: Exchange,
        call_at: Callable[[float, Callable[[float], None]], None],
        wake: Callable[[float], None],
    ) -> None:
        self._scheduler, self._exchange, self._call_at, self._wake = scheduler, exchange, call_at, wake
        self._leases = Leases(scheduler, exchange.lease_seconds)
        self._link = Link(exchange.cost)
        self._sources: dict[Sequence, KvTransferParams] = {}
        """Of those whose prompt lies elsewhere, until that instance has been told that it may free it."""
        self._fetching: dict[str, Sequence] = {}
        self._link_asked: float | None = None
        self.num_fetched = 0
        """Tokens of prompts that were asked of other instances, since the start."""

    @property
    def num_kept(self) -> int:
        """Sequences whose blocks are held for others."""
        return len(self._leases)

    def expect(self, sequence: Sequence, asked: KvTransferParams) -> None:
        """Before it is queued: what is to become of it here."""
        sequence.keeps_blocks = asked.do_remote_decode
        if asked.do_remote_prefill:
            known = asked.remote_num_tokens
            count = sequence.num_prompt_tokens
            sequence.num_remote_tokens = count if known is None else min(known, count)
            self._sources[sequence] = asked

    def fetch(self, fetch: Fetch, at: float) -> None:
        """The scheduler has blocks for it; or it needs none, for all is in the cache."""
        if not fetch.num_tokens:
            self._report(fetch.sequence)
            return
        self.num_fetched += fetch.num_tokens
        self._fetching[fetch.sequence.id] = fetch.sequence
        self._link.begin(fetch.sequence.id, fetch.num_tokens, at)
        self._watch_link()

    def leave(self, sequence: Sequence, at: float) -> None:
        """It has ended, in whatever way: what is on its way to it is wanted no more."""
        if self._fetching.pop(sequence.id, None) is not None:
            self._link.cancel(sequence.id, at)
            self._watch_link()
        self._report(sequence)

    def close(self, sequence: Sequence, last: Ended | Failed, at: float) -> Ended | Failed:
        """What its last word says of its blocks. As in vLLM only the end of max_tokens leaves something to fetch."""
        self.leave(sequence, at)
        if not sequence.keeps_blocks or not sequence.blocks:
            return last
        if not isinstance(last, Ended) or last.reason is not FinishReason.LENGTH:
            self._scheduler.release(sequence)
            return last
        told = prefilled(sequence, self._exchange.address)
        self._leases.release(sequence.id)  # of an earlier one of the same name
        self._leases.keep(sequence, at)
        self._call_at(at + self._exchange.lease_seconds, self._expire)
        return msgspec.structs.replace(last, kv_transfer_params=msgspec.json.encode(told).decode())

    def release(self, id: str, at: float) -> None:
        """Another instance has fetched it, or does not want it. Again, or of what is not kept, does nothing."""
        self._leases.release(id)
        self._call_at(at, self._wake)

    def clear(self) -> None:
        """Nothing is kept or waited for any more."""
        self._leases.clear()
        for sequence in list(self._sources):
            self._report(sequence)

    def _expire(self, at: float) -> None:
        if self._leases.expire(at):
            self._call_at(at, self._wake)

    def _watch_link(self) -> None:
        due = self._link.due
        if due is not None and due != self._link_asked:
            self._link_asked = due
            self._call_at(due, self._land)

    def _land(self, at: float) -> None:
        if at == self._link_asked:
            self._link_asked = None
        for id in self._link.ended(at):
            sequence = self._fetching.pop(id)
            self._scheduler.fetched(sequence)
            self._report(sequence)
            self._call_at(at, self._wake)
        self._watch_link()

    def _report(self, sequence: Sequence) -> None:
        source = self._sources.pop(sequence, None)
        if source is not None:
            self._exchange.report(source)
