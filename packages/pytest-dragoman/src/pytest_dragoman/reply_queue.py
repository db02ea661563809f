"""The queue of replies, from which the scripted engine takes its script."""

from __future__ import annotations

from msgspec.structs import replace

from dragoman import RequestError
from dragoman.engines.script import Fail, MatchRule, ScriptEntry, Subject

from .faults import Fault
from .queued_reply import QueuedReply, ReplyPlan
from .sent_request import Ending
from .traffic import Exchange, Traffic

MAX_FAILURES = 10
"""Failed attempts at one conversation, after which a fault refuses it for good."""
_BROKEN = frozenset(Ending) - {Ending.RUNNING, Ending.COMPLETE, Ending.ABANDONED}
_REFUSAL = ReplyPlan(
    ScriptEntry(
        (Fail(400, "The client has repeated this request too often.", "too_many_retries"),),
    )
)


class ReplyQueue:
    """Replies with a condition come first, in order; then the next one without.

    Attributes:
        fault: what hits the requests; None for nothing.
    """

    def __init__(self, traffic: Traffic, fault: Fault | None = None) -> None:
        self._traffic = traffic
        self._replies: list[QueuedReply] = []
        self.fault = fault

    @property
    def is_empty(self) -> bool:
        """Whether nothing was queued."""
        return not self._replies

    @property
    def unused(self) -> tuple[QueuedReply, ...]:
        """Replies without a condition that no request has used yet."""
        return tuple(each for each in self._replies if each.match is None and each.is_unused)

    def add(self, match: MatchRule | None = None) -> QueuedReply:
        """Queue a reply."""
        reply = QueuedReply(match)
        self._replies = [*self._replies, reply]
        return reply

    def extend(self, entries: tuple[ScriptEntry, ...]) -> None:
        """Queue the entries of a script."""
        self._replies = [*self._replies, *(QueuedReply.of(entry) for entry in entries)]

    def clear(self) -> None:
        """Forget all replies."""
        self._replies = []

    def next_entry(self, subject: Subject) -> ScriptEntry:
        """Select the reply to a request of this task, and count the use unless a fault
        keeps the client from getting it.

        Raises:
            RequestError: there is none.
        """
        exchange = self._traffic.current
        assert exchange is not None
        # The engine's name for the model is always the same.
        plan = self._select(replace(subject, model=exchange.request.model), exchange)
        exchange.plan = plan
        return plan.entry

    def _select(self, subject: Subject, exchange: Exchange) -> ReplyPlan:
        reply = self._find(subject)
        if self.fault is None:
            reply.use()
            return reply.plan
        attempts = self._traffic.list_earlier_attempts(exchange.request)
        if sum(attempt.ending in _BROKEN for attempt in attempts) > MAX_FAILURES:
            return _REFUSAL
        is_hit = self.fault.hits(len(attempts))
        if not (is_hit and self.fault.breaks_answer):
            reply.use()
        return self.fault.apply(reply.plan) if is_hit else reply.plan

    def _find(self, subject: Subject) -> QueuedReply:
        # `sorted` is stable: those with a condition come first, each kind in its own order.
        for reply in sorted(self._replies, key=lambda reply: reply.match is None):
            if not reply.is_used_up and (reply.match or MatchRule()).accepts(subject):
                return reply
        excerpt = subject.text if len(subject.text) <= 80 else subject.text[:79] + "…"
        raise RequestError(
            "The test has no reply for this request: queue one with dragoman.reply(...) or "
            f"another method, or add .always() to the last one. The last {subject.role} "
            f"message is {excerpt!r}.",
            code="script_used_up",
        )
