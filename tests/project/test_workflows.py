"""The workflows of GitHub and the sections of `.ci/run`, as far as they can be checked
without running them.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def load_sections() -> Any:
    """The module `.ci/sections.py`, which is in no package."""
    spec = importlib.util.spec_from_file_location("sections", ROOT / ".ci/sections.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SECTIONS = load_sections()


def read_workflow(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / ".github/workflows" / name).read_text())


def list_sections(array: str) -> list[str]:
    """Sections of an array in .ci/run."""
    found = re.search(rf"^{array}=\((.*)\)$", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    assert found is not None
    return found[1].split()


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_workflow_has_least_permissions_and_limits(file: Path) -> None:
    workflow = yaml.safe_load(file.read_text())
    # YAML 1.1 reads the key `on` as true.
    assert set(workflow) == {"name", True, "permissions", "concurrency", "jobs"}
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 350
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step)
            # Values of events are passed as variables, so that none is read as a
            # command.
            assert "${{" not in step.get("run", "")
            if "actions/checkout@" in step.get("uses", ""):
                assert step["with"]["persist-credentials"] is False


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_workflow_actions_are_pinned_by_digest(file: Path) -> None:
    used = re.findall(r"uses: (.*)$", file.read_text(), re.MULTILINE)
    assert used
    for each in used:
        assert re.fullmatch(r"[\w.-]+(/[\w.-]+)+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each), each


def test_workflow_actions_have_one_version_each() -> None:
    used = {each for file in WORKFLOWS for each in re.findall(r"uses: (\S+)", file.read_text())}
    assert len(used) == len({each.partition("@")[0] for each in used})


def test_gate_needs_all_other_jobs() -> None:
    jobs = read_workflow("ci.yml")["jobs"]
    assert set(jobs["gate"]["needs"]) == set(jobs) - {"gate"}
    assert jobs["gate"]["if"] == "always()"


def test_nightly_workflow_runs_all_sections() -> None:
    jobs = read_workflow("nightly.yml")["jobs"]
    assert jobs["section"]["strategy"]["matrix"]["section"] == [
        *list_sections("SECTIONS"),
        *list_sections("LONG_SECTIONS"),
    ]


def test_release_workflow_publishes_without_token() -> None:
    text = (ROOT / ".github/workflows/release.yml").read_text()
    jobs = yaml.safe_load(text)["jobs"]
    assert "secrets." not in text
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["publish"]["environment"]["name"] == "pypi"
    assert jobs["attest"]["permissions"]["attestations"] == "write"


def test_sections_are_those_of_script_in_order() -> None:
    assert list(SECTIONS.SECTIONS) == list_sections("SECTIONS")
    script = (ROOT / ".ci/run").read_text()
    for section in (*SECTIONS.SECTIONS, *list_sections("LONG_SECTIONS")):
        assert re.search(rf"^{section}\(\) \{{$", script, re.MULTILINE), section
        assert re.search(rf"^{section}  +\w", script, re.MULTILINE), section
    rules = [section for _, sections in SECTIONS.RULES for section in sections]
    assert set(rules) <= set(SECTIONS.SECTIONS)


@pytest.mark.parametrize(
    ("paths", "sections"),
    [
        (["docs/serving.md"], ["docs"]),
        (["README.md", "docs/agents/README.md"], ["docs"]),
        (["docs/generate.py"], ["check", "docs"]),
        (["deploy/helm/dragoman/values.yaml"], ["check", "host"]),
        (["tests/mutants.py"], ["check", "mutants"]),
        (["tests/clients/test_ui.py", "docs/ui.md"], ["check", "docs", "clients"]),
    ],
)
def test_change_runs_its_sections(paths: list[str], sections: list[str]) -> None:
    assert list(SECTIONS.choose_sections(paths)) == sections


@pytest.mark.parametrize(
    "path",
    [
        "packages/dragoman/src/dragoman/core/event.py",
        "packages/dragoman/tests/engines/transformers/test_models.py",
        "packages/dragoman-http/src/dragoman_http/client.py",
        "requirements/check.lock",
        "pyproject.toml",
        "conftest.py",
        "Makefile",
        ".ci/run",
        "a/new/folder/file",
    ],
)
def test_change_of_shared_file_runs_all_sections(path: str) -> None:
    assert SECTIONS.choose_sections([path]) == SECTIONS.SECTIONS


def test_change_since_unknown_commit_runs_all_sections() -> None:
    assert SECTIONS.list_changes("0" * 40) is None


def test_checker_and_simulator_run_less_than_server() -> None:
    checker = SECTIONS.choose_sections(["packages/dragoman-check/src/dragoman_check/runner.py"])
    simulator = SECTIONS.choose_sections(["packages/dragoman-sim/src/dragoman_sim/build.py"])
    assert "ray" not in checker
    assert "engines" not in simulator
    assert "vllm" in simulator
    assert {"check", "oldest", "host", "docs", "wheels"} <= set(checker) & set(simulator)


def test_script_lists_its_sections() -> None:
    command = ["bash", str(ROOT / ".ci/run"), "--list"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    names = [line.split()[0] for line in done.stdout.splitlines()]
    assert names == [*list_sections("SECTIONS"), *list_sections("LONG_SECTIONS")]


def test_script_rejects_unknown_section() -> None:
    command = ["bash", str(ROOT / ".ci/run"), "nothing"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no section nothing" in done.stderr
