"""Every planted bug matches the source that it changes, and names tests that exist."""

from __future__ import annotations

import pytest

from tests.mutants import MUTANTS, ROOT, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.bug)
def test_planted_bug_matches_source(mutant: Mutant) -> None:
    source = (ROOT / "src/dragoman" / mutant.file).read_text()
    assert source.count(mutant.old) == 1
    assert mutant.new != mutant.old
    # If the mutated module cannot be imported, no test runs.
    compile(source.replace(mutant.old, mutant.new), mutant.file, "exec")
    assert all((ROOT / test.partition("::")[0]).exists() for test in mutant.tests)
