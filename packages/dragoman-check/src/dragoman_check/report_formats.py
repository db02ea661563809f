"""Reports as strings: JSON, JUnit XML, HTML with the evidence, an SVG badge."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from xml.etree import ElementTree as ET

from .check_report import CheckOutcome, CheckReport, Verdict
from .rules.json_values import JsonObject

MAX_EVIDENCE = 4000
"""Characters of a request's or a response's body that a report shows."""
MAX_EXCHANGES = 8
"""Number of exchanges of a failed check that a report shows, the last ones."""
BADGE_COLORS = (
    (99.5, "#2e7d32"),
    (95.0, "#558b2f"),
    (85.0, "#b28704"),
    (70.0, "#bf5f00"),
    (0.0, "#b3261e"),
)
STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse }
td, th { padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: top }
pre { white-space: pre-wrap; overflow-wrap: anywhere }
pre { background: #8881; padding: .6rem; font-size: 13px }
details { border-left: 3px solid #8884; padding-left: .8rem; margin: .4rem 0 }
summary { cursor: pointer }
.passed { color: #2e7d32 } .failed { color: #c62828; font-weight: 600 }
.skipped { color: #777 } .untried { color: #b28704 }
"""


def build_summary(report: CheckReport, date: str, version: str) -> JsonObject:
    """Build the fields that all formats have in common."""
    score = report.score
    return {
        "tool": f"dragoman check {version}",
        "date": date,
        "url": report.target.url,
        "model": report.target.model,
        "profile": report.target.profile,
        "claims": sorted(report.claims),
        "score": None if score is None else round(score, 2),
        "counts": {outcome.value: count for outcome, count in report.counts.items()},
        "requests": report.requests,
        "max_output_tokens": report.tokens,
    }


def render_json(report: CheckReport, date: str, version: str) -> str:
    secret = report.target.api_key
    checks = [_describe_verdict(verdict, secret) for verdict in report.verdicts]
    return (
        json.dumps(
            {**build_summary(report, date, version), "checks": checks}, indent=1, ensure_ascii=False
        )
        + "\n"
    )


def _describe_verdict(verdict: Verdict, secret: str | None) -> JsonObject:
    check = verdict.check
    described: JsonObject = {
        "id": check.id,
        "rule": check.rule,
        "source": check.source,
        "level": check.level,
        "outcome": verdict.outcome.value,
        "reason": _redact(verdict.reason, secret),
        "seconds": round(verdict.seconds, 3),
    }
    if verdict.outcome is CheckOutcome.FAILED:
        described["evidence"] = [
            {
                "request": f"{exchange.method} {exchange.path}",
                "request_body": _shorten(exchange.request, secret),
                "status": exchange.status,
                "headers": [[name, _redact(value, secret)] for name, value in exchange.headers],
                "body": _shorten(exchange.body, secret),
            }
            for exchange in verdict.exchanges[-MAX_EXCHANGES:]
        ]
    return described


def _shorten(data: bytes, secret: str | None) -> str:
    text = _redact(data.decode(errors="backslashreplace"), secret)
    return text if len(text) <= MAX_EVIDENCE else f"{text[:MAX_EVIDENCE]} ... ({len(data)} bytes)"


def _redact(text: str, secret: str | None) -> str:
    """Replace the API key, which raw requests contain."""
    return text.replace(secret, "(key)") if secret else text


def render_junit(report: CheckReport, date: str) -> str:
    """Render JUnit XML with one suite per area. A failed `should` check is a failure,
    too.
    """
    root = ET.Element("testsuites", name="dragoman check")
    secret = report.target.api_key
    for area, verdicts in group_by_area(report):
        failures = sum(verdict.outcome is CheckOutcome.FAILED for verdict in verdicts)
        skipped = sum(
            verdict.outcome in (CheckOutcome.SKIPPED, CheckOutcome.UNTRIED) for verdict in verdicts
        )
        seconds = f"{sum(verdict.seconds for verdict in verdicts):.3f}"
        attributes = {
            "name": area,
            "timestamp": date,
            "time": seconds,
            "tests": str(len(verdicts)),
            "errors": "0",
        }
        attributes |= {"failures": str(failures), "skipped": str(skipped)}
        suite = ET.SubElement(root, "testsuite", attributes)
        for verdict in verdicts:
            name = verdict.check.id.partition(".")[2]
            case = ET.SubElement(
                suite, "testcase", classname=area, name=name, time=f"{verdict.seconds:.3f}"
            )
            # XML 1.0 cannot hold most control characters.
            text = _redact(verdict.reason, secret)
            reason = "".join(
                character if character in "\t\n" or ord(character) >= 32 else "?"
                for character in text
            )
            if verdict.outcome is CheckOutcome.FAILED:
                failure = ET.SubElement(
                    case, "failure", message=f"{verdict.check.rule} ({verdict.check.level})"
                )
                failure.text = f"{reason}\n{verdict.check.source}"
            elif verdict.outcome is not CheckOutcome.PASSED:
                ET.SubElement(case, "skipped", message=reason)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def group_by_area(report: CheckReport) -> Iterator[tuple[str, list[Verdict]]]:
    areas = dict.fromkeys(verdict.check.area for verdict in report.verdicts)
    for area in areas:
        yield area, [verdict for verdict in report.verdicts if verdict.check.area == area]


def render_html(report: CheckReport, date: str, version: str) -> str:
    """Render a self-contained page. All text of the server is escaped."""
    summary = build_summary(report, date, version)
    title = f"Conformance of {report.target.url}"
    head = (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; style-src '
        "'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style>"
    )
    summary["claims"] = ", ".join(summary["claims"])
    summary["counts"] = ", ".join(
        f"{count} {outcome}" for outcome, count in summary["counts"].items()
    )
    rows = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(str(value))}</td></tr>"
        for name, value in summary.items()
    )
    areas: list[str] = []
    for area, verdicts in group_by_area(report):
        passed = sum(verdict.outcome is CheckOutcome.PASSED for verdict in verdicts)
        failed = sum(verdict.outcome is CheckOutcome.FAILED for verdict in verdicts)
        areas.append(f"<h2>{html.escape(area)}: {passed} passed, {failed} failed</h2>")
        for verdict in verdicts:
            described = _describe_verdict(verdict, report.target.api_key)
            outcome = verdict.outcome.value
            escaped = {
                name: html.escape(str(described[name]))
                for name in ("id", "rule", "source", "reason", "level")
            }
            reason = f"<p>{escaped['reason']}</p>" if escaped["reason"] else ""
            areas.append(
                f"<details{' open' if outcome == 'failed' else ''}><summary><span "
                f'class="{outcome}">{outcome}</span> '
                f"<code>{escaped['id']}</code> {escaped['rule']} ({escaped['level']})</summary>"
                f"{reason}<p>Source: {escaped['source']}</p>"
            )
            for exchange in described.get("evidence", ()):
                headers = "\n".join(f"{name}: {value}" for name, value in exchange["headers"])
                request = html.escape(f"{exchange['request']}\n\n{exchange['request_body']}")
                response = html.escape(f"{exchange['status']}\n{headers}\n\n{exchange['body']}")
                line = html.escape(exchange["request"])
                areas.append(
                    f"<details><summary>{line}</summary><pre>{request}</pre><pre>{response}</pre></details>"
                )
            areas.append("</details>")
    return f"{head}<h1>{html.escape(title)}</h1><table>{rows}</table>{''.join(areas)}</html>\n"


def render_badge(report: CheckReport) -> str:
    """Render a badge with the score as SVG."""
    score = report.score
    text = "no verdict" if score is None else f"{score:.1f} %"
    color = (
        "#6b6b6b"
        if score is None
        else next(color for least, color in BADGE_COLORS if score >= least)
    )
    label = "LLM API conformance"
    left = 132
    right = 66
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" '
        f'aria-label="{label}: {text}"><title>{label}: {text}</title>'
        f'<rect width="{left}" height="20" fill="#444"/><rect x="{left}" width="{right}" '
        f'height="20" fill="{color}"/>'
        '<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" '
        'text-anchor="middle">'
        f'<text x="{left / 2}" y="14">{label}</text><text x="{left + right / 2}" '
        f'y="14">{text}</text></g></svg>\n'
    )
