"""Wrong paths of the store, the keys, the tools, the limits and the request log are
reported before a model is loaded.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn

import pytest

from dragoman import create_app
from dragoman.launch.server_assembly import assemble_server, check_state
from dragoman.serving.clock import Clock
from dragoman.settings import Settings, SettingsError, load_settings
from dragoman.tenants import KeyHash, Tenant, edit_key_file, hash_key

WRONG = {
    "store": "sqlite:{file}/store.db",
    "keys_file": "{file}",
    "tools_file": "{file}",
    "limits_store": "sqlite:{file}/limits.db",
    "request_log": "{file}/requests.jsonl",
}


def load_model(_: Settings, __: Clock) -> NoReturn:
    raise AssertionError("the model is loaded first")


@pytest.fixture
def options(tmp_path: Path) -> dict[str, str]:
    keys = tmp_path / "keys.yaml"
    edit_key_file(keys, lambda found: found.update(a=Tenant(secrets=(KeyHash(hash_key("a")),))))
    (tmp_path / "file").write_text("not: keys")
    return {"model": "tiny", "store": "none", "keys_file": str(keys)}


def break_option(options: dict[str, str], name: str, folder: Path) -> dict[str, str]:
    return {**options, name: WRONG[name].format(file=folder / "file")}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_path_is_rejected_before_model_loads(
    name: str, options: dict[str, str], tmp_path: Path
) -> None:
    settings = load_settings(break_option(options, name, tmp_path), {})
    with pytest.raises(SettingsError, match=name.replace("_", "-")):
        assemble_server(settings, b"x" * 32, build=load_model)


@pytest.mark.parametrize("name", ["store", "keys_file", "limits_store"])
def test_create_app_rejects_wrong_state_before_model_loads(
    name: str, options: dict[str, str], tmp_path: Path
) -> None:
    settings: dict[str, Any] = break_option(options, name, tmp_path)
    del settings["model"]
    if name != "keys_file":
        # What is not opened before the lifespan is checked for its form only.
        settings[name] = "unknown:x"
    with pytest.raises(SettingsError, match=name.replace("_", "-")):
        create_app(str(tmp_path / "missing-model"), **settings)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot fork")
@pytest.mark.parametrize("name", WRONG)
def test_wrong_path_ends_server_before_engine_process(
    name: str, options: dict[str, str], tmp_path: Path
) -> None:
    flags = [
        f"--{option.replace('_', '-')}={value}"
        for option, value in break_option(options, name, tmp_path).items()
        if option != "model"
    ]
    command = [sys.executable, "-m", "dragoman", "serve", "tiny", "--api-server-count", "2"]
    ended = subprocess.run(
        [*command, "--port", "0", *flags],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
    )
    assert ended.returncode == 2
    assert name.replace("_", "-") in ended.stderr
    assert "is process" not in ended.stderr


def test_check_state_leaves_no_threads_for_fork(options: dict[str, str], tmp_path: Path) -> None:
    before = threading.active_count()
    log = tmp_path / "requests.jsonl"
    options |= {"store": f"sqlite:{tmp_path}/store.db", "request_log": str(log)}
    check_state(load_settings(options, {}), {})
    assert threading.active_count() == before
    assert log.stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of POSIX")
def test_check_state_does_not_open_pipe(options: dict[str, str], tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    # Opening it would wait for a reader.
    check_state(load_settings({**options, "request_log": str(pipe)}, {}), {})
