"""`dragoman launch` in a separate process, with a program instead of an agent that
records how it was started.
"""

from __future__ import annotations

import json
import shlex
import signal
import socket
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from dragoman import create_app
from dragoman.commands.agent_setups import AGENTS, MIN_CONTEXT, ServerTarget, find_advice
from tests.loopback import find_free_port, serve_app

from .processes import build_environment, read_until, run_command, start_command

RECORDER = """\
#!{python}
import json, os, signal, sys, urllib.request
names = ("ANTHROPIC_", "CLAUDE_", "OPENCODE_", "DRAGOMAN_", "NO_PROXY")
record = {{"arguments": sys.argv[1:], "variables": {{n: v for n, v in os.environ.items() if n.startswith(names)}}}}
url = record["variables"].get("ANTHROPIC_BASE_URL") or os.environ.get("URL")
if url:
    record["models"] = json.load(urllib.request.urlopen(url + "/v1/models"))["data"]
print(json.dumps(record), flush=True)
if "wait" in sys.argv:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(5))
    signal.signal(signal.SIGINT, lambda *_: os._exit(6))
    print("waiting", flush=True)
    sys.stdin.read()
if "die" in sys.argv:
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(7)
"""  # noqa: E501


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Return a PATH that contains only the recorder, under every agent's name."""
    for agent in AGENTS.values():
        program = tmp_path / agent.program
        program.write_text(RECORDER.format(python=sys.executable))
        program.chmod(0o755)
    return str(tmp_path)


def read_record(done: subprocess.CompletedProcess[str]) -> Any:
    return json.loads(done.stdout.splitlines()[0])


def is_refused(url: str) -> bool:
    parts = urlsplit(url)
    with socket.socket() as client:
        return client.connect_ex((parts.hostname or "", parts.port or 80)) != 0


def test_launch_claude_starts_server_and_stops_it_at_exit(path: str):
    done = run_command(
        "launch",
        "claude",
        "scripted",
        "--",
        "-p",
        "--",
        "hi there",
        PATH=path,
        ANTHROPIC_API_KEY="secret",
    )
    assert done.returncode == 7, done.stderr
    record = read_record(done)
    variables = record["variables"]
    url = record["variables"]["ANTHROPIC_BASE_URL"]
    assert record["arguments"] == ["-p", "--", "hi there"]
    assert [model["id"] for model in record["models"]] == ["scripted"]
    assert {name for name in variables if variables[name] == "scripted"} == {
        "ANTHROPIC_MODEL", "ANTHROPIC_DEFAULT_OPUS_MODEL", "ANTHROPIC_DEFAULT_SONNET_MODEL",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL", "ANTHROPIC_SMALL_FAST_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL",
    }  # fmt: skip
    assert "ANTHROPIC_API_KEY" not in variables
    assert variables["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] == "200000"
    assert variables["NO_PROXY"] == "127.0.0.1,localhost,::1"
    assert f"Serving scripted on {url} until the agent ends.\n" in done.stderr
    assert "Warning" not in done.stderr
    assert is_refused(url)


def test_launch_with_url_uses_running_server(path: str):
    with serve_app(
        create_app("tiny", store="none", max_model_len=4096, served_model_name=("m", "gpt-*"))
    ) as url:
        done = run_command("launch", "claude", "--url", url, "--", "die", PATH=path)
        assert (done.returncode, read_record(done)["variables"]["ANTHROPIC_MODEL"]) == (
            128 + 9,
            "m",
        )
        assert "The context of m is 4096 tokens" in done.stderr
        done = run_command("launch", "claude", "gpt-5", "--url", f"{url}/v1", PATH=path)
        assert (done.returncode, read_record(done)["variables"]["ANTHROPIC_MODEL"]) == (7, "gpt-5")
        done = run_command("launch", "claude", "other", "--url", url, PATH=path)
        assert (done.returncode, done.stdout) == (2, "")
        assert "has no model 'other'; it has m" in done.stderr
        assert not is_refused(url)


def test_launch_with_unused_local_url_starts_server(path: str):
    url = f"http://127.0.0.1:{find_free_port()}"
    done = run_command("launch", "claude", "scripted", "--url", url, PATH=path)
    assert (done.returncode, read_record(done)["variables"]["ANTHROPIC_BASE_URL"]) == (7, url)


def test_launch_passes_api_key_to_server_and_agent(path: str):
    done = run_command("launch", "codex", "scripted", PATH=path, DRAGOMAN_API_KEY="k1,k2")
    assert done.returncode == 7, done.stderr
    assert read_record(done)["variables"]["DRAGOMAN_CLIENT_KEY"] == "k1"
    assert 'env_key = "DRAGOMAN_CLIENT_KEY"' in " ".join(read_record(done)["arguments"])
    assert "k1" not in " ".join(read_record(done)["arguments"])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 5), (signal.SIGINT, 6)])
def test_launch_forwards_signals_to_agent(path: str, number: signal.Signals, code: int):
    with start_command("launch", "claude", "scripted", "--", "wait", PATH=path) as process:
        assert process.stdout is not None
        url = json.loads(read_until(process.stdout, "\n"))["variables"]["ANTHROPIC_BASE_URL"]
        read_until(process.stdout, "waiting")
        process.send_signal(number)
        assert process.wait(60) == code
        assert is_refused(url)


def test_launch_killed_launcher_stops_server(path: str):
    with start_command("launch", "claude", "scripted", "--", "wait", PATH=path) as process:
        assert process.stdout is not None
        record = json.loads(read_until(process.stdout, "\n"))
        url = urlsplit(str(record["variables"]["ANTHROPIC_BASE_URL"]))
        read_until(process.stdout, "waiting")
        with socket.create_connection((url.hostname, url.port), timeout=60) as idle:
            process.kill()
            # The server closes the connection when it ends.
            assert idle.recv(1) == b""
        process.communicate(timeout=60)


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (["codex", "scripted"], 127, "Codex is not installed: npm install -g @openai/codex"),
        (["cursor"], 2, "'cursor' is not one of claude, codex, opencode, gemini"),
        ([], 2, "is not one of claude, codex, opencode, gemini"),
    ],
)
def test_launch_invalid_arguments_print_one_line_error(
    arguments: list[str], code: int, why: str, tmp_path: Path
):
    done = run_command("launch", *arguments, PATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (code, "")
    assert why in done.stderr
    assert done.stderr.count("\n") == 1


def test_launch_server_start_failure_is_reported(path: str):
    done = run_command("launch", "claude", "tinny", PATH=path)
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr
        == "Error: cannot serve tinny: unknown engine or model `tinny`; did you mean `tiny`?\n"
    )
    done = run_command(
        "launch",
        "claude",
        "--url",
        "http://192.0.2.1:1",
        PATH=path,
        HTTP_PROXY="http://127.0.0.1:1",
    )
    assert done.returncode == 2
    assert "a server can be started only on this machine" in done.stderr


def test_launch_print_outputs_script_and_starts_no_process(path: str, tmp_path: Path):
    done = run_command(
        "launch",
        "claude",
        "a/b c",
        "--print",
        "--url",
        "http://127.0.0.1:9",
        "--",
        "-p",
        "x y",
        PATH=path,
    )
    assert (done.returncode, done.stderr) == (0, "")
    script = done.stdout.replace("claude ", f"{shlex.quote(str(tmp_path / 'claude'))} ").replace(
        "export ANTHROPIC_BASE_URL", "export X"
    )
    shell = subprocess.run(
        ["/bin/sh", "-c", script],
        capture_output=True,
        text=True,
        env=build_environment(),
        check=False,
    )
    record = read_record(shell)
    assert record["arguments"] == ["-p", "x y"]
    assert record["variables"]["ANTHROPIC_MODEL"] == "a/b c"


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("hf:org/name", "org/name"),
        ("tiny:./some/Model", "Model"),
        ("gguf:org/name:q8_0@v1", "org/name:q8_0"),
    ],
)
def test_launch_print_uses_served_model_name(model: str, name: str):
    done = run_command("launch", "claude", model, "--print", "--url", "http://127.0.0.1:9")
    assert f"export ANTHROPIC_MODEL={name}\n" in done.stdout


def test_launch_print_with_upstream_model_is_rejected():
    done = run_command(
        "launch", "claude", "http://127.0.0.1:9", "--print", "--url", "http://127.0.0.1:9"
    )
    assert done.returncode == 2
    assert (
        "the model names of http://127.0.0.1:9 are unknown; pass the address as --url"
        in done.stderr
    )


def test_launch_env_prints_variables():
    with serve_app(create_app("scripted", store="none")) as url:
        done = run_command("launch", "--env", "--url", url)
    assert done.returncode == 0
    assert f"export OPENAI_BASE_URL={url}/v1\n" in done.stdout
    assert "export OPENAI_MODEL=scripted\n" in done.stdout


@pytest.fixture
def target() -> ServerTarget:
    return ServerTarget("http://127.0.0.1:8000", 'a "b"', 100_000, "key")


@pytest.mark.parametrize("agent", AGENTS)
def test_agent_setup_names_server_model_and_key(agent: str, target: ServerTarget):
    setup = AGENTS[agent].build_setup(replace(target, model="org/name", api_key="k-9"))
    files = () if setup.home is None else setup.home.generated.values()
    text = "\n".join([*setup.arguments, *map(str, setup.variables.values()), *files])
    assert target.url in text
    assert "org/name" in text
    assert "k-9" in text
    # `ps` would show it.
    assert "k-9" not in "".join(setup.arguments)


def test_launch_renews_file_with_server_and_keeps_it_private(tmp_path: Path):
    for port in (8, 9):
        url = f"http://127.0.0.1:{port}"
        done = run_command(
            "launch", "cline", "m", "--print", "--url", url, XDG_STATE_HOME=str(tmp_path)
        )
        (file,) = tmp_path.rglob("providers.json")
        assert f"export CLINE_DATA_DIR={shlex.quote(str(file.parents[1]))}\n" in done.stdout
        settings = json.loads(file.read_text())["providers"]["openai-compatible"]["settings"]
        assert settings["baseUrl"] == f"{url}/v1"
        assert file.stat().st_mode & 0o077 == 0


def test_codex_setup_uses_toml_settings(target: ServerTarget):
    setup = AGENTS["codex"].build_setup(target)
    assert setup.arguments[::2] == ("-c",) * (len(setup.arguments) // 2)
    config = tomllib.loads("\n".join(setup.arguments[1::2]))
    provider = config["model_providers"]["dragoman"]
    assert (config["model"], config["model_provider"]) == ('a "b"', "dragoman")
    assert config["model_context_window"] == 100_000
    assert (provider["base_url"], provider["wire_api"]) == ("http://127.0.0.1:8000/v1", "responses")


def test_opencode_setup_uses_json_configuration(target: ServerTarget):
    variables = AGENTS["opencode"].build_setup(target).variables
    config = json.loads(variables["OPENCODE_CONFIG_CONTENT"] or "")
    assert config["model"] == 'dragoman/a "b"'
    provider = config["provider"]["dragoman"]
    assert provider["options"] == {"baseURL": "http://127.0.0.1:8000/v1", "apiKey": "key"}
    assert provider["models"]['a "b"']["limit"]["context"] == 100_000


def test_gemini_setup_uses_api_key_in_own_home(tmp_path: Path):
    arguments = ("launch", "gemini", "m", "--print", "--url", "http://127.0.0.1:9")
    done = run_command(*arguments, XDG_STATE_HOME=str(tmp_path), HOME=str(tmp_path))
    (settings,) = tmp_path.rglob("settings.json")
    assert f"export GEMINI_CLI_HOME={shlex.quote(str(settings.parents[1]))}\n" in done.stdout
    assert "export GOOGLE_GEMINI_BASE_URL=http://127.0.0.1:9\n" in done.stdout
    assert "unset GOOGLE_GENAI_USE_VERTEXAI\n" in done.stdout
    assert done.stdout.endswith("\ngemini\n")
    assert json.loads(settings.read_text())["security"]["auth"] == {
        "selectedType": "gemini-api-key"
    }
    # What the user has changed there stays.
    settings.write_text("{}")
    run_command(*arguments, XDG_STATE_HOME=str(tmp_path), HOME=str(tmp_path))
    assert settings.read_text() == "{}"


@pytest.mark.parametrize(
    ("target", "capabilities", "words"),
    [
        (ServerTarget("u", "m", MIN_CONTEXT), ("tools",), []),
        (ServerTarget("u", "m"), None, []),
        (ServerTarget("u", "m", MIN_CONTEXT - 1), None, ["The context of m"]),
        (ServerTarget("u", "m"), ("generation",), ["--tool-call-parser"]),
        (ServerTarget("u", "tiny"), ("tools",), ["an agent needs a larger model"]),
    ],
)
def test_find_advice_lists_missing_capabilities(
    target: ServerTarget, capabilities: tuple[str, ...] | None, words: list[str]
):
    advice = find_advice(target, capabilities)
    assert len(advice) == len(words)
    assert all(word in sentence for word, sentence in zip(words, advice, strict=True))
