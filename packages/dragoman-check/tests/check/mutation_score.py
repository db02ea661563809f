"""The share of planted defects that `dragoman check` finds.

    python -m tests.check.mutation_score [PATTERN]

PATTERN limits the defects, by their names.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass

from dragoman_check.areas import CHECKS
from dragoman_check.check_report import CheckOutcome, CheckReport
from dragoman_check.client import CheckTarget
from dragoman_check.runner import run_checks

from .defects import DEFECTS
from .reference import DefectProxy, build_reference, proxy_bytes, serve
from .wire import Defect


@dataclass(frozen=True)
class Finding:
    """The result of one defect.

    found: ids of the checks that fail on the defect.
    """

    defect: Defect
    found: tuple[str, ...]


def check_server(url: str, only: str, *, model: str, profile: str = "auto") -> CheckReport:
    checks = [check for check in CHECKS if check.matches(only)]
    assert checks, f"no check matches {only}"
    return asyncio.run(run_checks(CheckTarget(url=url, model=model, profile=profile), checks))


def find_failures(report: CheckReport) -> tuple[str, ...]:
    return tuple(
        verdict.check.id for verdict in report.verdicts if verdict.outcome is CheckOutcome.FAILED
    )


def find_defect(url: str, proxy: DefectProxy, defect: Defect) -> Finding:
    """Run the defect's checks against a server that has the defect."""
    proxy.defect = None if defect.edit_bytes else defect
    try:
        with (
            nullcontext(url)
            if defect.edit_bytes is None
            else proxy_bytes(url, defect.edit_bytes) as address
        ):
            return Finding(
                defect,
                find_failures(
                    check_server(address, defect.only, model=defect.model, profile=defect.profile)
                ),
            )
    finally:
        proxy.defect = None


def find_defects(defects: Iterable[Defect] = DEFECTS) -> list[Finding]:
    proxy, models = build_reference()
    with serve(proxy, models) as url:
        return [find_defect(url, proxy, defect) for defect in defects]


def main(pattern: str = "") -> None:
    findings = find_defects(defect for defect in DEFECTS if re.search(pattern, defect.name))
    found = [finding for finding in findings if finding.found]
    for finding in findings:
        print(
            "found " if finding.found else "MISSED",
            finding.defect.name,
            "|",
            ", ".join(finding.found[:4]),
        )
    print(
        f"{len(found)} of {len(findings)} planted defects found: "
        f"{100 * len(found) / len(findings):.1f} %"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
