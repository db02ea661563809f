"""Every planted bug matches the source that it changes, and names tests that exist."""

from __future__ import annotations

import re

import pytest

from tests.mutants import MUTANTS, ROOT, Mutant

AREAS = (
    *("core", "dialects", "parsers", "pipeline", "constraints", "prompts", "isolation"),
    *("engines", "http", "serving", "store", "tenants", "launch", "recording"),
    *("dragoman_http", "dragoman_sim"),
)
"""Folders of `dragoman`, and other packages, that the sample covers."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.bug)
def test_planted_bug_matches_source(mutant: Mutant) -> None:
    source = (ROOT / mutant.file).read_text()
    assert source.count(mutant.old) == 1
    assert mutant.new != mutant.old
    # If the mutated module cannot be imported, no test runs.
    compile(source.replace(mutant.old, mutant.new), mutant.file, "exec")
    for test in mutant.tests:
        path, _, name = test.partition("::")
        assert (ROOT / path).exists()
        assert not name or f"def {name}(" in (ROOT / path).read_text()


def test_quick_sample_covers_areas_with_few_bugs() -> None:
    sample = [mutant.file for mutant in MUTANTS if mutant.quick]
    assert 20 <= len(sample) <= 30
    for area in AREAS:
        pattern = rf"/src/(dragoman/)?{area}/"
        assert any(re.search(pattern, file) for file in sample), area
