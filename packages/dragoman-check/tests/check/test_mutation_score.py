"""The checker finds the documented share of the planted defects (docs/check.md)."""

from __future__ import annotations

import re
from collections.abc import Generator
from pathlib import Path

import pytest

from .defects import (
    DEFECTS,
    ON_ANSWERS,
    ON_BYTES,
    ON_CHAT,
    ON_ERRORS,
    ON_MESSAGES,
    ON_NAMES,
    ON_OTHERS,
    ON_PROMPTS,
    ON_RESPONSES,
    ON_STREAMS,
    ON_TOOLS,
)
from .mutation_score import check_server, find_defect, find_defects, find_failures
from .reference import DefectProxy, build_reference, serve

FLOOR = 0.95
GROUPS = (
    ON_STREAMS,
    ON_CHAT,
    ON_TOOLS,
    ON_ERRORS,
    ON_RESPONSES,
    ON_MESSAGES,
    ON_OTHERS,
    ON_BYTES,
    ON_PROMPTS,
    ON_NAMES,
    ON_ANSWERS,
)
SAMPLE = [defect for group in GROUPS for defect in group[:12:3]]
"""Four defects of each group: all of them would take minutes."""
DOCS = Path(__file__).parents[2] / "docs" / "check.md"


@pytest.fixture(scope="module")
def reference() -> Generator[tuple[str, DefectProxy]]:
    proxy, models = build_reference()
    with serve(proxy, models) as url:
        yield url, proxy


@pytest.mark.parametrize("defect", SAMPLE, ids=lambda defect: defect.name)
def test_checker_detects_planted_defect(reference: tuple[str, DefectProxy], defect: object) -> None:
    chosen = next(each for each in SAMPLE if each is defect)
    assert find_defect(*reference, chosen).found


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
