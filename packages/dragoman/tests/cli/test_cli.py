"""The command line: arguments, error messages and imports."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
from click import Context, Option
from click.testing import CliRunner, Result
from tests.cli_core.cli_runner import call

from dragoman import __version__
from dragoman.commands.serve_command import build_serve_command
from dragoman.settings import ENV_PREFIX, FIELDS, SettingField, Settings, SettingsError
from dragoman_cli import CommandLine


class Recorder:
    """Records the calls of `serve` without serving."""

    def __init__(self, code: int = 0, error: SettingsError | None = None) -> None:
        self.code = code
        self.error = error
        self.settings: list[Settings] = []

    def __call__(
        self, settings: Settings, tell: Callable[[str], None], read: Callable[[], Settings]
    ) -> int:
        self.settings.append(settings)
        self.read = read
        if self.error is not None:
            raise self.error
        tell("Serving.")
        return self.code


def serve(
    *arguments: str, run: Recorder | None = None, environment: dict[str, str] | None = None
) -> Result:
    command = build_serve_command(run or Recorder(), environment or {})
    return CliRunner().invoke(
        command,
        arguments,
        prog_name="dragoman serve",
        env={"COLUMNS": "200", "NO_COLOR": "1"},
    )


def settings(*arguments: str, **environment: str) -> Settings:
    run = Recorder()
    result = serve(*arguments, run=run, environment=environment)
    assert (result.exit_code, result.stdout) == (0, "Serving.\n"), result.stderr
    return run.settings[0]


def test_serve_without_options_uses_defaults():
    assert settings() == Settings()


def test_settings_reload_reads_changed_environment():
    run = Recorder()
    environment = {"DRAGOMAN_MAX_NUM_SEQS": "3"}
    serve("scripted", "--port", "0", run=run, environment=environment)
    assert run.read() == run.settings[0]
    environment["DRAGOMAN_MAX_NUM_SEQS"] = "4"
    assert run.read().max_num_seqs == 4


def test_serve_options_map_to_settings():
    loaded = settings(
        "scripted:x.yaml", "--port", "0", "--api-key", "a,b", "--api-key", "c",
        "--max-model-len=8k",
        "--strict", "--no-access-log", "--override-generation-config", '{"temperature": 0}',
    )  # fmt: skip
    assert loaded.model == "scripted:x.yaml"
    assert (loaded.port, loaded.max_model_len, loaded.strict, loaded.access_log) == (
        0,
        8000,
        True,
        False,
    )
    assert loaded.api_key == ("a,b", "c")
    assert loaded.override_generation_config.temperature == 0


def test_options_with_underscores_equal_dashes():
    assert settings("--max_model_len", "4096", "--served_model_name", "a_b").max_model_len == 4096


@pytest.mark.parametrize(
    "field", [field for field in FIELDS if field.kind is bool], ids=lambda field: field.name
)
def test_boolean_option_has_on_and_off_flags(field: SettingField):
    assert settings(field.flag, "--no-auth").get(field.name) is True
    assert settings(field.off_flag).get(field.name) is False
    assert settings(**{field.environment_variable: "true"}).get(field.name) is not field.default


def test_negated_flag_help_refers_to_positive_flag():
    lines = serve("--help").output.splitlines()
    assert next(line.split()[1:] for line in lines if line.split()[:1] == ["--no-ui"]) == [
        "Opposite",
        "of",
        "--ui.",
    ]


def test_command_list_shows_full_summaries():
    result = CliRunner().invoke(CommandLine(), ["--help"], env={"COLUMNS": "80", "NO_COLOR": "1"})
    _, _, commands = result.output.partition("Commands:")
    assert "keys" in commands
    assert "..." not in commands


@pytest.mark.parametrize(
    ("command", "usage"),
    [
        ("run", "MODEL [PROMPT]..."),
        ("chat", "[MODEL|URL]"),
        ("launch", "[AGENT] [MODEL]"),
        ("bench", "URL [TRACE]"),
        ("simulate", "TRACE"),
        ("calibrate", "LOG..."),
        ("deploy", "[MODEL]"),
        ("keys add", "NAME"),
    ],
)
def test_usage_shows_optional_arguments_in_brackets(command: str, usage: str):
    assert (
        f"Usage: dragoman {command} [OPTIONS] {usage}\n" in call(*command.split(), "--help").output
    )


def test_option_overrides_environment_variable():
    assert settings("--no-strict", DRAGOMAN_STRICT="1", DRAGOMAN_PORT="1").strict is False


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--port", "x"], "Error: --port: must be a whole number, not 'x'\n"),
        (["--prot", "1"], "--port"),
        (["--strict", "--no-strict"], "--strict and --no-strict"),
        (["tiny", "other"], "unexpected extra argument"),
        (["--port"], "--port"),
        (["--host", "0.0.0.0"], "Set one with --api-key"),
        (["--config", "absent.toml"], "--config: absent.toml does not exist"),
    ],
)
def test_invalid_setting_prints_one_line_error(arguments: list[str], why: str):
    run = Recorder()
    result = serve(*arguments, run=run)
    assert (result.exit_code, run.settings, result.stdout) == (2, [], "")
    assert why in result.stderr
    assert "Traceback" not in result.stderr


def test_startup_error_prints_one_line_error():
    result = serve(run=Recorder(error=SettingsError("--tool-call-parser: no such parser")))
    assert (result.exit_code, result.stderr) == (2, "Error: --tool-call-parser: no such parser\n")


def test_serve_returns_server_exit_code():
    assert serve(run=Recorder(code=3)).exit_code == 3


def test_serve_help_lists_all_settings_and_hides_key():
    result = serve("--help", environment={"DRAGOMAN_API_KEY": "sk-secret"})
    assert result.exit_code == 0
    assert "sk-secret" not in result.output
    for field in FIELDS[1:]:
        assert field.flag in result.output or field.off_flag in result.output
        assert "…" not in result.output
    for group in {field.option.group for field in FIELDS[1:]}:
        assert f"\n{group}:\n" in result.output


@pytest.mark.parametrize(
    "command", ["serve", "run", "chat", "launch", "simulate", "calibrate", "record", "replay"]
)
def test_help_fits_80_columns_and_lists_all_options(command: str):
    line = CommandLine()
    output = CliRunner().invoke(line, [command, "--help"], env={"COLUMNS": "80"}).output
    assert max(map(len, output.splitlines())) <= 80
    chosen = line.get_command(Context(line), command)
    assert chosen is not None
    visible = [one for one in chosen.params if isinstance(one, Option) and not one.hidden]
    flags = {
        flag
        for one in visible
        for flag in (*one.opts, *one.secondary_opts)
        if flag.startswith("--")
    }
    assert flags <= set(output.replace(",", " ").split())


@pytest.mark.parametrize("value", ["1", "anything"])
def test_no_color_variable_disables_colored_errors(value: str):
    def invoke(environment: dict[str, str]) -> str:
        arguments = ["serve", "--port", "x"]
        return CliRunner().invoke(CommandLine(), arguments, env=environment, color=True).stderr

    assert invoke({"NO_COLOR": value}) == "Error: --port: must be a whole number, not 'x'\n"
    assert "\x1b[31m" in invoke({"NO_COLOR": ""})


def test_misspelled_command_prints_suggestion():
    result = call("srve")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Did you mean 'serve'?" in result.stderr


@pytest.mark.parametrize("argument", ["version", "--version"])
def test_version_option_prints_version(argument: str):
    assert call(argument).stdout == f"{__version__}\n"


def test_no_command_prints_command_list():
    assert "serve" in call().output


HEAVY = [
    "numpy",
    "starlette",
    "uvicorn",
    "llguidance",
    "tokenizers",
    "jinja2",
    "anyio",
    "yaml",
    "jsonschema_rs",
]


def test_help_and_version_import_no_heavy_modules():
    """Checked instead of the time, which varies with the machine's load."""
    code = (
        "import sys\n"
        "from dragoman_cli.main import main\n"
        "try:\n    main()\n"
        f"finally:\n    print('loaded:', [name for name in {HEAVY} if name in sys.modules], "
        f"file=sys.stderr)"
    )
    for arguments in (["--help"], ["version"], ["serve", "--help"], ["launch", "--help"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
        )
        assert done.stderr == "loaded: []\n"


OTHERS = [
    "httpx2",
    "torch",
    "transformers",
    "mlx",
    "asyncpg",
    "websockets",
    "matplotlib",
    "zmq",
    "llguidance",
    "importlib.metadata",
    "importlib.resources",
    "jsonschema_rs",
    "tomllib",
    "urllib.request",
    "prometheus_client",
    "python_multipart",
    "starlette.formparsers",
    "starlette.routing",
    "dragoman_http",
    "dragoman.hub.hub_client",
    "dragoman.recording",
    "dragoman.serving.media_fetcher",
    "dragoman.tools.mcp_servers",
    "dragoman.ray",
    "dragoman.testing",
    *(f"dragoman.commands.{name}" for name in ("chat", "keys", "launch", "record", "run", "store")),
    "dragoman_check",
    "dragoman_sim.lab",
]
OTHER_ENGINES = [
    f"dragoman.engines.{name}"
    for name in ("upstream", "transformers", "mlx", "encoder_engine", "remote")
]


@pytest.mark.parametrize(
    ("model", "further"),
    [
        ("tiny", ["dragoman_sim.engine.engine", "dragoman.engines.scripted", "fractions", "yaml"]),
        ("sim", ["dragoman.engines.scripted", "dragoman.engines.tiny"]),
        (
            "scripted",
            [
                "dragoman_sim.engine.engine",
                "dragoman.engines.tiny",
                "fractions",
                "jinja2",
                "numpy",
                "yaml",
            ],
        ),
    ],
)
def test_serve_answers_with_its_engine_alone_and_exits_cleanly(
    tmp_path: Path, model: str, further: list[str]
):
    names = [*OTHERS, *OTHER_ENGINES, *further]
    code = (
        "import sys\n"
        "from dragoman_cli.main import main\n"
        "try:\n    main()\n"
        f"finally:\n    print([name for name in {names} if name in sys.modules], "
        f"file=sys.stderr)"
    )
    options = ["--port", "0", "--store", "none", "--log-level", "error", "--no-access-log"]
    command = [sys.executable, "-c", code, "serve", model, *options]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=tmp_path) as server:
        assert server.stdout is not None
        greeting = server.stdout.readline()
        assert greeting.startswith("Serving ")
        address = re.search(r"http://\S+:\d+", greeting)
        assert address is not None
        question = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
        answer = httpx2.post(f"{address[0]}/v1/chat/completions", json=question, timeout=60)
        assert answer.status_code == 200
        server.terminate()
        try:
            _, output = server.communicate(timeout=60)
        finally:
            server.kill()
    assert (server.returncode, output) == (0, "[]\n")


def test_invalid_kv_transfer_config_prints_one_line_error(tmp_path: Path):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        transfer = {
            "kv_connector": "NixlConnector",
            "kv_role": "kv_both",
            "kv_port": taken.getsockname()[1],
        }
        extra = {"kv_connector_extra_config": {"bytes_per_token": 1}}
        command = [
            sys.executable,
            "-m",
            "dragoman",
            "serve",
            "sim",
            "--port",
            "0",
            "--store",
            "none",
        ]
        arguments = [*command, "--kv-transfer-config", json.dumps(transfer | extra)]
        done = subprocess.run(
            arguments, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=60
        )
    assert done.returncode == 3
    assert "--kv-transfer-config: could not bind" in done.stderr
    assert "Traceback" not in done.stderr


def test_python_m_dragoman_runs_cli(tmp_path: Path):
    command = [sys.executable, "-m", "dragoman", "serve", "--port", "x"]
    outside = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=tmp_path, env=outside
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "Error: --port" in done.stderr
