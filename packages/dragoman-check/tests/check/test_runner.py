"""Outcomes, limits and exit codes of a run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator
from typing import Any

import pytest

from dragoman_check.areas import CHECKS
from dragoman_check.areas.generation import split_texts
from dragoman_check.check_catalog import Area, Check
from dragoman_check.check_exceptions import Skipped
from dragoman_check.check_report import CheckOutcome, CheckReport
from dragoman_check.claims import PROFILES
from dragoman_check.client import CheckTarget
from dragoman_check.dialects import CHAT
from dragoman_check.report_formats import render_html, render_json, render_junit
from dragoman_check.rules.json_values import Violation, require
from dragoman_check.runner import run_checks
from dragoman_check.session import Session

from ..rules.streams import DONE, HELLO, ROLE, STOP, USAGE, encode_sse
from .reference import build_reference, serve
from .wire import Defect, build_json, change_body, edit_json, reject


@pytest.fixture(scope="module")
def url() -> Generator[str]:
    proxy, models = build_reference()
    with serve(proxy, models) as address:
        yield address


def build_check(run: Any, **options: Any) -> Check:
    area = Area("area", claims=(), source="somewhere")
    area.add("rule", "A rule.", run, **options)
    return area.checks[0]


async def pass_check(_: Session) -> None:
    return None


async def fail_check(_: Session) -> None:
    raise Violation("broken")


async def skip_check(_: Session) -> None:
    raise Skipped("not here")


async def read_missing_field(_: Session) -> None:
    require({}["choices"], "")  # pyright: ignore


async def parse_deep_json(_: Session) -> None:
    json.loads("[" * 9999)


async def generate_text(s: Session) -> None:
    body = {"model": s.model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 50}
    await s.request("/v1/chat/completions", body)


def run_against(url: str, *checks: Check, destructive: bool = False, **options: Any) -> CheckReport:
    target = CheckTarget(url=url, model="scripted", **options)
    return asyncio.run(run_checks(target, checks, allow_destructive=destructive))


@pytest.mark.parametrize(
    ("body", "outcome", "exit_code"),
    [
        (pass_check, CheckOutcome.PASSED, 0),
        (fail_check, CheckOutcome.FAILED, 1),
        (skip_check, CheckOutcome.SKIPPED, 0),
        (read_missing_field, CheckOutcome.FAILED, 1),
        (parse_deep_json, CheckOutcome.FAILED, 1),
        (generate_text, CheckOutcome.PASSED, 0),
    ],
)
def test_check_outcome_sets_exit_code(
    url: str, body: Any, outcome: CheckOutcome, exit_code: int
) -> None:
    report = run_against(url, build_check(body))
    assert [verdict.outcome for verdict in report.verdicts] == [outcome]
    assert report.find_exit_code() == exit_code


def test_should_level_failure_fails_strict_run_and_halves_weight(
    url: str,
) -> None:
    report = run_against(url, build_check(pass_check), build_check(fail_check, level="should"))
    assert (report.find_exit_code(), report.find_exit_code(strict=True)) == (0, 1)
    assert report.score == pytest.approx(100 * 1 / 1.5)  # pyright: ignore[reportUnknownMemberType]


def test_unclaimed_feature_is_skipped_and_claimed_refusal_fails(url: str) -> None:
    async def send_request(s: Session) -> None:
        fields = {
            "tools": [{"type": "function", "function": {"name": "f"}}],
            "tool_choice": "required",
        }
        body = {"model": s.model, "messages": [{"role": "user", "content": "Hi"}], **fields}
        await s.request("/v1/chat/completions", body, feature="forced tools")

    check = build_check(send_request, claims=("chat",))
    assert run_against(url, check).verdicts[0].reason.startswith("the server rejects forced tools")
    assert run_against(url, check, profile="openai").verdicts[0].outcome is CheckOutcome.FAILED
    assert run_against(url, check, profile="anthropic").verdicts[0].reason == "not claimed: chat"


def test_auto_profile_skips_refusal_of_assumed_feature(url: str) -> None:
    async def send_request(s: Session) -> None:
        await s.request("/v1/responses", {"model": s.model, "input": []}, feature="background")

    check = build_check(send_request, claims=("responses", "background"))
    assert run_against(url, check).verdicts[0].reason.startswith("the server rejects background")
    assert run_against(url, check, profile="openai").verdicts[0].outcome is CheckOutcome.FAILED


@pytest.mark.parametrize("rule", ["chat.each-result", "chat.stream-of-history", "chat.each-part"])
def test_prompt_rule_without_usage_is_skipped(url: str, rule: str) -> None:
    proxy, models = build_reference()
    proxy.defect = Defect(
        "x",
        "x",
        "^/v1/chat/completions$",
        "",
        edit_response=edit_json(lambda reply: reply.pop("usage", None)),
    )
    with serve(proxy, models) as address:
        report = run_against(address, *(check for check in CHECKS if check.id == rule))
    assert [verdict.outcome for verdict in report.verdicts] == [CheckOutcome.SKIPPED]


def test_penalty_rule_on_greedy_server_is_judged() -> None:
    """The penalties change the greedy answer, so no varied answers are needed."""
    proxy, models = build_reference()
    proxy.defect = Defect(
        "greedy",
        "test",
        "^/v1/completions$",
        "",
        edit_request=change_body(lambda body: body.update(temperature=0)),
    )
    rules = ("completions.effect-of-frequency-penalty", "completions.effect-of-top-p")
    with serve(proxy, models) as address:
        target = CheckTarget(url=address, model="tiny")
        checks = [check for check in CHECKS if check.id in rules]
        report = asyncio.run(run_checks(target, checks))
    outcomes = {verdict.check.id: verdict.outcome for verdict in report.verdicts}
    assert outcomes == dict(zip(rules, (CheckOutcome.PASSED, CheckOutcome.SKIPPED), strict=True))


@pytest.mark.parametrize(
    ("profile", "outcome"), [("auto", CheckOutcome.SKIPPED), ("openai", CheckOutcome.FAILED)]
)
def test_rejected_custom_tool_is_failure_if_claimed(profile: str, outcome: CheckOutcome) -> None:
    proxy, models = build_reference()
    proxy.defect = Defect(
        "no custom tools",
        "vLLM",
        "^/v1/responses$",
        "",
        edit_request=reject(lambda body: len(body.get("tools") or ()) == 2),
    )
    rules = [check for check in CHECKS if check.id == "codex.accepts-custom-tool"]
    with serve(proxy, models) as address:
        report = run_against(address, *rules, profile=profile)
    assert [verdict.outcome for verdict in report.verdicts] == [outcome]


def test_profile_exception_skips_failing_check(url: str) -> None:
    check = build_check(fail_check, except_for=("vllm",))
    assert run_against(url, check, profile="vllm").verdicts[0].outcome is CheckOutcome.SKIPPED
    assert run_against(url, check, profile="openai").verdicts[0].outcome is CheckOutcome.FAILED


def test_destructive_check_runs_only_with_flag(url: str) -> None:
    check = build_check(fail_check, is_destructive=True)
    assert run_against(url, check).verdicts[0].outcome is CheckOutcome.SKIPPED
    assert run_against(url, check, destructive=True).verdicts[0].outcome is CheckOutcome.FAILED


def test_max_tokens_reached_leaves_checks_untried(url: str) -> None:
    report = run_against(url, build_check(generate_text), build_check(generate_text), max_tokens=99)
    assert [verdict.outcome for verdict in report.verdicts] == [
        CheckOutcome.PASSED,
        CheckOutcome.UNTRIED,
    ]
    assert (report.find_exit_code(), report.tokens) == (3, 50)


def test_max_requests_is_never_exceeded(url: str) -> None:
    report = run_against(
        url,
        build_check(generate_text),
        build_check(generate_text),
        profile="openai",
        max_requests=1,
    )
    assert [verdict.outcome for verdict in report.verdicts] == [
        CheckOutcome.PASSED,
        CheckOutcome.UNTRIED,
    ]
    assert report.requests == 1


def test_max_requests_below_detection_leaves_all_checks_untried(url: str) -> None:
    report = run_against(url, build_check(pass_check), build_check(fail_check), max_requests=5)
    assert [verdict.outcome for verdict in report.verdicts] == [CheckOutcome.UNTRIED] * 2
    assert (report.find_exit_code(), report.requests, report.score) == (3, 5, None)


def test_full_run_stays_within_max_requests(url: str) -> None:
    report = asyncio.run(run_checks(CheckTarget(url=url, model="sim", max_requests=40), CHECKS))
    assert report.requests == 40
    assert report.find_exit_code() == 3
    assert report.counts[CheckOutcome.FAILED] == 0


def test_run_without_server_response_raises_violation() -> None:
    with pytest.raises(Violation, match=r"cannot connect to http://127\.0\.0\.1:9"):
        run_against("http://127.0.0.1:9", build_check(pass_check))


@pytest.mark.parametrize("profile", ["auto", "llamacpp"])
def test_run_while_model_loads_raises_violation(profile: str) -> None:
    proxy, models = build_reference()
    proxy.defect = Defect(
        "loading",
        "test",
        ".*",
        "",
        edit_request=lambda _: build_json(503, {"error": {"message": "Loading model"}}),
    )
    with (
        serve(proxy, models) as address,
        pytest.raises(Violation, match=r"not ready: .* Loading model"),
    ):
        run_against(address, build_check(fail_check), profile=profile)


def test_checks_have_unique_ids_rules_and_sources() -> None:
    assert len(CHECKS) >= 300
    assert len({check.id for check in CHECKS}) == len(CHECKS)
    for check in CHECKS:
        assert check.rule.endswith("."), check.id
        assert check.source.startswith("https://"), check.id


def test_check_claims_exist_in_some_profile() -> None:
    claimed = {claim for claims in PROFILES.values() for claim in claims} | {"key"}
    assert {claim for check in CHECKS for claim in check.claims} <= claimed


def test_missing_key_is_reported_and_reports_omit_key() -> None:
    """The reference server accepts requests without a key, which is reported."""
    proxy, models = build_reference()
    proxy.defect = Defect(
        "a 500", "test", "/v1/chat", "", edit_request=lambda _: build_json(500, {"error": "x"})
    )
    with serve(proxy, models) as address:
        target = CheckTarget(url=address, model="sim", api_key="sk-secret")
        checks = [
            check
            for check in CHECKS
            if check.matches(r"^keys\.no-key-(chat|messages)|^chat\.whole$")
        ]
        report = asyncio.run(run_checks(target, checks))
    assert [verdict.outcome for verdict in report.verdicts] == [CheckOutcome.FAILED] * 3
    rendered = (
        render_json(report, "d", "v") + render_junit(report, "d") + render_html(report, "d", "v")
    )
    assert "sk-secret" not in rendered


@pytest.mark.parametrize("colon", [b":", b": "])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_chat_grammar_accepts_all_sse_line_endings(line_end: bytes, colon: bytes) -> None:
    stream = (
        encode_sse(ROLE, HELLO, HELLO, STOP, USAGE, DONE)
        .replace(b"data: ", b"data" + colon)
        .replace(b"\n", line_end)
    )
    CHAT.check_stream(stream)
    assert split_texts(stream, CHAT) == ["hello", "hello"]
    with pytest.raises(Violation, match="inside an event"):
        CHAT.check_stream(stream.removesuffix(line_end))
