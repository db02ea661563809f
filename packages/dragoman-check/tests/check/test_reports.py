"""Contents of the reports."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET

import pytest

from dragoman_check.check_catalog import Area
from dragoman_check.check_report import CheckOutcome, CheckReport, Verdict
from dragoman_check.client import CheckTarget
from dragoman_check.exchange import Exchange
from dragoman_check.report_formats import render_badge, render_html, render_json, render_junit
from dragoman_check.session import Session

DATE = "2026-11-23T10:00:00Z"


async def run_nothing(_: Session) -> None:
    return None


def build_report(
    *outcomes: CheckOutcome,
    reason: str = "it is <b>\x00",
    body: bytes = b"<script>alert(1)</script>",
) -> CheckReport:
    area = Area("chat", claims=(), source="https://example.org/rule")
    for number, _ in enumerate(outcomes):
        area.add(f"rule-{number}", f"Rule {number}.", run_nothing)
    exchange = Exchange(
        "POST", "/v1/chat/completions", b'{"a": 1}', 500, [("content-type", "text/html")], body
    )
    verdicts = tuple(
        Verdict(check, outcome, "" if outcome is CheckOutcome.PASSED else reason, (exchange,), 0.25)
        for check, outcome in zip(area.checks, outcomes, strict=True)
    )
    return CheckReport(
        CheckTarget(url="http://host:8000", model="m"), frozenset({"chat"}), verdicts, 7, 70
    )


REPORT = build_report(
    CheckOutcome.PASSED, CheckOutcome.FAILED, CheckOutcome.SKIPPED, CheckOutcome.UNTRIED
)


def test_render_json_includes_verdicts_and_failure_evidence() -> None:
    report = json.loads(render_json(REPORT, DATE, "1.0"))
    assert report["counts"] == {"passed": 1, "failed": 1, "skipped": 1, "untried": 1}
    assert (report["score"], report["requests"], report["url"]) == (50.0, 7, "http://host:8000")
    passed, failed, *_ = report["checks"]
    assert "evidence" not in passed
    assert failed["evidence"][0]["request"] == "POST /v1/chat/completions"
    assert (failed["evidence"][0]["status"], failed["rule"], failed["source"]) == (
        500,
        "Rule 1.",
        "https://example.org/rule",
    )


def test_render_junit_includes_failures_and_skipped_tests() -> None:
    suite = ET.fromstring(render_junit(REPORT, DATE))[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("4", "1", "2")
    failure = suite[1][0]
    assert failure.tag == "failure"
    assert "it is <b>?" in (failure.text or "")


def test_render_html_escapes_output_and_loads_no_resources() -> None:
    page = render_html(REPORT, DATE, "1.0")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<script" not in page
    assert "default-src 'none'" in page
    assert "src=" not in page.replace("default-src", "")


def test_render_json_truncates_long_bodies() -> None:
    page = render_json(build_report(CheckOutcome.FAILED, body=b"x" * 100_000), DATE, "1.0")
    assert len(page) < 10_000
    assert "(100000 bytes)" in page


@pytest.mark.parametrize(
    ("outcomes", "text"),
    [
        ((CheckOutcome.PASSED,), "100.0 %"),
        ((CheckOutcome.PASSED, CheckOutcome.FAILED), "50.0 %"),
        ((CheckOutcome.SKIPPED,), "no verdict"),
    ],
)
def test_render_badge_returns_svg_with_score(outcomes: tuple[CheckOutcome, ...], text: str) -> None:
    badge = ET.fromstring(render_badge(build_report(*outcomes)))
    assert badge.tag.endswith("svg")
    assert text in "".join(badge.itertext())
