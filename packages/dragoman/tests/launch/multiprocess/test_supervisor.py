"""Several worker processes on one port: started, replaced, reloaded and stopped by
their supervisor.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPResponse, IncompleteRead
from pathlib import Path

import anyio.to_thread
import pytest
import yaml
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route
from tests.launch.test_systemd import NotifySocket, activated
from tests.serving.harness import load_tiny_tokenizer

import dragoman
from dragoman.engines.scripted import Script, ScriptedEngine
from dragoman.launch.multiprocess.supervisor import (
    MAX_DELAY,
    MAX_FIRST_FAILURES,
    RestartDelays,
)
from dragoman.launch.multiprocess.worker_checks import check_workers
from dragoman.settings import Settings, SettingsError, load_settings
from dragoman.tenants import KeyHash, Tenant, edit_key_file, hash_key
from tests.loopback import MAX_POLLS, pause, serve_app

from .processes import EMPTY, LOST, TIMEOUT, Workers, chat, is_running, serving, started

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot fork")


class Upstream:
    """A server whose streams pause until they are released."""

    def __init__(self) -> None:
        self.is_released = threading.Event()

    @contextmanager
    def address(self) -> Generator[str]:
        app = Starlette(routes=[Route("/v1/chat/completions", self._answer, methods=["POST"])])
        with serve_app(app) as address:
            try:
                yield f"{address}/v1"
            finally:
                self.is_released.set()

    async def _answer(self, _: Request) -> StreamingResponse:
        async def stream():
            yield _chunk({"role": "assistant", "content": "One "})
            await anyio.to_thread.run_sync(self.is_released.wait, abandon_on_cancel=True)
            yield _chunk({"content": "two."}, "stop") + b"data: [DONE]\n\n"

        return StreamingResponse(stream(), media_type="text/event-stream")


def _chunk(delta: dict[str, str], reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    body = {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [choice],
    }
    return b"data: " + json.dumps(body).encode() + b"\n\n"


@contextmanager
def proxying(folder: Path, upstream: Upstream, *arguments: str) -> Generator[Workers]:
    options = (
        "--upstream-kind",
        "compatible",
        "--upstream-model",
        "m",
        "--store",
        "none",
        *arguments,
    )
    with upstream.address() as address, serving(folder, *options, model=address) as running:
        yield running


@contextmanager
def streaming(running: Workers, headers: Mapping[str, str] = EMPTY) -> Generator[HTTPResponse]:
    """Yield a stream whose first text has arrived."""
    connection = running.connect()
    try:
        body = json.dumps(chat("Count.", stream=True, model="m"))
        connection.request(
            "POST", "/v1/chat/completions", body, {"content-type": "application/json", **headers}
        )
        response = connection.getresponse()
        assert response.status == 200
        while b"One " not in response.readline():
            pass
        with response:
            yield response
    finally:
        connection.close()


def test_workers_share_one_port_and_greet_once(tmp_path: Path) -> None:
    with serving(tmp_path, "--store", "none") as running:
        running.ask_all("/v1/models")
        assert running.read_metric("dragoman_workers") == 2
        if sys.platform == "linux":
            # A thread could hold a lock during a fork.
            assert len(os.listdir(f"/proc/{running.process.pid}/task")) == 1
        assert len(set(running.pids.values())) == 2
        assert running.stop() == 0
        assert running.process.stdout is not None
        assert "Serving" not in running.process.stdout.read()
        assert not any(map(is_running, running.pids.values()))


def test_worker_serves_only_after_embedded_model_loads(tmp_path: Path) -> None:
    with serving(tmp_path, "--store", "none", model="tiny", count=3) as running:
        running.ask_all("/v1/models/tiny", 3)
        statuses = {
            running.post("/v1/chat/completions", chat("Hello", max_tokens=2))[0] for _ in range(12)
        }
        assert statuses == {200}
        assert all(running.get("/readyz")[0] == 200 for _ in range(12))
        for number in range(3):
            running.kill(number)
        # A connection waits for the next worker; one that a worker had accepted before
        # it died is lost.
        answered = 0
        while answered < 12:
            try:
                status, body = running.post("/v1/chat/completions", chat("Hello", max_tokens=2))
            except LOST:
                continue
            answered += 1
            assert status == 200, body


def test_worker_metrics_include_all_workers(tmp_path: Path) -> None:
    with serving(tmp_path, "--store", "none") as running:
        for _ in range(30):
            assert running.post("/v1/chat/completions", chat())[0] == 200
        scraped = [running.read_metrics() for _ in range(20)]
        for metrics in scraped:
            totals = {name: 0.0 for name, _ in metrics}
            for (name, _), value in metrics.items():
                totals[name] += value
            assert totals["http_requests_total"] == totals["dragoman_worker_requests_total"] == 30
            assert (
                totals["vllm:request_success_total"]
                == totals["vllm:e2e_request_latency_seconds_count"]
                == 30
            )
            assert totals["http_request_duration_highr_seconds_count"] == 30
            assert totals["dragoman_build_info"] == 1
            assert totals["vllm:num_requests_running"] == 0
        status, body = running.get(
            "/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"}
        )
        assert status == 200
        assert body.endswith(b"# EOF\n")


def test_killed_worker_is_replaced_and_counters_are_kept(tmp_path: Path) -> None:
    with serving(tmp_path, "--store", "none") as running:
        running.ask_all("/v1/models")
        before = running.read_metrics()
        killed = running.kill(1)
        running.wait_until_replaced(1, 2)
        assert running.pids[1] != killed
        after = running.read_metrics()
        for key, value in before.items():
            if key[0].endswith(("_total", "_count", "_bucket")):
                assert after[key] >= value, key
        running.ask_all("/v1/models")
        assert (
            f"worker 1 (process {killed}) has died and is replaced: killed by SIGKILL"
            in running.log
        )
        assert running.stop() == 0


def test_graceful_shutdown_waits_for_streams(tmp_path: Path) -> None:
    upstream = Upstream()
    with proxying(tmp_path, upstream, "--shutdown-timeout", "600") as running, ExitStack() as stack:
        streams = [stack.enter_context(streaming(running)) for _ in range(8)]
        running.process.terminate()
        running.wait_for_log("waiting up to 600 s for running requests")
        upstream.is_released.set()
        for stream in streams:
            rest = stream.read()
            assert b"two." in rest
            assert b"[DONE]" in rest
        assert running.process.wait(TIMEOUT) == 0


def test_second_signal_stops_immediately(tmp_path: Path) -> None:
    with (
        proxying(tmp_path, Upstream(), "--shutdown-timeout", "600") as running,
        streaming(running) as stream,
    ):
        running.process.terminate()
        running.wait_for_log("press Ctrl-C again")
        running.process.terminate()
        assert running.process.wait(TIMEOUT) == 0
        with pytest.raises(IncompleteRead):
            stream.read()
        assert not any(map(is_running, running.pids.values()))


def test_terminal_interrupt_of_all_processes_counts_once(tmp_path: Path) -> None:
    upstream = Upstream()
    with (
        proxying(tmp_path, upstream, "--shutdown-timeout", "600") as running,
        streaming(running) as stream,
    ):
        for pid in (running.process.pid, *running.pids.values()):
            os.kill(pid, signal.SIGINT)
        running.wait_for_log("waiting up to 600 s")
        upstream.is_released.set()
        assert b"[DONE]" in stream.read()
        assert running.process.wait(TIMEOUT) == 0


def test_reload_reaches_running_and_later_workers(tmp_path: Path) -> None:
    file = tmp_path / "dragoman.yaml"

    def write(**models: str) -> None:
        file.write_text(yaml.safe_dump({"store": "none", "models": models}))

    write(a="scripted")
    command = ("--port", "0", "--no-access-log", "--workers", "2", "--config", str(file))
    with (
        started([sys.executable, "-m", "dragoman", "serve", *command], tmp_path) as running,
        ExitStack() as stack,
    ):
        connection = stack.enter_context(closing(running.connect()))
        connection.request("GET", "/v1/models/a")
        assert connection.getresponse().read()
        write(a="scripted", b="scripted")
        running.process.send_signal(signal.SIGHUP)
        running.wait_for_log("models reloaded", 2)
        running.ask_all("/v1/models/b")
        # The connection from before the reload is still open.
        connection.request("GET", "/v1/models/b")
        with connection.getresponse() as response:
            assert response.status == 200
        for number, restarts in ((0, 1), (1, 2)):
            running.kill(number)
            running.wait_until_replaced(restarts, 2)
        running.ask_all("/v1/models/b")
        # Neither an unreadable file nor an engine that needs a process of its own
        # changes anything.
        for number, text in enumerate(("models: [", "models: {a: 'vllm:./m'}"), 1):
            file.write_text(text)
            running.process.send_signal(signal.SIGHUP)
            running.wait_for_log("settings not reloaded", 2 * number)
        assert "settings not reloaded: --workers 2: vLLM has front ends" in running.log
        running.ask_all("/v1/models/b")
        assert running.stop() == 0


def test_encrypted_reasoning_is_readable_by_all_workers(tmp_path: Path) -> None:
    with serving(tmp_path, "--store", "none", "--reasoning-verification", "strict") as running:
        question = {"role": "user", "content": "[[think Hm.]][[say Yes.]]"}
        body = {"input": [question], "include": ["reasoning.encrypted_content"], "store": False}
        status, answer = running.post("/v1/responses", body)
        assert status == 200
        history = [
            question,
            *json.loads(answer)["output"],
            {"role": "user", "content": "[[say Again.]]"},
        ]
        assert "encrypted_content" in history[1]
        before = running.read_shares()
        while not all(new > old for new, old in zip(running.read_shares(), before, strict=True)):
            assert running.post("/v1/responses", {"input": history, "store": False})[0] == 200


def test_key_limits_apply_across_all_workers(tmp_path: Path) -> None:
    tenant = Tenant(secrets=(KeyHash(hash_key("k")),), concurrent_requests=2)
    edit_key_file(tmp_path / "keys.yaml", lambda tenants: tenants.update({"team": tenant}))
    options = ("--keys-file", "keys.yaml", "--limits-store", f"sqlite:{tmp_path / 'limits.db'}")
    headers = {"authorization": "Bearer k"}
    upstream = Upstream()
    with proxying(tmp_path, upstream, *options) as running, ExitStack() as stack:
        streams = [stack.enter_context(streaming(running, headers)) for _ in range(2)]
        before = running.read_shares()
        while not all(new > old for new, old in zip(running.read_shares(), before, strict=True)):
            assert running.post("/v1/chat/completions", chat(model="m"), headers)[0] == 429
        upstream.is_released.set()
        assert all(b"[DONE]" in stream.read() for stream in streams)


def test_workers_stop_when_their_supervisor_is_killed(tmp_path: Path) -> None:
    with serving(tmp_path, "--store", "none") as running:
        running.ask_all("/v1/models")
        running.process.kill()
        running.process.wait(TIMEOUT)
        host, port = running.address.split(":")
        # They may stay zombies if no process reaps orphans, so the port is checked.
        for _ in range(MAX_POLLS):
            with socket.socket() as client:
                if client.connect_ex((host, int(port))):
                    return
            pause()
        raise AssertionError(running.log)


def test_unix_socket_is_shared_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "server.sock"
    command = [
        sys.executable,
        "-m",
        "dragoman",
        "serve",
        "scripted",
        "--workers",
        "2",
        "--uds",
        str(path),
    ]
    with subprocess.Popen(
        [*command, "--store", "none"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        assert f"unix:{path}" in process.stdout.readline()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 200")
        process.terminate()
        assert process.wait(TIMEOUT) == 0
    assert not path.exists()


def test_systemd_is_notified_of_supervisor_states(tmp_path: Path) -> None:
    options = ("--workers", "2", "--no-access-log")
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        NotifySocket(tmp_path) as notified,
    ):
        environment = {"NOTIFY_SOCKET": notified.address, "WATCHDOG_USEC": "2000000"}
        with activated(listener, tmp_path, *options, **environment) as process:
            assert notified.receive() == b"READY=1"
            assert notified.alive.wait(TIMEOUT)
            process.send_signal(signal.SIGHUP)
            assert notified.receive().startswith(b"RELOADING=1\n")
            assert notified.receive() == b"READY=1"
            process.terminate()
            assert notified.receive() == b"STOPPING=1"
            _, errors = process.communicate(timeout=TIMEOUT)
            assert process.returncode == 0
            assert "does not respond" not in errors


def test_workers_show_store_warning_of_supervisor(tmp_path: Path) -> None:
    # A process that died had told clients that five objects are stored.
    (tmp_path / "x.db-runs").mkdir()
    (tmp_path / "x.db-runs/run_dead").write_bytes(b"%020d" % 5)
    with serving(tmp_path, "--store", f"sqlite:{tmp_path}/x.db") as running:
        # The replacement of a worker too.
        running.kill(0)
        running.wait_until_replaced(1, 2)
        for _ in range(10):
            status, answer = running.get("/health")
            assert status == 200
            assert json.loads(answer)["warning"].startswith("the store lacks the last 5 stored")
        assert running.log.count(f"{tmp_path}/x.db: the store lacks the last 5") == 1


def test_hanging_worker_with_watchdog_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(tmp_path / "notify"))
        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "2000000"}
        with serving(tmp_path, "--store", "none", environment=environment) as running:
            stopped = running.pids[1]
            os.kill(stopped, signal.SIGSTOP)
            while f"(process {stopped}) has died and is replaced" not in running.log:
                channel.recv(100)
            running.wait_until_replaced(1, 2)
            assert "worker 1 does not respond and is killed" in running.log


def test_revoked_key_ends_beside_stopped_worker(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    tenants = {name: Tenant(secrets=(KeyHash(hash_key(f"sk-{name}")),)) for name in "ab"}
    edit_key_file(keys, lambda found: found.update(tenants))
    headers = {"authorization": "Bearer sk-a"}
    with serving(tmp_path, "--store", "none", "--keys-file", str(keys)) as running:
        assert running.get("/v1/models", headers=headers)[0] == 200
        stopped = running.pids[0]
        os.kill(stopped, signal.SIGSTOP)
        edit_key_file(keys, lambda found: found.update(a=Tenant(disabled=True)))
        running.process.send_signal(signal.SIGHUP)
        # Worker 1 has read the keys long before worker 0 is given up.
        running.wait_for_log("keys reloaded")
        assert "has not read the API keys" not in running.log
        running.wait_for_log("worker 0 has not read the API keys again and is killed")
        running.wait_until_replaced(1, 2)
        assert f"(process {stopped}) has died and is replaced" in running.log
        for _ in range(20):
            assert running.get("/v1/models", headers=headers)[0] == 401
        assert running.stop() == 0


def test_changed_keys_file_reaches_all_workers_unsignalled(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    tenants = {
        "a": Tenant(secrets=(KeyHash(hash_key("sk-a")),)),
        "root": Tenant(secrets=(KeyHash(hash_key("sk-root")),), role="admin"),
    }
    edit_key_file(keys, lambda found: found.update(tenants))
    user = {"authorization": "Bearer sk-a"}
    with serving(tmp_path, "--store", "none", "--keys-file", str(keys)) as running:
        edit_key_file(keys, lambda found: found.update(a=Tenant(disabled=True)))
        running.wait_for_log("keys reloaded", 2)
        for _ in range(20):
            assert running.get("/v1/models", headers=user)[0] == 401
        edit_key_file(keys, lambda found: found.update(tenants))
        root = {"authorization": "Bearer sk-root"}
        assert running.post("/dragoman/reload_keys", {}, root) == (200, b'{"processes":2}')
        for _ in range(20):
            assert running.get("/v1/models", headers=user)[0] == 200
        keys.write_text("keys: [")
        status, body = running.post("/dragoman/reload_keys", {}, root)
        assert (status, b"invalid_keys_file" in body) == (409, True)
        assert running.stop() == 0


def test_server_with_one_worker_serves_when_other_cannot_start(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "dragoman", "serve", "scripted", "--workers", "2")
    killed: set[int] = set()

    def kill_second(log: Path) -> None:
        """Kill worker 1 in each of its starts."""
        while not is_done.wait(0.02):
            text = log.read_text() if log.exists() else ""
            for found in re.finditer(r"worker 1 is process (\d+)", text):
                if (pid := int(found[1])) not in killed:
                    killed.add(pid)
                    os.kill(pid, signal.SIGKILL)

    is_done = threading.Event()
    killer = threading.Thread(target=kill_second, args=[tmp_path / "server-0.log"])
    killer.start()
    try:
        # The greeting comes after three deaths of worker 1, with worker 0 alone.
        with started([*command, "--port", "0", "--store", "none"], tmp_path) as running:
            assert len(killed) >= MAX_FIRST_FAILURES
            assert running.post("/v1/chat/completions", chat())[0] == 200
            is_done.set()
            killer.join()
            running.wait_until(lambda: running.read_metric("dragoman_workers") == 2)
            assert running.stop() == 0
    finally:
        is_done.set()
        killer.join()


def test_worker_startup_error_is_reported_once(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "dragoman",
        "serve",
        "scripted",
        "--workers",
        "3",
        "--port",
        "0",
    ]
    result = subprocess.run(
        [*command, "--store", f"sqlite:{tmp_path}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT,
    )
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.count("cannot be opened") == 1


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"model": "vllm:./m"}, "vLLM has front ends and an engine process of its own"),
        ({"model": "python:m:f"}, "the engine `python` cannot run in a process that they share"),
        ({"models": {"a": "tiny", "b": {"model": "vllm:./m"}}}, "vLLM has front ends"),
        ({"model": "scripted", "store": "memory"}, "each worker would have responses of its own"),
        (
            {"model": "sim", "instances": 2},
            "--instances needs a port or files that only one process can have",
        ),
        ({"model": "sim", "kv_events_config": "{}"}, "--kv-events-config"),
        ({"model": "tiny", "kv_offloading_dir": "kv"}, "--kv-offloading-dir"),
    ],
)
def test_check_workers_unsupported_settings_are_rejected(
    options: dict[str, object], reason: str
) -> None:
    with pytest.raises(SettingsError) as raised:
        check_workers(load_settings({"workers": 2, **options}, {}))
    assert reason in str(raised.value)
    assert str(raised.value).startswith("--workers 2: ")


@pytest.mark.parametrize(
    "model", ["tiny", "sim", "scripted", "http://127.0.0.1:1/v1", "encoder:org/name"]
)
def test_check_workers_replicable_engines_are_accepted(model: str) -> None:
    check_workers(Settings(model=model, workers=2))


def test_serve_rejected_engine_exits_with_one_line_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dragoman", "serve", "vllm:./m", "--workers", "2"]
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=TIMEOUT
    )
    assert result.returncode == 2
    assert "vLLM has front ends" in result.stderr
    assert "Traceback" not in result.stderr


def test_workers_with_custom_engine_objects_are_rejected() -> None:

    with pytest.raises(SettingsError, match="cannot be shared"):
        dragoman.serve(
            engines={"a": ScriptedEngine(Script(()), tokenizer=load_tiny_tokenizer())},
            workers=2,
            store="none",
        )
    with pytest.raises(SettingsError, match="only `dragoman serve`"):
        dragoman.create_app("scripted", workers=2, store="none")


def test_restart_delay_doubles_for_worker_dying_before_serving() -> None:
    delays = RestartDelays()
    assert delays.note_death(0, has_served=True) == 0.0
    assert [delays.note_death(0, has_served=False) for _ in range(8)] == [
        0.5,
        1,
        2,
        4,
        8,
        16,
        MAX_DELAY,
        MAX_DELAY,
    ]
    assert delays.note_death(1, has_served=False) == 0.5
    delays.note_ready(0)
    assert delays.note_death(0, has_served=False) == 0.5
