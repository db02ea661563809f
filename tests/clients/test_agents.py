"""Coding agents as `dragoman launch` starts them: a file is read and edited in a tool
loop, without any account.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.commands.processes import build_environment

from .client_process import PATIENCE

PROGRAMS = Path(__file__).parent / "node" / "node_modules" / ".bin"
AGENTS = ("claude", "codex", "gemini")
"""Those that every test runs."""
RUNS: dict[str, Any] = json.loads((Path(__file__).parent / "agent_runs.json").read_text())
"""By agent, the arguments before the prompt, and the tool calls or the text by which it
edits the file. The docs list them.
"""

pytestmark = pytest.mark.clients

EDITED = "Good morning, moon.\n"


def needs(agent: str) -> None:
    path = f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"
    if shutil.which("node", path=path) is None or shutil.which(agent, path=path) is None:
        pytest.skip(f"needs node, and {agent} from `npm install --prefix tests/clients/node`")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A git repository with a file, below an empty home."""
    project = tmp_path / "home" / "project"
    project.mkdir(parents=True)
    (project / "note.txt").write_text("Good morning, sun.\n")
    subprocess.run(["git", "init", "--quiet"], cwd=project, check=True)
    return project


def launch(
    agent: str, model: str, project: Path, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run an agent to completion in the project, with an empty home directory."""
    needs(agent)
    home = {
        "HOME": str(project.parent),
        "XDG_STATE_HOME": str(project.parent / "state"),
        # As a shell sets it: OpenCode takes its working directory from there.
        "PWD": str(project),
        "PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(
        [sys.executable, "-m", "dragoman", "launch", agent, model, "--", *arguments],
        cwd=project,
        env=build_environment(**home, **variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done


def ask(agent: str, prompt: str) -> list[str]:
    """Return the arguments for a non-interactive run of one prompt."""
    run = RUNS[agent]
    # OpenCode puts arguments with spaces in quotes, and joins them.
    return [*run["arguments"], *(prompt.split(" ") if run.get("quotes_words") else [prompt])]


def tool_loop(agent: str, project: Path) -> str:
    """Return directives that read the file, edit it and report it."""
    run = RUNS[agent]
    if "text" in run:
        return f"[[say {run['text']}]]"
    calls = [
        f"[[tool {name} {json.dumps(body).replace('FILE', str(project / 'note.txt'))}]]"
        for name, body in run["calls"]
    ]
    return " [[then]] ".join([*calls, "[[say All done.]]"])


@pytest.mark.parametrize(
    "agent",
    [
        # Half a minute each.
        pytest.param(agent, marks=pytest.mark.long) if agent in {"opencode", "aider"} else agent
        for agent in RUNS
    ],
)
def test_agent_tool_loop_reads_and_edits_file(agent: str, project: Path) -> None:
    done = launch(agent, "scripted", project, *ask(agent, tool_loop(agent, project)))
    assert ("All done." if "calls" in RUNS[agent] else "moon.") in done.stdout
    assert (project / "note.txt").read_text() == EDITED


@pytest.mark.parametrize(
    "agent",
    [
        # The embedded model reads Gemini CLI's prompt for most of a minute.
        pytest.param(agent, marks=pytest.mark.long) if agent == "gemini" else agent
        for agent in AGENTS
    ],
)
def test_agent_receives_answer_of_embedded_model(agent: str, project: Path) -> None:
    done = launch(
        agent,
        "tiny",
        project,
        *ask(agent, "Say hello."),
        DRAGOMAN_OVERRIDE_GENERATION_CONFIG='{"temperature": 0}',
    )
    if agent == "codex":
        events = [json.loads(line) for line in done.stdout.splitlines()]
        assert events[-1]["type"] == "turn.completed"
        assert events[-1]["usage"]["output_tokens"] > 0
    else:
        assert done.stdout.strip()


@pytest.mark.parametrize(
    "agent",
    [
        *AGENTS,
        *(
            pytest.param(agent, marks=pytest.mark.long)
            for agent in ("copilot", "qwen", "cline", "pi")
        ),
    ],
)
def test_agent_turns_reuse_cached_prefix(agent: str, project: Path, tmp_path: Path) -> None:
    """An agent's prompt starts with nothing volatile: each request finds nearly all of
    the last one in the cache.
    """
    log = tmp_path / "requests.jsonl"
    settings = {
        "DRAGOMAN_DIRECTIVES": "1",
        "DRAGOMAN_TIME_SCALE": "1000",
        "DRAGOMAN_REQUEST_LOG": str(log),
        "DRAGOMAN_MAX_MODEL_LEN": "131072",
        "DRAGOMAN_NUM_GPU_BLOCKS_OVERRIDE": "20000",
    }
    launch(agent, "sim", project, *ask(agent, tool_loop(agent, project)), **settings)
    assert (project / "note.txt").read_text() == EDITED
    usages = [
        (line["prompt_tokens"], line["cached_tokens"])
        for line in map(json.loads, log.read_text().splitlines())
    ]
    assert len(usages) >= 3
    for (previous, _), (_, cached) in pairwise(usages):
        assert cached > 0.95 * previous, usages
