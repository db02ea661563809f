"""Checks against a server that speaks HTTP/1.0, as Python's `http.server` does: what it
may do is no failure.
"""

from __future__ import annotations

import pytest
from tests.http_client.stub_server import send_responses, serve

from dragoman_check.areas import CHECKS
from dragoman_check.check_report import CheckOutcome
from dragoman_check.client import CheckTarget
from dragoman_check.runner import run_checks

MODELS = (
    b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n"
    b'{"object": "list", "data": [{"id": "m"}]}'
)
NO_BODY = b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n"
LENGTH_REQUIRED = b'HTTP/1.0 411 Length Required\r\n\r\n{"error": "no length"}'
NOT_IMPLEMENTED = (
    b"HTTP/1.0 501 Unsupported method\r\ncontent-type: application/json\r\n\r\n"
    b'{"error": {"message": "PUT is not supported", "type": "invalid_request_error"}}'
)


async def find_outcome(check_id: str, response: bytes) -> CheckOutcome:
    """Run a check against a server that sends this response and closes the
    connection.
    """
    checks = [check for check in CHECKS if check.id == check_id]
    async with serve(send_responses(response)) as server:
        target = CheckTarget(url=f"http://127.0.0.1:{server.port}", model="m", profile="openai")
        report = await run_checks(target, checks)
    return report.verdicts[0].outcome


@pytest.mark.parametrize(
    ("check_id", "response", "outcome"),
    [
        ("http.keep-alive", MODELS, CheckOutcome.SKIPPED),
        ("http.keep-alive", MODELS.replace(b"1.0", b"1.1"), CheckOutcome.FAILED),
        ("http.response-framing", MODELS, CheckOutcome.PASSED),
        ("http.response-framing", MODELS.replace(b"1.0", b"1.1"), CheckOutcome.FAILED),
        ("http.chunked-body", LENGTH_REQUIRED, CheckOutcome.PASSED),
        ("chat.error-method", NOT_IMPLEMENTED, CheckOutcome.PASSED),
    ],
)
async def test_http_check_allows_rules_of_http_1_0(
    check_id: str, response: bytes, outcome: CheckOutcome
) -> None:
    assert await find_outcome(check_id, response) is outcome


@pytest.mark.parametrize(
    ("check_id", "outcome"),
    [
        ("models.list-form", CheckOutcome.FAILED),
        ("chat.too-long", CheckOutcome.SKIPPED),
        ("traps.context-length", CheckOutcome.SKIPPED),
    ],
)
async def test_empty_model_list_is_failure_of_models_only(
    check_id: str, outcome: CheckOutcome
) -> None:
    assert await find_outcome(check_id, NO_BODY) is outcome
