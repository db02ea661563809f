"""The fixture `dragoman`: a scripted server, and the verdict on its client."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import dragoman
from dragoman.engines.script import MatchRule, load_script

from .app_server import AppServer, FixtureServer
from .event_loop_thread import EventLoopThread
from .faults import Fault
from .queued_reply import QueuedReply, ReplyVocabulary
from .recording_app import RecordingApp
from .recording_engine import RecordingEngine
from .reply_queue import ReplyQueue
from .sent_request import Ending, SentRequest
from .traffic import Traffic
from .verdict import Finding, UsageMismatch, describe_run, judge_answer, judge_requests, judge_run

if TYPE_CHECKING:
    from starlette.types import ASGIApp


class ConditionalReply(ReplyVocabulary):
    """The condition of a reply that is queued next."""

    def __init__(self, queue: ReplyQueue, match: MatchRule) -> None:
        self._queue = queue
        self._match = match

    def _extend(self) -> QueuedReply:
        return self._queue.add(self._match)


class Dragoman(ReplyVocabulary, FixtureServer):
    """A scripted server of all APIs on a free port, for one test or a session.

    The methods of `ReplyVocabulary` queue replies: each answers one request, in order.
    """

    def __init__(
        self,
        loop_thread: EventLoopThread,
        fault: Fault | None = None,
        *,
        port: int = 0,
        wrap_app: Callable[[Dragoman, ASGIApp], ASGIApp] | None = None,
    ) -> None:
        """Start the server.

        Args:
            loop_thread: runs it.
            fault: what hits the requests; None for nothing.
            port: 0 for a free one.
            wrap_app: adds routes that are not recorded.
        """
        self._traffic = Traffic()
        self._queue = ReplyQueue(self._traffic, fault)
        engine = RecordingEngine(self._queue, self._traffic)
        # A client may name any model.
        app = dragoman.create_app(
            engines={"scripted": engine},
            served_model_name=("scripted", "*"),
            store="memory",
            access_log=False,
        )
        recorded: ASGIApp = RecordingApp(app, self._traffic)
        served = recorded if wrap_app is None else wrap_app(self, recorded)
        self._server = AppServer(served, app.lifespan, loop_thread, port)

    def reset(self, fault: Fault | None = None) -> None:
        """Forget all replies and requests. fault: what hits the next requests."""
        self._queue.clear()
        self._queue.fault = fault
        self._traffic.clear()

    def _extend(self) -> QueuedReply:
        return self._queue.add()

    def when(
        self,
        *contains: str,
        equals: str | None = None,
        glob: str | None = None,
        role: Literal["user", "tool"] | None = None,
        model: str | None = None,
        tool: str | None = None,
    ) -> ConditionalReply:
        """Queue a reply to all requests that fulfil these conditions; `times` limits it.

        Args:
            contains: texts that must occur in the last user or tool message.
            equals: that message's whole text.
            glob: a pattern for it, where `*` matches any text.
            role: that message's role.
            model: a pattern for the model's name.
            tool: a tool that the request must declare.
        """
        return ConditionalReply(self._queue, MatchRule(contains, equals, glob, role, model, tool))

    def load(self, path: str | Path) -> None:
        """Queue the replies of a script file (YAML, JSON or JSON lines).

        Raises:
            ScriptError: the file is invalid.
        """
        self._queue.extend(load_script(Path(path)).entries)

    @property
    def requests(self) -> tuple[SentRequest, ...]:
        """The requests for answers, oldest first."""
        return self._traffic.generations

    @property
    def http_requests(self) -> tuple[SentRequest, ...]:
        """All HTTP requests, also those that were rejected before they were read."""
        return self._traffic.requests

    @property
    def unused_replies(self) -> tuple[QueuedReply, ...]:
        """Replies without a condition that no request has used."""
        return self._queue.unused

    @property
    def usage(self) -> dragoman.Usage:
        """The tokens of all answers that were sent whole."""
        usages = [
            request.usage
            for request in self.requests
            if request.usage is not None and request.ending is Ending.COMPLETE
        ]
        return dragoman.Usage(
            prompt=sum(usage.prompt or 0 for usage in usages),
            completion=sum(usage.completion or 0 for usage in usages),
        )

    def assert_usage(self, *, prompt: int | None = None, completion: int | None = None) -> None:
        """Check the client's sums of tokens against those that the server reported.

        Raises:
            AssertionError: they differ.
        """
        usage = self.usage
        for name, counted, reported in (
            ("prompt", prompt, usage.prompt),
            ("completion", completion, usage.completion),
        ):
            if counted is not None and counted != reported:
                raise UsageMismatch(
                    f"the client counted {counted} {name} tokens, the server reported {reported}"
                )

    def assert_resilient(self, error: Exception | None = None) -> None:
        """Check how the client handled the replies so far.

        Args:
            error: what the client raised; None if it returned an answer.

        Raises:
            AssertionError: it made mistakes, which the message lists.
        """
        raise_findings(self._judge_replies(error))

    def judge(self, error: Exception | None) -> list[Finding]:
        """Judge a test under the fault, or with the queued replies if there is none.
        error: what it raised.
        """
        fault = self._queue.fault
        if fault is None:
            return self._judge_replies(error)
        return judge_run(fault, self.requests, error, has_unused_replies=bool(self.unused_replies))

    def _judge_replies(self, error: Exception | None) -> list[Finding]:
        findings = list(judge_requests(self.requests, has_unused_replies=bool(self.unused_replies)))
        return findings if error is not None else [*findings, *judge_answer(self.requests)]

    def describe(self, findings: list[Finding], error: Exception | None) -> str:
        """Describe in a few words what the client did: its mistakes, or else the outcome."""
        mistakes = dict.fromkeys(finding.mistake for finding in findings)
        return "; ".join(mistakes) or describe_run(self.requests, error)


class ClientMistakes(AssertionError):
    """The client made mistakes, which the message lists."""


def raise_findings(findings: list[Finding]) -> None:
    """Raise ClientMistakes unless there are no findings."""
    if findings:
        raise ClientMistakes("\n".join(["the client made mistakes:", *map(str, findings)]))
