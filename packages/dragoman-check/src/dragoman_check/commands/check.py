"""`dragoman check`: checks the conformance of a running server. The checks themselves
are in `dragoman.check`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.commands.options import build_command, print_error, show_progress
from dragoman.commands.server_connection import resolve_api_key

if TYPE_CHECKING:
    from ..check_report import CheckReport, Verdict
    from ..session import Check

CHECK_HELP = """Check any server of the OpenAI, Anthropic or Ollama APIs against their rules.

Exit codes: 0, every rule that a server must follow holds; 1, one does not; 2, the server cannot be checked; 3, the
limits of requests or tokens left checks untried.
"""
REPORT_PANEL = "Reports"
LIMIT_PANEL = "Limits"


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    url: Annotated[
        str, typer.Argument(metavar="URL", help="Address of the server, with or without /v1.")
    ] = ""
    profile: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="What the server claims to be: `auto` checks what it has. Others: openai, "
            "anthropic, vllm, sglang, "
            "llamacpp, ollama, tgi, litellm, transformers, dragoman.",
        ),
    ] = "auto"
    model: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Model to ask; by default the first one listed.",
            show_default=False,
        ),
    ] = ""
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Run the checks whose id contains this regular expression. Repeatable.",
        ),
    ] = None
    skip: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Leave out the checks that match. Repeatable."),
    ] = None
    list_checks: Annotated[
        bool, typer.Option("--list", help="List the checks with their rules, and send nothing.")
    ] = False
    key_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="File with the API key. By default the first key of DRAGOMAN_API_KEY is sent.",
            show_default=False,
        ),
    ] = None
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Exit with 1 also if a rule that a server should follow does not hold."
        ),
    ] = False
    destructive: Annotated[
        bool,
        typer.Option(
            "--destructive",
            help="Also run checks that load the server heavily.",
            rich_help_panel=LIMIT_PANEL,
        ),
    ] = False
    max_requests: Annotated[
        int,
        typer.Option(
            metavar="N", help="Maximum number of requests.", min=1, rich_help_panel=LIMIT_PANEL
        ),
    ] = 3000
    max_tokens: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Maximum number of output tokens that all requests together allow.",
            min=1,
            rich_help_panel=LIMIT_PANEL,
        ),
    ] = 200_000
    timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", help="Time limit of a request.", rich_help_panel=LIMIT_PANEL
        ),
    ] = 60.0
    json: Annotated[
        str | None,
        typer.Option(
            "--json", metavar="FILE", help="Write a JSON report.", rich_help_panel=REPORT_PANEL
        ),
    ] = None
    junit: Annotated[
        str | None,
        typer.Option(
            "--junit", metavar="FILE", help="Write JUnit XML.", rich_help_panel=REPORT_PANEL
        ),
    ] = None
    html: Annotated[
        str | None,
        typer.Option(
            "--html",
            metavar="FILE",
            help="Write a page with the evidence.",
            rich_help_panel=REPORT_PANEL,
        ),
    ] = None
    badge: Annotated[
        str | None,
        typer.Option(
            "--badge", metavar="FILE", help="Write an SVG badge.", rich_help_panel=REPORT_PANEL
        ),
    ] = None


def _run(options: CheckOptions) -> None:
    import asyncio  # noqa: PLC0415 - imports inside the functions keep `--help` fast

    from ..claims import PROFILES  # noqa: PLC0415
    from ..rules.json_values import Violation  # noqa: PLC0415
    from ..runner import run_checks  # noqa: PLC0415
    from ..session import CheckTarget  # noqa: PLC0415

    checks = _select_checks(options)
    if options.list_checks:
        for check in checks:
            typer.echo(f"{check.id}  {check.rule} ({check.level})")
        return
    if not options.url.startswith(("http://", "https://")):
        raise ValueError(f"URL: {options.url!r} is not an address such as http://127.0.0.1:8000")
    if options.profile != "auto" and options.profile not in PROFILES:
        raise ValueError(
            f"--profile: must be one of auto, {', '.join(PROFILES)}, not {options.profile!r}"
        )
    # No option takes the key itself: every process of the machine can read a command
    # line.
    key_file = options.key_file
    key = (
        resolve_api_key(None)
        if key_file is None
        else Path(key_file).read_text(encoding="utf-8").strip() or None
    )
    target = CheckTarget(
        url=options.url.rstrip("/").removesuffix("/v1"),
        api_key=key,
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
            raise typer.Exit(2) from None
    _publish_report(report, options)
    raise typer.Exit(report.find_exit_code(strict=options.strict))


def _select_checks(options: CheckOptions) -> list[Check]:
    import re  # noqa: PLC0415 - as above

    from ..areas import CHECKS  # noqa: PLC0415

    try:
        checks = [
            check
            for check in CHECKS
            if not options.only or any(check.matches(only) for only in options.only)
        ]
        checks = [
            check for check in checks if not any(check.matches(skip) for skip in options.skip or ())
        ]
    except re.error as error:
        raise ValueError(
            f"--only, --skip: {error.pattern!r} is not a valid regular expression: {error}"
        ) from None
    if not checks:
        raise ValueError("--only, --skip: no check is left; --list shows all")
    return checks


def _publish_report(report: CheckReport, options: CheckOptions) -> None:
    """Write the files that the options name, and print the report."""
    from datetime import UTC, datetime  # noqa: PLC0415 - as above

    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from dragoman import __version__  # noqa: PLC0415

    from .. import runner  # noqa: PLC0415

    date = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    files = (
        (options.json, lambda: runner.render_json(report, date, __version__)),
        (options.junit, lambda: runner.render_junit(report, date)),
        (options.html, lambda: runner.render_html(report, date, __version__)),
        (options.badge, lambda: runner.render_badge(report)),
    )
    for file, render in files:
        if file is not None:
            Path(file).write_text(render(), encoding="utf-8")
    console = Console(
        highlight=False, soft_wrap=True, no_color=bool(os.environ.get("NO_COLOR")) or None
    )
    table = Table("area", *(outcome.value for outcome in runner.CheckOutcome), box=None)
    for area, verdicts in runner.group_by_area(report):
        counts = [
            sum(verdict.outcome is outcome for verdict in verdicts)
            for outcome in runner.CheckOutcome
        ]
        table.add_row(
            area, *(str(count or "") for count in counts), style="red" if counts[1] else None
        )
    console.print(table)
    for verdict in report.verdicts:
        if verdict.outcome is runner.CheckOutcome.FAILED:
            style = "bold red" if verdict.check.level == "must" else "bold yellow"
            title = Text.assemble(
                (f"\n{verdict.check.id}", style), f" ({verdict.check.level}) {verdict.check.rule}"
            )
            console.print(
                title, Text(f"    {verdict.reason[:500]}\n    {verdict.check.source}"), sep="\n"
            )
    totals = ", ".join(
        f"{count} {outcome.value}" for outcome, count in report.counts.items() if count
    )
    score = "no score" if report.score is None else f"score {report.score:.1f} %"
    console.print(
        f"\n{report.target.url}, {report.target.model}: {totals}; {score}; {report.requests} "
        f"requests"
    )


check = build_command(CheckOptions, _run, about=CHECK_HELP)
