"""The rules of the verdict, on records of requests."""

from __future__ import annotations

from dragoman import Conversation, GenerateRequest, Message, Role, Text
from pytest_dragoman.faults import build_faults
from pytest_dragoman.sent_request import Ending, SentRequest
from pytest_dragoman.verdict import Mistake, judge_answer, judge_requests, judge_run


def build_request(
    ending: Ending,
    at: float = 0.0,
    *,
    status: int = 200,
    retry_after: float | None = None,
    text: str = "hello",
) -> SentRequest:
    prompt = Conversation((Message(Role.USER, (Text(text),)),))
    return SentRequest(
        arrived_at=at,
        answered_at=at,
        status=status,
        retry_after=retry_after,
        ending=ending,
        generation=GenerateRequest("m", prompt),
    )


def list_mistakes(*requests: SentRequest) -> list[Mistake]:
    return [finding.mistake for finding in judge_requests(requests)]


def test_retry_at_time_of_retry_after_is_no_mistake() -> None:
    rejected = build_request(Ending.REJECTED, 10.0, status=429, retry_after=1.0)
    assert list_mistakes(rejected, build_request(Ending.COMPLETE, 11.0)) == []
    assert list_mistakes(rejected, build_request(Ending.COMPLETE, 10.9)) == [Mistake.NO_BACKOFF]


def test_immediate_retry_of_status_without_header_is_mistake() -> None:
    rejected = build_request(Ending.REJECTED, 10.0, status=503)
    assert list_mistakes(rejected, build_request(Ending.COMPLETE, 10.01)) == [Mistake.NO_BACKOFF]
    assert list_mistakes(rejected, build_request(Ending.COMPLETE, 10.5)) == []


def test_immediate_retry_of_lost_connection_is_no_mistake() -> None:
    dropped = build_request(Ending.DROPPED, 10.0)
    assert list_mistakes(dropped, build_request(Ending.COMPLETE, 10.0)) == []


def test_other_conversation_is_no_retry() -> None:
    rejected = build_request(Ending.REJECTED, 10.0, status=429, retry_after=1.0)
    assert list_mistakes(rejected, build_request(Ending.COMPLETE, 10.0, text="other")) == []


def test_eleven_failures_of_one_conversation_are_storm() -> None:
    failures = [build_request(Ending.FAILED, float(at)) for at in range(11)]
    assert list_mistakes(*failures) == [Mistake.RETRY_STORM]
    assert list_mistakes(*failures[1:]) == []


def test_answer_after_broken_stream_needs_whole_response() -> None:
    for ending in (Ending.TRUNCATED, Ending.DROPPED, Ending.FAILED, Ending.MALFORMED):
        [finding] = judge_answer([build_request(ending)])
        assert finding.mistake is Mistake.BROKEN_ANSWER
        assert list(judge_answer([build_request(ending), build_request(Ending.COMPLETE)])) == []


def test_unread_answer_is_mistake_only_under_fault() -> None:
    faults = build_faults()
    abandoned = build_request(Ending.ABANDONED)
    [finding] = judge_run(faults["stall"], [abandoned], None)
    assert finding.mistake is Mistake.BROKEN_ANSWER
    assert judge_run(faults["none"], [abandoned], None) == []


def test_error_is_mistake_only_where_answer_was_whole() -> None:
    faults = build_faults()
    request = build_request(Ending.COMPLETE)
    [finding] = judge_run(faults["crlf"], [request], ValueError("no"))
    assert finding.mistake is Mistake.NEEDLESS_ERROR
    assert finding.evidence == "ValueError: no"
    broken = build_request(Ending.DROPPED)
    assert judge_run(faults["cut-stream"], [broken], ValueError("no")) == []


def test_failed_assertion_after_broken_stream_names_stream() -> None:
    findings = judge_run(
        build_faults()["cut-stream"], [build_request(Ending.DROPPED)], AssertionError("a == b")
    )
    assert [finding.mistake for finding in findings] == [Mistake.BROKEN_ANSWER]
