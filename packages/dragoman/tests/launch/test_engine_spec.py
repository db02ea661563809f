"""An engine that a package of a third party declares has everything that ours have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.launch.engine_registry import list_engines
from dragoman.settings.fields import FIELDS_BY_NAME, SUPPORTED_BY

PACKAGE = Path(__file__).parent / "parrot_package"
DOCS = Path(__file__).parents[4] / "docs"
SERVED = """
import asyncio, json, httpx2
from dragoman import create_app

async def ask(**settings):
    app = create_app("parrot:polly", store="none", **settings)
    transport = httpx2.ASGITransport(app)
    client = httpx2.AsyncClient(transport=transport, base_url="http://localhost")
    async with app.lifespan(app), client as http:
        (card,) = (await http.get("/v1/models")).json()["data"]
        body = {"model": "polly", "prompt": "pretty bird", "max_tokens": 2}
        answer = (await http.post("/v1/completions", json=body)).json()
    print(json.dumps([card["id"], card["dragoman"]["capabilities"], answer["choices"][0]["text"]]))

asyncio.run(ask(parrot_voice="loud"))
"""


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python where the package is installed."""
    path = os.pathsep.join([str(PACKAGE), str(DOCS), *sys.path])
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": path, "COLUMNS": "100", **variables}
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        cwd=PACKAGE,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_engine_of_other_package_has_section_in_help() -> None:
    output = run("-m", "dragoman", "serve", "--help").stdout
    section = output.partition("\nParrot:\n")[2]
    assert "--parrot-voice" in section
    assert "How loudly" in section


def test_engine_of_other_package_reads_its_setting() -> None:
    done = run("-c", SERVED)
    assert done.stdout, done.stderr
    name, capabilities, text = json.loads(done.stdout)
    assert (name, text) == ("polly", "PRETTY BIRD ")
    assert "generation" in capabilities


def test_setting_of_other_engine_is_read_from_environment() -> None:
    arguments = ("-m", "dragoman", "serve", "parrot", "--port", "0", "--store", "none")
    done = run(*arguments, DRAGOMAN_PARROT_VOICE="hoarse")
    assert "DRAGOMAN_PARROT_VOICE" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("parrot:4",), "a parrot's name has letters only, not '4'"),
        (("parot",), "did you mean `parrot`?"),
        (("parrot", "--strict", "--gpu-layers", "3"), "parrot would ignore it"),
        (("tiny", "--strict", "--parrot-voice", "loud"), "--parrot-voice is for parrot"),
    ],
)
def test_wrong_use_of_other_engine_is_reported(arguments: tuple[str, ...], message: str) -> None:
    done = run("-m", "dragoman", "serve", *arguments, "--port", "0", "--store", "none")
    assert done.returncode != 0
    assert message in done.stderr


def test_engine_of_other_package_is_in_tables_of_docs() -> None:
    program = "import generate; print(*generate.settings(), *generate.engines(), sep='\\n')"
    output = run("-c", program).stdout
    assert "| `--parrot-voice` | `DRAGOMAN_PARROT_VOICE` | `quiet` |" in output
    assert "*(parrot)*" in output
    assert "| parrot |" in output.partition("| feature |")[2].splitlines()[0]


def test_engine_of_other_package_passes_engine_kit() -> None:
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", str(PACKAGE / "kit_of_parrot.py"))
    assert done.returncode == 0, done.stdout
    assert "..." in done.stdout


def test_other_engine_not_chosen_is_not_imported() -> None:
    program = (
        "import sys, dragoman.settings.fields\nprint([m for m in sys.modules if 'parrot' in m])"
    )
    assert run("-c", program).stdout == "['parrot', 'parrot.spec']\n"


def test_engines_support_existing_settings() -> None:
    for spec in list_engines():
        assert (spec.supports or frozenset()) <= FIELDS_BY_NAME.keys()
    assert SUPPORTED_BY["gpu_layers"] == ("llamacpp",)
