"""The command line: it finds the commands of the installed packages, and imports only
the chosen one.
"""

from __future__ import annotations

import json
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
SLOW_MODULES = {
    "asyncio",
    "email",
    "http",
    "importlib.metadata",
    "multiprocessing",
    "sqlite3",
    "ssl",
    "tomllib",
    "urllib.request",
}
"""Modules of the standard library that no command may import before its work."""
SETTINGS = {
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
}
CLIENT = {"dragoman.core.errors", "dragoman.settings.option"}
SIMULATOR = {"dragoman_sim.engine.scheduler_config", "dragoman_sim.vllm_flags"}
WORKLOAD = {"dragoman.core.errors", "dragoman_check.commands"}
ALLOWED_MODULES = {
    "serve": SETTINGS,
    "deploy": SETTINGS,
    "pull": SETTINGS,
    "models": SETTINGS,
    "rm": SETTINGS,
    "run": CLIENT,
    "chat": CLIENT,
    "launch": CLIENT,
    "record": CLIENT,
    "replay": CLIENT,
    "keys": CLIENT | {"dragoman.tenants.counters", "dragoman.tenants.key_file"},
    "store": CLIENT,
    "check": set[str](),
    "bench": set[str](),
    "simulate": SIMULATOR | WORKLOAD,
    "calibrate": SIMULATOR | WORKLOAD,
    "profiles": set[str](),
    "profile": SIMULATOR,
    "plan": SIMULATOR | WORKLOAD,
}
"""Modules of our packages that a command may import, besides versions and the commands
of its own package.
"""

HELP_OF_EACH = """
import json, os, sys
from dragoman_cli.main import PACKAGES, main
common = set(sys.modules)
modules = {}
for command in PACKAGES:
    reader, writer = os.pipe()
    process = os.fork()
    if not process:
        sys.stdout = open(os.devnull, "w")
        sys.argv[1:] = [command, "--help"]
        try:
            main()
        except SystemExit:
            with open(writer, "w") as pipe:
                json.dump(sorted(set(sys.modules) - common), pipe)
        os._exit(0)
    os.close(writer)
    with open(reader) as pipe:
        modules[command] = json.load(pipe)
    os.waitpid(process, 0)
print(json.dumps(modules))
"""


@pytest.fixture(scope="module")
def imported() -> dict[str, list[str]]:
    """The modules that the help of each command imports, by command."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", HELP_OF_EACH], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("command", PACKAGES)
def test_command_imports_few_modules_before_its_work(imported: dict[str, list[str]], command: str):
    package = PACKAGES[command].replace("-", "_")
    commands = {f"{package}.commands"}
    check_modules(set(imported[command]), ALLOWED_MODULES[command] | commands)


def test_command_does_not_import_other_commands(imported: dict[str, list[str]]):
    def list_commands(command: str) -> list[str]:
        return [name for name in imported[command] if ".commands." in name]

    assert list_commands("serve") == [
        "dragoman.commands.serve",
        "dragoman.commands.serve_command",
    ]
    assert list_commands("check") == ["dragoman_check.commands.check"]
    assert list_commands("profiles") == ["dragoman_sim.commands.list_profiles"]


def list_modules(program: str) -> set[str]:
    """Return the names of the modules that a new process has imported."""
    script = f"{program}\nimport sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


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
    check_modules(list_modules(program), {"dragoman.commands", *SETTINGS})


def check_modules(modules: set[str], allowed: set[str]) -> None:
    own = {name for name in modules if name.startswith("dragoman") and "." in name}
    own = {name for name in own if not name.endswith("._version")}
    own = {name for name in own if not name.startswith("dragoman_cli")}
    assert {name for name in own if not is_allowed(name, allowed)} == set()
    assert modules & SLOW_MODULES == set()
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
