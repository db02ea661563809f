"""Each wrong behaviour of a client is found, and a correct client has no findings."""

from __future__ import annotations

import pytest

QUIET = ("-p", "no:cacheprovider", "-p", "no:asyncio", "-p", "no:xdist")
"""Plug-ins that these runs do without."""

HEAD = """
import pytest
from tests.client_tests.chat_client import ApiError, ChatClient

QUESTION = [{"role": "user", "content": "What is 1 + 2?"}]
TEXT = "one two three four five six"


def ask(dragoman, **options):
    dragoman.reply(TEXT)
    answer = ChatClient(dragoman.base_url, **options).ask(QUESTION)
    assert answer.text == TEXT
    dragoman.assert_usage(completion=answer.tokens)


def run(dragoman, **options):
    dragoman.tool_call("add", {"a": 1, "b": 2})
    dragoman.reply("It is 3.")
    ChatClient(dragoman.base_url, **options).run("What is 1 + 2?")
"""

BAD_CLIENTS = """
@pytest.mark.dragoman_faults("outage")
def test_storm(dragoman):
    ask(dragoman, retries=50, backs_off=False)

@pytest.mark.dragoman_faults("rate-limit", retry_after=60)
def test_hurry(dragoman):
    ask(dragoman, backs_off=False)

@pytest.mark.dragoman_faults("truncated-stream")
def test_truncated(dragoman):
    ask(dragoman, checks_end=False)

@pytest.mark.dragoman_faults("stall", patience=0.2)
def test_hung(dragoman):
    ask(dragoman, timeout=None, retries=0)

@pytest.mark.dragoman_faults("repeated-events")
def test_usage(dragoman):
    ask(dragoman, sums_usage=True)

@pytest.mark.dragoman_faults("none")
def test_lost_call(dragoman):
    run(dragoman, sends_results=False)

@pytest.mark.dragoman_faults("one-character")
def test_changed_call(dragoman):
    run(dragoman, repeats_arguments=False)

@pytest.mark.dragoman_faults("comments")
def test_needless(dragoman):
    ask(dragoman)
    raise ApiError("an unknown line")

@pytest.mark.dragoman_faults("truncated-stream")
def test_missing_call(dragoman):
    dragoman.reply(TEXT).tool_call("add", {"a": 1})
    answer = ChatClient(dragoman.base_url, checks_end=False).ask(QUESTION)
    assert answer.calls[0]

@pytest.mark.dragoman_faults("crlf")
def test_other(dragoman):
    ask(dragoman)
    assert 1 == 2
"""


def test_each_wrong_client_gets_its_verdict(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(HEAD + BAD_CLIENTS)
    result = pytester.runpytest_inprocess(*QUIET)
    result.assert_outcomes(failed=10)
    result.stdout.fnmatch_lines(
        [
            "*clients under faults*",
            "*test_storm[[]outage]*retry storm*",
            "*test_hurry[[]rate-limit]*no back-off",
            "*test_truncated[[]truncated-stream]*broken answer taken as complete",
            "*test_hung[[]stall]*hung",
            "*test_usage[[]repeated-events]*usage counted wrongly",
            "*test_lost_call[[]none]*lost tool call",
            "*test_changed_call[[]one-character]*changed tool call",
            "*test_needless[[]comments]*needless error",
            "*test_missing_call[[]truncated-stream]*broken answer taken as complete",
            "*test_other[[]crlf]*other answer",
        ]
    )


GOOD_CLIENT = """
@pytest.mark.dragoman_faults(exclude=["stall", "rate-limit", "outage"])
def test_answer(dragoman):
    ask(dragoman)

@pytest.mark.dragoman_faults("stall", patience=60)
def test_timeout(dragoman):
    ask(dragoman, timeout=0.2, retries=0)

@pytest.mark.dragoman_faults("cut-stream", "one-character", "empty-deltas", "split-bytes")
def test_loop(dragoman):
    run(dragoman)
"""


def test_correct_client_has_no_findings(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(HEAD + GOOD_CLIENT)
    result = pytester.runpytest_inprocess(*QUIET)
    result.assert_outcomes(passed=20)
    result.stdout.fnmatch_lines(
        [
            "*test_answer[[]none]*same answer",
            "*test_answer[[]truncated-stream]*same answer after 1 retry",
            "*test_timeout[[]stall]*raised TimeoutError",
        ]
    )


PATIENT_CLIENT = """
@pytest.mark.dragoman_faults("rate-limit", "outage")
def test_answer(dragoman):
    ask(dragoman)
"""


@pytest.mark.long
def test_client_with_backoff_has_no_findings(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(HEAD + PATIENT_CLIENT)
    result = pytester.runpytest_inprocess(*QUIET)
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(
        [
            "*test_answer[[]rate-limit]*same answer after 1 retry",
            "*test_answer[[]outage]*raised ApiError after 2 retries",
        ]
    )


def test_marker_with_unknown_fault_is_rejected(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.dragoman_faults("storm")
        def test_a(dragoman): pass
        """
    )
    result = pytester.runpytest_inprocess(*QUIET)
    result.stdout.fnmatch_lines(["*unknown names: storm; the faults are none, rate-limit, *"])


def test_marker_without_fixture_is_rejected(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.dragoman_faults
        def test_a(): pass
        """
    )
    result = pytester.runpytest_inprocess(*QUIET)
    result.stdout.fnmatch_lines(["*dragoman_faults needs the fixture dragoman*"])


def test_skip_under_fault_is_no_finding(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.dragoman_faults("crlf")
        def test_a(dragoman):
            pytest.skip("not today")
        """
    )
    pytester.runpytest_inprocess(*QUIET).assert_outcomes(skipped=1)
