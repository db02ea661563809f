"""Runs checks against a server: determines what the server claims, collects verdicts,
and renders reports.
"""

from __future__ import annotations

import html
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from xml.etree import ElementTree as ET

from .rules.checks import Violation, require
from .session import (
    Check,
    CheckTarget,
    Client,
    Exchange,
    Json,
    LimitReached,
    REFUSALS,
    Session,
    Skipped,
    get_objects,
)

# Profiles: the features that each kind of server claims. A check applies if the server
#     claims all that it needs.

ROUTES = {
    "chat": ("POST", "/v1/chat/completions"),
    "completions": ("POST", "/v1/completions"),
    "responses": ("POST", "/v1/responses"),
    "messages": ("POST", "/v1/messages"),
    "count-tokens": ("POST", "/v1/messages/count_tokens"),
    "embeddings": ("POST", "/v1/embeddings"),
    "models": ("GET", "/v1/models"),
    "ollama": ("POST", "/api/chat"),
    "tokenize": ("POST", "/tokenize"),
    "vllm-generate": ("POST", "/inference/v1/generate"),
    "sglang": ("GET", "/get_model_info"),
    "tgi": ("GET", "/info"),
    "llamacpp": ("GET", "/props"),
    "conversations": ("POST", "/v1/conversations"),
    "files": ("GET", "/v1/files"),
    "rerank": ("POST", "/v1/rerank"),
    "health": ("GET", "/health"),
    "metrics": ("GET", "/metrics"),
}
"""Claim -> the route that `auto` probes for it. A route that answers 404, 405 or 501 is
absent.
"""

_BASE = {"http", "models", "cancellation"}
_OPENAI = _BASE | {"chat", "embeddings"}
_RICH = {"forced tools", "tools", "json_schema", "json_object", "logprobs", "n"}
"""Features that may be refused with an error unless the profile claims them."""

PROFILES: dict[str, frozenset[str]] = {
    "openai": frozenset(
        _OPENAI | _RICH
        | {"completions", "responses", "state", "background", "websocket", "conversations", "input-tokens"}
        | {"request-id", "codex", "files"}
    ),
    "anthropic": frozenset(_BASE | {"messages", "count-tokens", "claude-code", "tools", "forced tools", "request-id"}),
    "vllm": frozenset(
        _OPENAI | _RICH
        | {"completions", "responses", "messages", "count-tokens", "tokenize", "vllm", "vllm-generate", "health"}
        | {"metrics", "codex", "claude-code"}
    ),
    "sglang": frozenset(_OPENAI | _RICH | {"completions", "responses", "messages", "sglang", "health", "metrics"}),
    "llamacpp": frozenset(
        _OPENAI | _RICH | {"completions", "responses", "messages", "count-tokens", "llamacpp", "health", "metrics"}
    ),
    "ollama": frozenset(
        _OPENAI | {"completions", "responses", "messages", "ollama", "tools", "json_schema", "json_object"}
    ),
    "tgi": frozenset((_OPENAI - {"embeddings"}) | {"tgi", "health", "metrics"}),
    "litellm": frozenset(_OPENAI | {"completions", "responses", "messages", "count-tokens", "tools"}),
    "transformers": frozenset((_OPENAI - {"embeddings"}) | {"completions", "responses", "health"}),
    "dragoman": frozenset(
        _OPENAI
        | {*ROUTES} - {"llamacpp"}
        | {"state", "background", "websocket", "input-tokens", "request-id", "codex", "claude-code", "vllm", "dragoman"}
    ),
}  # fmt: skip
"""Profile -> what such a server claims."""
IMPLIED = {
    "responses": {"state", "background", "websocket", "input-tokens", "codex"},
    "messages": {"claude-code"},
    "vllm-generate": {"vllm"},
    "models": {"cancellation", "http", "request-id"},
}
"""Claim found by its route -> more claims that `auto` assumes. Their checks are skipped
if the server rejects them.
"""
_WITHOUT_GENERATION = frozenset(
    {"embeddings", "models", "http", "rerank", "health", "metrics", "files", "request-id", "key"}
)
"""Claims that apply to a model that only embeds."""

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
table { border-collapse: collapse } td, th { padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: top }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: #8881; padding: .6rem; font-size: 13px }
details { border-left: 3px solid #8884; padding-left: .8rem; margin: .4rem 0 } summary { cursor: pointer }
.passed { color: #2e7d32 } .failed { color: #c62828; font-weight: 600 }
.skipped { color: #777 } .untried { color: #b28704 }
"""


async def detect_routes(client: Client) -> frozenset[str]:
    """Return the claims whose routes the server has."""
    session = Session(client, frozenset())
    claims = set[str]()
    for claim, (method, path) in ROUTES.items():
        # The empty object is an invalid body, so nothing is generated.
        exchange = await session.send(method, path, {} if method == "POST" else None)
        if exchange.status not in (404, 405, 501):
            claims.add(claim)
    return frozenset(claims)


async def find_claims(client: Client) -> frozenset[str]:
    """Return what the server claims: by its profile, or with `auto` by its routes."""
    profile = client.target.profile
    key = {"key"} if client.target.api_key is not None else set[str]()
    if profile != "auto":
        return PROFILES[profile] | key
    routes = await detect_routes(client)
    implied = {claim for route, claims in IMPLIED.items() if route in routes for claim in claims}
    return frozenset(routes | implied | key | {"http", "cancellation"})


async def limit_to_abilities(client: Client, claims: frozenset[str]) -> frozenset[str]:
    """With `auto`, drop the claims of generation if the model only embeds: routes do
    not show what the model can do.
    """
    if client.target.profile != "auto" or not {"chat", "embeddings"} <= claims:
        return claims
    session = Session(client, claims)
    model = client.target.model
    embedding = await session.post(
        "/v1/embeddings", {"model": model, "input": "Hello", "encoding_format": "float"}
    )
    if embedding.status != 200:
        return claims
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
    answer = await session.post("/v1/chat/completions", body)
    return claims & _WITHOUT_GENERATION if answer.status in REFUSALS else claims


async def find_model(client: Client) -> str:
    """Return the first model that the server lists. Raises Violation if it lists none."""
    session = Session(client, frozenset())
    exchange = await session.get("/v1/models")
    if exchange.status == 200:
        models: list[Json] = exchange.json().get("data") or []
        if models:
            return str(models[0]["id"])
    exchange = await session.get("/api/tags")
    if exchange.status == 200 and (models := get_objects(exchange.json(), "models")):
        return str(models[0]["name"])
    raise Violation("the server lists no model: set --model")


class CheckOutcome(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    """It does not apply here, or cannot be judged."""
    UNTRIED = "untried"
    """It did not run, since the limit of requests or tokens was used up."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a check.

    reason: why it failed, was skipped or not tried; empty if it passed.
    exchanges: the requests and responses, as evidence.
    seconds: duration of the check.
    """

    check: Check
    outcome: CheckOutcome
    reason: str = ""
    exchanges: tuple[Exchange, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The verdicts on one server, in the order of the catalog.

    requests: number of requests that were sent.
    tokens: output tokens that these requests allowed.
    counts: number of verdicts by outcome.
    """

    target: CheckTarget
    claims: frozenset[str]
    verdicts: tuple[Verdict, ...]
    requests: int = 0
    tokens: int = 0
    counts: dict[CheckOutcome, int] = field(init=False)

    def __post_init__(self) -> None:
        counts = {
            outcome: sum(verdict.outcome is outcome for verdict in self.verdicts)
            for outcome in CheckOutcome
        }
        object.__setattr__(self, "counts", counts)

    @property
    def score(self) -> float | None:
        """Percentage of judged checks that passed; a `should` has half the weight of a
        `must`. None without any.
        """
        judged = [
            verdict
            for verdict in self.verdicts
            if verdict.outcome in (CheckOutcome.PASSED, CheckOutcome.FAILED)
        ]
        weights = [
            (1.0 if verdict.check.level == "must" else 0.5, verdict.outcome) for verdict in judged
        ]
        total = sum(weight for weight, _ in weights)
        passed = sum(weight for weight, outcome in weights if outcome is CheckOutcome.PASSED)
        return 100 * passed / total if total else None

    def find_exit_code(self, *, strict: bool = False) -> int:
        """Return 1 if a `must` check failed, else 3 if the limits left checks untried,
        else 0.

        strict: a failed `should` check is an error, too.
        """
        failed = [
            verdict.check.level
            for verdict in self.verdicts
            if verdict.outcome is CheckOutcome.FAILED
        ]
        if failed if strict else "must" in failed:
            return 1
        return 3 if self.counts[CheckOutcome.UNTRIED] else 0


OnVerdict = Callable[[Verdict], None]


async def run_checks(
    target: CheckTarget,
    checks: Sequence[Check],
    *,
    allow_destructive: bool = False,
    on_verdict: OnVerdict = lambda _: None,
) -> CheckReport:
    """Run the checks one after the other.

    Raises Violation if the server cannot be reached, is not ready, or lists no model.
    """
    client = Client(target)
    try:
        try:
            claims = await find_claims(client)
            if "health" in claims:
                # A server that still loads its model answers every request with 503, so
                # no rule could be judged.
                health = await Session(client, claims).get("/health")
                require(
                    health.status != 503,
                    f"the server is not ready: GET /health: status 503: {health.message()}",
                )
            if not target.model:
                client.target = target = replace(target, model=await find_model(client))
            claims = await limit_to_abilities(client, claims)
        except LimitReached as limit:
            untried = tuple(Verdict(check, CheckOutcome.UNTRIED, str(limit)) for check in checks)
            return CheckReport(target, frozenset(), untried, client.requests, client.tokens)
        verdicts: list[Verdict] = []
        for check in checks:
            verdicts.append(await _run_check(check, client, claims, allow_destructive))
            on_verdict(verdicts[-1])
        return CheckReport(target, claims, tuple(verdicts), client.requests, client.tokens)
    finally:
        await client.close()


async def _run_check(
    check: Check, client: Client, claims: frozenset[str], allow_destructive: bool
) -> Verdict:
    missing = check.claims - claims
    if missing:
        return Verdict(check, CheckOutcome.SKIPPED, f"not claimed: {', '.join(sorted(missing))}")
    if client.target.profile in check.except_for:
        return Verdict(
            check, CheckOutcome.SKIPPED, f"{client.target.profile} documents another behavior"
        )
    if check.is_destructive and not allow_destructive:
        return Verdict(check, CheckOutcome.SKIPPED, "destructive: run with --destructive")
    session = Session(client, claims)
    start = time.perf_counter()
    outcome = CheckOutcome.PASSED
    reason = ""
    try:
        await check.run(session)
    except LimitReached as limit:
        outcome = CheckOutcome.UNTRIED
        reason = str(limit)
    except Skipped as skipped:
        outcome = CheckOutcome.SKIPPED
        reason = str(skipped)
    except AssertionError as violation:
        outcome = CheckOutcome.FAILED
        reason = str(violation) or "the rule does not hold"
    except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
        # The response lacks a field that the check reads, or the field has another
        # type; or its JSON nests too deeply.
        outcome = CheckOutcome.FAILED
        reason = f"unexpected shape: {type(error).__name__}: {error}"
    return Verdict(check, outcome, reason, tuple(session.exchanges), time.perf_counter() - start)


# Reports as strings: JSON, JUnit XML, HTML with the evidence, and an SVG badge.


def build_summary(report: CheckReport, date: str, version: str) -> Json:
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


def _describe_verdict(verdict: Verdict, secret: str | None) -> Json:
    check = verdict.check
    described: Json = {
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
