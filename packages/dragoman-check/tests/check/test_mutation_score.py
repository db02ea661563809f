"""The checker detects the documented share of the planted defects (docs/check.md)."""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest

from .context_defects import CHAT_CONTEXT, OTHER_CONTEXT, SEVERAL_CALLS
from .defects import (
    CHAT_DEFECTS,
    DEFECTS,
    ERROR_DEFECTS,
    HTTP_DEFECTS,
    MESSAGES_DEFECTS,
    NAME_DEFECTS,
    OTHER_API_DEFECTS,
    OUTPUT_DEFECTS,
    PROMPT_DEFECTS,
    RESPONSES_DEFECTS,
    STREAM_DEFECTS,
    TOOL_DEFECTS,
)
from .mutation_score import check_server, find_defect, find_defects, find_failures
from .reference import DefectProxy, build_reference, serve
from .wire import Defect

FLOOR = 0.95
GROUPS = (
    STREAM_DEFECTS,
    CHAT_DEFECTS,
    TOOL_DEFECTS,
    ERROR_DEFECTS,
    RESPONSES_DEFECTS,
    MESSAGES_DEFECTS,
    OTHER_API_DEFECTS,
    HTTP_DEFECTS,
    PROMPT_DEFECTS,
    NAME_DEFECTS,
    OUTPUT_DEFECTS,
)
EACH = r"^(chat|messages)\.each-(turn|tool|result|system-part)$"
SAMPLE = [
    *(defect for group in GROUPS for defect in group[:12:4]),
    *(replace(defect, only=EACH) for defect in (CHAT_CONTEXT[5], *OTHER_CONTEXT[:8:4])),
    *SEVERAL_CALLS[::4],
]
"""Some defects of each group: all of them would take minutes."""
DOCS = Path(__file__).parents[4] / "docs" / "check.md"


@pytest.fixture(scope="module")
def reference() -> Generator[tuple[str, DefectProxy]]:
    proxy, models = build_reference()
    with serve(proxy, models) as url:
        yield url, proxy


@pytest.mark.parametrize("defect", SAMPLE, ids=lambda defect: defect.name)
def test_checker_detects_planted_defect(reference: tuple[str, DefectProxy], defect: Defect) -> None:
    assert find_defect(*reference, defect).found


# Whole areas in one run without a defect are in test_engines.py.
@pytest.mark.long
def test_checker_without_defect_reports_no_failure(reference: tuple[str, DefectProxy]) -> None:
    for only in sorted({defect.only for defect in SAMPLE}):
        assert find_failures(check_server(reference[0], only, model="sim")) == ()


def test_defects_are_unique_and_have_origins() -> None:
    assert len(DEFECTS) >= 150
    assert len({defect.name for defect in DEFECTS}) == len(DEFECTS)
    assert all(defect.origin and defect.only for defect in DEFECTS)


@pytest.mark.long
def test_mutation_score_meets_floor_and_matches_docs() -> None:
    findings = find_defects()
    found = sum(bool(finding.found) for finding in findings)
    assert found / len(findings) >= FLOOR, [f.defect.name for f in findings if not f.found]
    documented = re.search(r"(\d+) of (\d+) planted defects", DOCS.read_text())
    assert documented is not None
    assert (int(documented[1]), int(documented[2])) == (found, len(findings))
