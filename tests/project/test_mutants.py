"""Every planted bug still finds the line that it spoils, and the tests that are to notice it."""

from __future__ import annotations

import pytest

from tests.mutants import MUTANTS, ROOT, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.bug)
def test_a_planted_bug_has_its_place(mutant: Mutant) -> None:
    source = (ROOT / "src/dragoman" / mutant.file).read_text()
    assert source.count(mutant.old) == 1
    assert mutant.new != mutant.old
    # Tests that cannot import the spoiled module would notice nothing.
    compile(source.replace(mutant.old, mutant.new), mutant.file, "exec")
    assert all((ROOT / test.partition("::")[0]).exists() for test in mutant.tests)
