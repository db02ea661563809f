"""The commands and programs in README.md and docs/ work and print the documented output
(see `blocks`).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from .blocks import Block, blocks
from .harness import PageRunner, SharedServers

ROOT = Path(__file__).parents[2]
PAGES = [
    page for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if page.exists()
]


LONG = {"docs/simulate.md", "docs/calibrate.md", "docs/benchmarking.md", "docs/extending.md"}
"""Pages whose commands take more than ten seconds."""


@pytest.fixture(scope="module")
def shared_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedServers]:
    servers = SharedServers(tmp_path_factory.mktemp("servers"))
    yield servers
    servers.close()


@pytest.fixture
def runner(tmp_path: Path, shared_servers: SharedServers) -> Iterator[PageRunner]:
    page_runner = PageRunner(tmp_path, shared_servers)
    yield page_runner
    page_runner.close()


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=name, marks=pytest.mark.long if name in LONG else ())
        for page in PAGES
        for name in (str(page.relative_to(ROOT)),)
    ],
)
def test_docs_page_commands_print_documented_output(page: Path, runner: PageRunner):
    steps = list(blocks(page.read_text(encoding="utf-8")))
    if shutil.which("curl") is None and any(
        each.kind == "test" and "$ curl" in each.text for each in steps
    ):
        pytest.skip("needs curl, which a bare Debian has not")
    runner.run(steps)


def part(text: str, language: str = "console", kind: str = "test") -> list[Block]:
    return list(blocks(f"<!-- {kind} -->\n```{language}\n{text}\n```\n"))


def test_page_runner_accepts_correct_page(runner: PageRunner):
    page = [
        *part("two", "text", "file: folder/one.txt"),
        *part("$ cat folder/one.txt\ntwo", kind="test: none"),
        *part("print(open('folder/one.txt').read())", "python", "test: none"),
        *part("t...o", "text", "output"),
    ]
    runner.run(page)


def test_page_runner_starts_requested_server(runner: PageRunner):
    program = """\
import os, urllib.request
assert os.environ["OPENAI_BASE_URL"].endswith("/v1")
print(urllib.request.urlopen("http://localhost:8000/v1/models").read().decode())
"""
    runner.run(
        [
            *part(program, "python", "test: scripted"),
            *part('{"object":"list",..."id":"scripted"...', "json", "output"),
        ]
    )


def test_page_runner_serves_script_of_page(runner: PageRunner):
    program = """\
import json, os, urllib.request
body = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body)
request.add_header("Content-Type", "application/json")
print(json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"])
"""
    script = part("- Said by the script", "yaml", "file: demo.yaml")
    runner.run(
        [
            *script,
            *part(program, "python", "test: scripted:demo.yaml"),
            *part("Said by...", "", "output"),
        ]
    )


@pytest.mark.parametrize(
    ("page", "why"),
    [
        (part("$ echo one\ntwo", kind="test: none"), "printed:\none"),
        (part("$ false", kind="test: none"), "exit status 1"),
        (part("raise SystemExit(3)", "python", "test: none"), "exit status 3"),
        (part("print(1)", "python", "test: none") + part("2", "", "output"), "it printed:\n1"),
        (part("1", "", "output"), "no python before"),
        (part("x", "rust", "test: none"), "rust cannot be run"),
        (part("x", "", "file: ../outside"), "outside of the folder"),
        (
            part("print(1)", "python", "test: tiny --api-profile x"),
            "not say where it listens(.|\n)*--api-profile",
        ),
    ],
)
def test_page_runner_rejects_wrong_page(page: list[Block], why: str, runner: PageRunner):
    with pytest.raises(AssertionError, match=f"line 2: (.|\n)*{why}"):
        runner.run(page)
