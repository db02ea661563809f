"""The server that a command starts for itself: its progress output until it is ready,
and its failures.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dragoman.commands.local_server import ServerFailed, start_server
from tests.certificates import write_certificate

from .processes import run_command


def test_start_server_runs_and_stops_without_output(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DRAGOMAN_LOG_LEVEL", "debug")
    lines: list[str] = []
    with start_server("scripted", lines.append) as server:
        assert server.url.startswith("http://127.0.0.1:")
        assert server.read_failure() is None
    assert server.read_failure() is not None
    assert lines == []


def test_start_server_prints_warnings_without_timestamp():
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRAGOMAN_GPU_LAYERS", "3")
        with start_server("tiny", lines.append):
            pass
    assert len(lines) == 1
    assert lines[0].startswith("Warning: ")
    assert "--gpu-layers" in lines[0]


@pytest.mark.parametrize("listener", ["tls and workers", "unix socket and api servers"])
def test_start_server_ignores_listener_and_log_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listener: str
):
    certificate, key = write_certificate(tmp_path, "ours")
    keys = {
        "tls and workers": f"ssl-certfile: {certificate}\nssl-keyfile: {key}\nworkers: 2\n",
        "unix socket and api servers": f"uds: {tmp_path / 'socket'}\napi-server-count: 2\n",
    }
    config = tmp_path / "config.yaml"
    config.write_text(f"{keys[listener]}log-format: json\n")
    monkeypatch.setenv("DRAGOMAN_CONFIG", str(config))
    lines: list[str] = []
    with start_server("tiny", lines.append) as server:
        assert server.url.startswith("http://127.0.0.1:")
    assert lines == []


def test_start_server_failure_raises_with_reason():
    lines: list[str] = []
    with pytest.raises(ServerFailed) as failure, start_server("/no/such/model", lines.append):
        pass
    assert failure.value.code == 2
    message = (
        "/no/such/model does not exist; check the path, or serve `org/name` to download a model"
    )
    assert lines == [f"Error: cannot serve /no/such/model: {message}"]


def test_run_reports_server_crash(tmp_path: Path):
    engine = """\
import os
from dragoman import BaseEngine, Started
class Dying(BaseEngine):
    async def generate(self, request):
        yield Started(0)
        print("out of luck", flush=True)
        os._exit(3)
def create(argument, settings):
    return Dying()
"""
    (tmp_path / "dying_engine.py").write_text(engine)
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    done = run_command("run", "python:dying_engine:create", "Hi", PYTHONPATH=path)
    assert done.returncode == 1, done.stderr
    assert "out of luck" in done.stderr
