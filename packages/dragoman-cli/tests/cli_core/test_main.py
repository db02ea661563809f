"""The command line: it finds the commands of the installed packages, and imports only
the chosen one.
"""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from dragoman_cli import build_command
from dragoman_cli.entry_points import EntryPoint
from dragoman_cli.main import PACKAGES

from .cli_runner import call, get_error


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, EntryPoint]:
    """The registered commands by name: none at first."""
    commands: dict[str, EntryPoint] = {}
    monkeypatch.setattr("dragoman_cli.main.find_commands", lambda: commands)
    return commands


def register(installed: dict[str, EntryPoint], name: str, value: str) -> None:
    installed[name] = EntryPoint(name, value)


@pytest.mark.usefixtures("installed")
def test_command_of_missing_package_names_package():
    assert "`check` is a command of dragoman-check: pip install dragoman-check" in get_error(
        "check", "http://127.0.0.1:9"
    )


def test_unknown_command_gets_suggestion_of_registered_one(installed: dict[str, EntryPoint]):
    register(installed, "tune", "json:dumps")
    assert "No such command 'tun'. Did you mean 'tune'?" in get_error("tun")
    assert get_error("xyz").endswith("No such command 'xyz'.\n")


def test_foreign_command_is_listed_after_own_ones(installed: dict[str, EntryPoint]):
    register(installed, "aim", "tests.cli_core.test_main:AIM")
    register(installed, "serve", "dragoman.commands.serve_command:COMMAND")
    _, _, commands = call("--help").output.partition("Commands:\n")
    assert [line.split()[0] for line in commands.splitlines()] == ["serve", "aim", "version"]


def test_chosen_command_is_the_only_one_imported(installed: dict[str, EntryPoint]):
    register(installed, "aim", "tests.cli_core.test_main:AIM")
    register(installed, "broken", "no_such_module:COMMAND")
    assert call("aim").output == "aimed\n"


@pytest.mark.parametrize("argument", ["version", "--version"])
@pytest.mark.usefixtures("installed")
def test_version_needs_no_installed_command(argument: str):
    assert call(argument).output.count(".") == 2


def test_all_commands_of_own_packages_are_installed():
    output = call("--help").output
    for name in PACKAGES:
        assert f"\n  {name} " in output


ALLOWED_PACKAGES = {"click", "msgspec", "typing_extensions"}
"""Packages of others that a command may import before it does its work."""
ALLOWED_MODULES = {
    "serve": {
        "dragoman.commands",
        "dragoman.core",
        "dragoman.settings",
        # What engines declare.
        "dragoman.launch.directory_front_end",
        "dragoman.launch.engine_spec",
        "dragoman.launch.engines",
        "dragoman.launch.model_file",
        "dragoman.launch.model_format",
        "dragoman.launch.safetensors_format",
        "dragoman_sim.engine.scheduler_config",
        "dragoman_sim.settings",
        "dragoman_sim.spec",
        # The flags of `vllm serve`, which follow `sim`.
        "dragoman_sim.vllm_command_line",
        "dragoman_sim.vllm_flags",
        "dragoman_sim.vllm_serve_flags",
        "dragoman_sim.vllm_translation",
    },
    "check": {"dragoman_check.commands"},
    "simulate": {
        "dragoman.core",
        "dragoman_check.commands",
        "dragoman_sim.commands",
        "dragoman_sim.engine",
        "dragoman_sim.vllm_flags",
    },
}
"""Modules of our packages that a command may import, besides versions."""


def list_modules(program: str) -> set[str]:
    """Return the names of the modules that a new process has imported."""
    script = f"{program}\nimport sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("command", ALLOWED_MODULES)
def test_command_imports_few_modules_before_its_work(command: str):
    common = "import sys\nfrom dragoman_cli.main import main\n"
    start = f"{common}sys.argv[1:] = [{command!r}, '--help']\ntry: main()\nexcept SystemExit: pass"
    check_modules(list_modules(start) - list_modules(common), ALLOWED_MODULES[command])


def test_serve_imports_few_modules_before_the_server():
    program = (
        "import sys\n"
        "from dragoman.commands import serve\n"
        "from dragoman_cli.main import main\n"
        "serve.run_server = lambda *_: 0\n"
        "sys.argv[1:] = ['serve', 'sim', '--port', '0', '--strict']\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code == 0"
    )
    check_modules(list_modules(program), ALLOWED_MODULES["serve"])


def check_modules(modules: set[str], allowed: set[str]) -> None:
    own = {name for name in modules if name.startswith("dragoman") and "." in name}
    own = {name for name in own if not name.endswith("._version")}
    own = {name for name in own if not name.startswith("dragoman_cli")}
    assert {name for name in own if not is_allowed(name, allowed)} == set()
    packages = {name for name in modules if "." not in name} - set(sys.stdlib_module_names)
    # Distributions of Python may have these, as Debian has.
    packages -= {"sitecustomize", "usercustomize"}
    installed = {name for name in packages if not name.startswith(("_", "dragoman"))}
    assert installed <= ALLOWED_PACKAGES


def is_allowed(module: str, allowed: set[str]) -> bool:
    """Whether a module is allowed, in a package that is, or the package of one that is."""
    return any(
        f"{module}.".startswith(f"{name}.") or name.startswith(f"{module}.") for name in allowed
    )


def aim() -> None:
    """Aim."""
    click.echo("aimed")


AIM = build_command("aim", aim)
