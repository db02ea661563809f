"""`dragoman check`: checks the conformance of a running server. The checks themselves
are in the other modules of this package.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from dragoman_cli import (
    Argument,
    Option,
    build_command,
    print_error,
    print_text,
    render_table,
    show_progress,
)
from dragoman_cli.api_key import build_api_key_option, find_api_key

if TYPE_CHECKING:
    from ..check_catalog import Check
    from ..check_report import CheckReport, Verdict

CHECK_HELP = """Check any server of the OpenAI, Anthropic or Ollama APIs against their rules.

Exit codes: 0, every rule that a server must follow holds; 1, one does not; 2, the
server cannot be checked; 3, the limits of requests or tokens left checks untried.
"""
REPORT_GROUP = "Reports"
LIMIT_GROUP = "Limits"


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    url: Annotated[
        str, Argument(metavar="URL", help="Address of the server, with or without /v1.")
    ] = ""
    profile: Annotated[
        str,
        Option(
            metavar="NAME",
            help="What the server claims to be: `auto` checks what it has. Others: openai, "
            "anthropic, vllm, sglang, "
            "llamacpp, ollama, tgi, gemini, litellm, transformers, dragoman.",
        ),
    ] = "auto"
    model: Annotated[
        str,
        Option(
            metavar="NAME",
            help="Model to ask; by default the first one listed.",
        ),
    ] = ""
    area: Annotated[
        tuple[str, ...],
        Option(metavar="NAME", help="Run the checks of this area, such as traps. Repeatable."),
    ] = ()
    only: Annotated[
        tuple[str, ...],
        Option(
            metavar="PATTERN",
            help="Run the checks whose id contains this regular expression. Repeatable.",
        ),
    ] = ()
    skip: Annotated[
        tuple[str, ...],
        Option(metavar="PATTERN", help="Leave out the checks that match. Repeatable."),
    ] = ()
    list_checks: Annotated[
        bool, Option("--list", help="List the checks with their rules, and send nothing.")
    ] = False
    api_key: Annotated[str | None, build_api_key_option()] = None
    strict: Annotated[
        bool,
        Option(
            "--strict", help="Exit with 1 also if a rule that a server should follow does not hold."
        ),
    ] = False
    destructive: Annotated[
        bool,
        Option(
            "--destructive",
            help="Also run checks that load the server heavily.",
            group=LIMIT_GROUP,
        ),
    ] = False
    max_requests: Annotated[
        int,
        Option(metavar="N", help="Maximum number of requests.", minimum=1, group=LIMIT_GROUP),
    ] = 3000
    max_tokens: Annotated[
        int,
        Option(
            metavar="N",
            help="Maximum number of output tokens that all requests together allow.",
            minimum=1,
            group=LIMIT_GROUP,
        ),
    ] = 200_000
    timeout: Annotated[
        float,
        Option(metavar="SECONDS", help="Time limit of a request.", group=LIMIT_GROUP),
    ] = 60.0
    json: Annotated[bool, Option("--json", help="Print JSON.", group=REPORT_GROUP)] = False
    junit: Annotated[
        str | None,
        Option("--junit", metavar="FILE", help="Write JUnit XML.", group=REPORT_GROUP),
    ] = None
    html: Annotated[
        str | None,
        Option(
            "--html",
            metavar="FILE",
            help="Write a page with the evidence.",
            group=REPORT_GROUP,
        ),
    ] = None
    badge: Annotated[
        str | None,
        Option("--badge", metavar="FILE", help="Write an SVG badge.", group=REPORT_GROUP),
    ] = None


def _run(options: CheckOptions) -> None:
    import asyncio  # noqa: PLC0415 - imports inside the functions keep `--help` fast

    from ..claims import PROFILES  # noqa: PLC0415
    from ..client import CheckTarget  # noqa: PLC0415
    from ..rules.json_values import Violation  # noqa: PLC0415
    from ..runner import run_checks  # noqa: PLC0415

    checks = _select_checks(options)
    if options.list_checks:
        for check in checks:
            click.echo(f"{check.id}  {check.rule} ({check.level})")
        return
    if not options.url.startswith(("http://", "https://")):
        raise ValueError(f"URL: {options.url!r} is not an address such as http://127.0.0.1:8000")
    if options.profile != "auto" and options.profile not in PROFILES:
        raise ValueError(
            f"--profile: must be one of auto, {', '.join(PROFILES)}, not {options.profile!r}"
        )
    target = CheckTarget(
        url=options.url.rstrip("/").removesuffix("/v1"),
        api_key=find_api_key(options.api_key),
        model=options.model,
        profile=options.profile,
        timeout=options.timeout,
        max_requests=options.max_requests,
        max_tokens=options.max_tokens,
    )
    with show_progress("Checking", len(checks)) as on_progress:
        verdicts: list[Verdict] = []

        def show(verdict: Verdict) -> None:
            verdicts.append(verdict)
            on_progress(len(verdicts))

        try:
            report = asyncio.run(
                run_checks(target, checks, allow_destructive=options.destructive, on_verdict=show)
            )
        except Violation as violation:
            print_error(str(violation))
            raise click.exceptions.Exit(2) from None
    _publish_report(report, options)
    raise click.exceptions.Exit(report.find_exit_code(strict=options.strict))


def _select_checks(options: CheckOptions) -> list[Check]:
    import re  # noqa: PLC0415 - as above

    from ..areas import AREAS  # noqa: PLC0415

    names = [area.name for area in AREAS]
    for name in options.area:
        if name not in names:
            raise ValueError(f"--area: {name!r} is not one of {', '.join(names)}")
    checks = [
        check
        for area in AREAS
        if not options.area or area.name in options.area
        for check in area.checks
    ]
    try:
        checks = [
            check
            for check in checks
            if not options.only or any(check.matches(only) for only in options.only)
        ]
        checks = [
            check for check in checks if not any(check.matches(skip) for skip in options.skip)
        ]
    except re.error as error:
        raise ValueError(
            f"--only, --skip: {error.pattern!r} is not a valid regular expression: {error}"
        ) from None
    if not checks:
        raise ValueError("--area, --only, --skip: no check is left; --list shows all")
    return checks


def _publish_report(report: CheckReport, options: CheckOptions) -> None:
    """Write the files that the options name, and print the report."""
    from datetime import UTC, datetime  # noqa: PLC0415 - as above

    from .._version import VERSION  # noqa: PLC0415
    from ..report_formats import render_badge, render_html, render_json, render_junit  # noqa: PLC0415

    date = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    files = (
        (options.junit, lambda: render_junit(report, date)),
        (options.html, lambda: render_html(report, date, VERSION)),
        (options.badge, lambda: render_badge(report)),
    )
    for file, render in files:
        if file is not None:
            Path(file).write_text(render(), encoding="utf-8")
    if options.json:
        click.echo(render_json(report, date, VERSION), nl=False)
    else:
        _print_report(report)


def _print_report(report: CheckReport) -> None:
    """Print the table of areas, the failed checks with their rules, and the totals."""
    from ..check_report import CheckOutcome  # noqa: PLC0415 - as above
    from ..report_formats import group_by_area  # noqa: PLC0415

    rows = [["area", *(outcome.value for outcome in CheckOutcome)]]
    failed_rows: set[int] = set()
    for area, verdicts in group_by_area(report):
        counts = {
            outcome: sum(verdict.outcome is outcome for verdict in verdicts)
            for outcome in CheckOutcome
        }
        if counts[CheckOutcome.FAILED]:
            failed_rows.add(len(rows))
        rows.append([area, *(str(count or "") for count in counts.values())])
    for number, line in enumerate(render_table(rows, right=True).splitlines()):
        print_text(click.style(line, "red") if number in failed_rows else line)
    for verdict in report.verdicts:
        if verdict.outcome is CheckOutcome.FAILED:
            color = "red" if verdict.check.level == "must" else "yellow"
            name = click.style(verdict.check.id, color, bold=True)
            print_text(
                f"\n{name} ({verdict.check.level}) {verdict.check.rule}\n"
                f"    {verdict.reason[:500]}\n    {verdict.check.source}"
            )
    totals = ", ".join(
        f"{count} {outcome.value}" for outcome, count in report.counts.items() if count
    )
    score = "no score" if report.score is None else f"score {report.score:.1f} %"
    click.echo(
        f"\n{report.target.url}, {report.target.model}: {totals}; {score}; {report.requests} "
        f"requests"
    )


COMMAND = build_command(
    "check",
    CheckOptions,
    _run,
    help=CHECK_HELP,
    short_help="Check a server against the rules of its APIs.",
)
