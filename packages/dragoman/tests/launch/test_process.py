"""A real server process: its log and its signal handling."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from dragoman.tenants import KeyHash, Tenant, edit_key_file, hash_key

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")


@contextmanager
def server(
    folder: Path,
    *arguments: str,
    model: str | None = "scripted",
    stdin: int = subprocess.DEVNULL,
) -> Generator[tuple[subprocess.Popen[str], str]]:
    """Yield a process that has printed its greeting, and its URL."""
    models = [] if model is None else [model]
    command = [sys.executable, "-m", "dragoman", "serve", *models, "--port", "0"]
    command += ["--store", "none", *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=stdin, stdout=pipe, stderr=pipe, text=True, cwd=folder
    ) as process:
        assert process.stdout is not None
        found = re.search(r"https?://[0-9.:]+", process.stdout.readline())
        assert found is not None
        try:
            yield process, found[0]
        finally:
            process.kill()


def stop(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Shut down gracefully; return the exit code and the log."""
    process.terminate()
    logged = process.communicate(timeout=60)[1]
    return process.returncode, logged


def status(url: str) -> int:
    with urlopen(url, timeout=60) as response:
        return response.status


LINE = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d{4} INFO dragoman\.access: 127\.0\.0\.1:\d+ req_\w+ GET "
    r"/health 200 \d+\.\dms"
)


def test_access_log_contains_time_and_client_address(tmp_path: Path):
    with server(tmp_path) as (process, url):
        assert status(f"{url}/health") == 200
        code, logged = stop(process)
    assert code == 0
    assert LINE.fullmatch(logged.strip()), logged


def test_json_log_contains_key_model_tokens_and_times(tmp_path: Path):
    key = "k" * 40
    edit_key_file(
        tmp_path / "keys.yaml",
        lambda tenants: tenants.update({"team-a": Tenant(secrets=(KeyHash(hash_key(key)),))}),
    )
    with server(tmp_path, "--log-format", "json", "--keys-file", "keys.yaml") as (process, url):
        body = b'{"messages": [{"role": "user", "content": "A secret."}]}'
        headers = {
            "authorization": f"Bearer {key}",
            "content-type": "application/json",
            "x-request-id": "mine",
        }
        with urlopen(Request(f"{url}/v1/chat/completions", body, headers), timeout=60) as response:
            assert response.status == 200
        assert status(f"{url}/health") == 200
        _, logged = stop(process)
    chat, health = [json.loads(line) for line in logged.splitlines()][:2]
    assert (chat["level"], chat["logger"], chat["request_id"], chat["path"]) == (
        "info", "dragoman.access", "mine", "/v1/chat/completions",
    )  # fmt: skip
    assert (chat["key"], chat["model"], chat["status"], chat["error"]) == (
        "team-a",
        "scripted",
        200,
        None,
    )
    assert chat["prompt_tokens"] > 0
    assert chat["output_tokens"] > 0
    assert 0 <= chat["ttft_s"] <= chat["duration_s"]
    assert chat["client"].startswith("127.0.0.1:")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", chat["time"])
    assert (health["path"], health["key"]) == ("/health", None)
    assert "model" not in health
    assert key not in logged
    assert "secret" not in logged


def test_sighup_without_terminal_does_not_stop_server(tmp_path: Path):
    with server(tmp_path, "--no-access-log") as (process, url):
        assert status(f"{url}/health") == 200
        process.send_signal(signal.SIGHUP)
        assert status(f"{url}/health") == 200
        code, logged = stop(process)
    assert code == 0
    assert "ERROR" not in logged


def test_sighup_from_terminal_stops_server_gracefully(tmp_path: Path):
    controller, terminal = os.openpty()
    try:
        with server(tmp_path, stdin=terminal) as (process, url):
            assert status(f"{url}/health") == 200
            process.send_signal(signal.SIGHUP)
            assert process.wait(timeout=60) == 0
    finally:
        os.close(controller)
        os.close(terminal)


@contextmanager
def ignoring_hangup() -> Generator[None]:
    """As `nohup` starts a program."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_sigusr1_under_nohup_reloads_and_sighup_is_ignored(tmp_path: Path, workers: str):
    settings = tmp_path / "dragoman.yaml"
    settings.write_text("models: {first: {model: scripted}}")
    options = ("--config", "dragoman.yaml", "--no-access-log", "--workers", workers)
    with ignoring_hangup(), server(tmp_path, *options, model=None) as (process, url):
        process.send_signal(signal.SIGHUP)
        assert status(f"{url}/health") == 200
        settings.write_text("models: {second: {model: scripted}}")
        process.send_signal(signal.SIGUSR1)
        assert process.stderr is not None
        logged = ""
        for _ in range(int(workers)):
            while "models reloaded" not in (line := process.stderr.readline()):
                logged += line
        with urlopen(f"{url}/v1/models", timeout=60) as response:
            assert [item["id"] for item in json.load(response)["data"]] == ["second"]
        code, _ = stop(process)
    assert code == 0
    hint = f"SIGHUP is ignored, as under nohup: `kill -USR1 {process.pid}` reloads"
    assert logged.count(hint) == 1
    assert "nothing to reload" not in logged


def test_sigterm_of_busy_server_logs_wait_and_how_to_stop(tmp_path: Path):
    with server(tmp_path, "--no-access-log", "--shutdown-timeout", "60") as (process, url):
        host, port = url.removeprefix("http://").split(":")
        body = (
            b'{"messages": [{"role": "user", "content": "[[say hi]][[delay 60]][[say '
            b'there]]"}], "stream": true}'
        )
        fields = f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        head = f"POST /v1/chat/completions HTTP/1.1\r\n{fields}\r\n\r\n"
        with socket.create_connection((host, int(port)), timeout=60) as client:
            client.sendall(head.encode() + body)
            assert client.recv(4096)
            process.terminate()
            assert process.stderr is not None
            line = process.stderr.readline()
            process.terminate()
            process.communicate(timeout=60)
    assert "waiting up to 60 s for running requests; press Ctrl-C again to stop now" in line
