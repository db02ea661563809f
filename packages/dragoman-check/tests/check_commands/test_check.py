"""`dragoman check`: options, files and exit codes."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path

import pytest
from tests.check.reference import DefectProxy, build_reference, serve
from tests.check.wire import Defect, edit_json
from tests.cli_core.cli_runner import call, get_error, get_output


@pytest.fixture(scope="module")
def server() -> Generator[tuple[str, DefectProxy]]:
    proxy, models = build_reference()
    with serve(proxy, models) as url:
        yield url, proxy


def test_check_conforming_server_exits_0_and_writes_reports(
    server: tuple[str, DefectProxy], tmp_path: Path
) -> None:
    files = {name: tmp_path / f"report.{name}" for name in ("junit", "html", "badge")}
    options = [part for name, file in files.items() for part in (f"--{name}", str(file))]
    printed = get_output(
        "check", f"{server[0]}/v1", "--model", "sim", "--only", "^models", *options
    )
    assert "4 passed; score 100.0 %" in printed
    assert all(file.stat().st_size for file in files.values())


def test_check_failed_rule_exits_1_and_prints_source(server: tuple[str, DefectProxy]) -> None:
    server[1].defect = Defect(
        "x",
        "x",
        "^/v1/models$",
        "",
        edit_response=edit_json(lambda reply: reply.update(object="models")),
    )
    try:
        result = call("check", server[0], "--model", "sim", "--only", "^models.list")
    finally:
        server[1].defect = None
    assert result.exit_code == 1
    assert "models.list-form (must)" in result.stdout
    assert "https://platform.openai.com/docs/api-reference/models" in result.stdout


def test_check_without_model_uses_first_listed_model(server: tuple[str, DefectProxy]) -> None:
    assert ", tiny: 1 passed" in get_output("check", server[0], "--only", "^models.list")


def test_check_area_selects_its_checks() -> None:
    listed = get_output("check", "--list", "--area", "traps").splitlines()
    assert len(listed) > 10
    assert all(line.startswith("traps.") for line in listed)
    assert "'trap' is not one of models, chat" in get_error("check", "--list", "--area", "trap")


def test_check_untried_checks_exit_3(server: tuple[str, DefectProxy]) -> None:
    arguments = ("check", server[0], "--model", "sim", "--only", "^models", "--max-requests", "19")
    assert call(*arguments).exit_code == 3


def test_check_sends_api_key_of_environment(
    server: tuple[str, DefectProxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAGOMAN_API_KEY", "sk-1, sk-2")
    arguments = ("check", server[0], "--model", "sim", "--only", "^keys.no-key-chat", "--json")
    result = call(*arguments)
    assert result.exit_code == 1
    assert "keys.no-key-chat" in [each["id"] for each in json.loads(result.stdout)["checks"]]


def test_check_list_works_without_server() -> None:
    lines = get_output("check", "--list", "--only", "^http", "--skip", "chunk").splitlines()
    assert len(lines) > 30
    assert all(line.startswith("http.") and "chunk-" not in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nowhere"], "is not an address"),
        (["http://127.0.0.1:9"], "cannot connect to http://127.0.0.1:9"),
        (["http://127.0.0.1:9", "--profile", "x"], "must be one of auto, openai"),
        (["http://127.0.0.1:9", "--only", "("], "is not a valid regular expression"),
        (["http://127.0.0.1:9", "--only", "nothing-of-this-name"], "no check is left"),
    ],
)
def test_check_invalid_arguments_exit_2(arguments: list[str], text: str) -> None:
    assert text in get_error("check", *arguments)
