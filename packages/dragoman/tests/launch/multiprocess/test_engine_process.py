"""One engine process and several front ends: their responses, and recovery when one of
them is killed.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import pytest
from tests.hub.shapes import ENCODER, SINGLE, build_repositories
from tests.hub.stub import run_hub

from dragoman.engines.tiny import find_bundled_model
from dragoman.launch.model_plan import plan_model
from dragoman.launch.multiprocess.worker_checks import check_workers
from dragoman.settings import Settings, SettingsError, load_settings
from tests.loopback import MAX_POLLS, pause

from .processes import EMPTY, LOST, TIMEOUT, Workers, is_running, started

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot fork")

ENDLESS: dict[str, Any] = {"max_tokens": 20_000, "ignore_eos": True, "temperature": 0}
"""A request that outlasts any test unless it is aborted."""


class FrontEnds(Workers):
    """A server with an engine process. Its access log shows which worker a connection
    belongs to.
    """

    @property
    def engine_pid(self) -> int:
        return int(re.findall(r"engine is process (\d+)", self.log)[-1])

    def kill_engine(self) -> int:
        pid = self.engine_pid
        os.kill(pid, signal.SIGKILL)
        return pid

    def is_ready(self) -> bool:
        """Whether all front ends are ready, as far as eight connections can show."""
        return all(self.get("/health")[0] == 200 for _ in range(8))

    def connect_to(self, number: int) -> HTTPConnection:
        """Yield an open connection to a worker."""
        while True:
            connection = self.connect()
            connection.request("GET", "/livez")
            assert connection.getresponse().read() == b""
            port = connection.sock.getsockname()[1]
            self.wait_until(lambda port=port: f"127.0.0.1:{port} " in self.log)
            found = re.search(rf"\[worker (\d+)\] dragoman.access: 127.0.0.1:{port} ", self.log)
            if found is not None and int(found[1]) == number:
                return connection
            connection.close()

    def ask_worker(
        self, number: int, method: str, path: str, body: object = None
    ) -> tuple[int, bytes]:
        with closing(self.connect_to(number)) as connection:
            headers = {} if body is None else {"content-type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, response.read()


@contextmanager
def sharing(
    folder: Path,
    *arguments: str,
    model: str = "tiny",
    count: int = 2,
    environment: Mapping[str, str] = EMPTY,
) -> Generator[FrontEnds]:
    options = ("--port", "0", "--api-server-count", str(count), "--api-profile", "vllm")
    command = [sys.executable, "-m", "dragoman", "serve", model, *options, *arguments]
    with started(command, folder, environment) as running:
        yield FrontEnds(running.process, running.address, max(folder.glob("server-*.log")))


def ask(text: str = "Tell me a story.", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **fields}


@contextmanager
def streaming(
    running: FrontEnds,
    number: int,
    path: str = "/v1/chat/completions",
    body: Mapping[str, Any] | None = None,
) -> Generator[HTTPResponse]:
    """Yield a stream of this worker whose first event has arrived."""
    with closing(running.connect_to(number)) as connection:
        text = json.dumps({**(body or ask(**ENDLESS)), "stream": True})
        connection.request("POST", path, text, {"content-type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        read_event(response)
        yield response


def read_event(response: HTTPResponse) -> bytes:
    """Return the data of the next event; empty at the end."""
    while line := response.readline():
        if line.startswith(b"data: "):
            return line[6:].strip()
    return b""


def test_front_ends_share_one_engine_and_answer_identically(tmp_path: Path) -> None:
    with sharing(tmp_path, "--store", "none") as running:
        body = ask(
            "Tell me a story about a fox. " * 8,
            max_tokens=12,
            seed=3,
            temperature=1.3,
            logprobs=True,
        )
        answers: list[dict[str, Any]] = []
        for number in (0, 1, 0, 1):
            status, answer = running.ask_worker(number, "POST", "/v1/chat/completions", body)
            assert status == 200, answer
            answers.append(json.loads(answer))
        assert len({json.dumps(answer["choices"]) for answer in answers}) == 1
        cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
        # The other front end's request hits the prefix cache too.
        assert cached[0] == 0
        assert min(cached[1:]) > 0
        metrics = running.read_metrics()
        totals = {
            name: sum(value for (own, _), value in metrics.items() if own == name)
            for name, _ in metrics
        }
        assert totals["dragoman_workers"] == 2
        assert totals["dragoman_engine_processes"] == 1
        assert (
            totals["dragoman_engine_restarts_total"]
            == totals["dragoman_worker_restarts_total"]
            == 0
        )
        assert totals["vllm:generation_tokens_total"] == 48
        assert totals["vllm:request_success_total"] == 4
        assert totals["vllm:num_requests_running"] == totals["vllm:num_requests_waiting"] == 0
        assert {
            dict(labels)["worker"]
            for name, labels in metrics
            if name == "dragoman_worker_requests_total"
        } == {
            "0",
            "1",
        }
        pids = [*running.pids.values(), running.engine_pid]
        assert len(set(pids)) == 3
        if sys.platform == "linux":
            # A thread of the supervisor could hold a lock during a fork.
            assert len(os.listdir(f"/proc/{running.process.pid}/task")) == 1
        assert running.stop() == 0
        assert running.log.count("engine is process") == 1
        assert not any(map(is_running, pids))


STREAMS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/chat/completions", ask(seed=5, max_tokens=20)),
    ("/v1/completions", {"prompt": "Once upon", "seed": 5, "max_tokens": 20}),
    ("/v1/messages", ask(max_tokens=20, temperature=0, model="tiny")),
    (
        "/v1/responses",
        {"input": "Tell me a story.", "temperature": 0, "max_output_tokens": 20, "store": False},
    ),
)


def test_front_end_stream_equals_full_response_of_other(tmp_path: Path) -> None:
    with sharing(tmp_path, "--store", "none") as running:
        for path, body in STREAMS:
            for number in range(2):
                status, answer = running.ask_worker(number, "POST", path, body)
                assert status == 200, answer
                with streaming(running, 1 - number, path, body) as response:
                    events = iter(lambda response=response: read_event(response), b"")
                    deltas = [json.loads(event) for event in events if event != b"[DONE]"]
                whole = find_text(json.loads(answer))
                assert whole
                # `streaming` has read the first event, which has no text but in
                # completions.
                assert whole.endswith("".join(map(find_delta, deltas)))
                assert len(whole) - len("".join(map(find_delta, deltas))) < 12


def find_text(answer: dict[str, Any]) -> str:
    if "choices" in answer:
        choice = answer["choices"][0]
        return choice["text"] if "text" in choice else choice["message"]["content"]
    content = answer["content"] if "content" in answer else answer["output"][-1]["content"]
    return "".join(part["text"] for part in content)


def find_delta(event: dict[str, Any]) -> str:
    if "choices" in event:
        found = [
            choice.get("text") or choice.get("delta", {}).get("content") or ""
            for choice in event["choices"]
        ]
        return "".join(found)
    if event["type"] == "content_block_delta":
        return event["delta"]["text"]
    return event["delta"] if event["type"] == "response.output_text.delta" else ""


def test_killed_front_end_frees_sequences_and_spares_others(tmp_path: Path) -> None:
    with sharing(tmp_path, "--store", "none") as running, ExitStack() as stack:
        expected = running.post(
            "/v1/chat/completions", ask(max_tokens=300, temperature=0, ignore_eos=True)
        )[1]
        lost = [stack.enter_context(streaming(running, 1)) for _ in range(3)]
        survivor = stack.enter_context(
            streaming(running, 0, body=ask(max_tokens=300, temperature=0, ignore_eos=True))
        )
        assert running.read_metric("vllm:num_requests_running") >= 3
        running.kill(1)
        for stream in lost:
            with pytest.raises(LOST):
                stream.read()
        deltas = [
            json.loads(event)
            for event in iter(lambda: read_event(survivor), b"")
            if event != b"[DONE]"
        ]
        assert "".join(map(find_delta, deltas)) == find_text(json.loads(expected))
        running.wait_until_replaced(1, 2)
        # Only the engine's metrics show it: a sequence without a client would run for a
        # long time.
        running.wait_until(lambda: running.read_metric("vllm:kv_cache_usage_perc") == 0.0)
        running.wait_until(lambda: running.read_metric("vllm:num_requests_running") == 0)
        assert running.log.count("engine is process") == 1
        status, answer = running.ask_worker(1, "POST", "/v1/chat/completions", ask(max_tokens=3))
        assert status == 200, answer
        assert running.stop() == 0


ENDINGS: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("/v1/chat/completions", ask(**ENDLESS), '"error"'),
    ("/v1/messages", ask(max_tokens=20_000, model="tiny", ignore_eos=True), '"type":"error"'),
    (
        "/v1/responses",
        {"input": "Hello", "max_output_tokens": 20_000, "ignore_eos": True},
        '"type":"response.failed"',
    ),
)


def test_killed_engine_ends_streams_with_error_and_is_replaced(tmp_path: Path) -> None:
    with sharing(tmp_path) as running, ExitStack() as stack:
        streams = [
            (stack.enter_context(streaming(running, number, path, body)), ending)
            for number in range(2)
            for path, body, ending in ENDINGS
        ]
        killed = running.kill_engine()
        for stream, ending in streams:
            events = [
                event
                for event in iter(lambda stream=stream: read_event(stream), b"")
                if event != b"[DONE]"
            ]
            assert ending in events[-1].decode().replace('": ', '":'), events[-1]
            assert b"engine process has ended unexpectedly" in events[-1]
        running.wait_until(running.is_ready)
        assert running.engine_pid != killed
        for number in range(2):
            status, answer = running.ask_worker(
                number, "POST", "/v1/chat/completions", ask(max_tokens=3)
            )
            assert status == 200, answer
        assert running.read_metric("dragoman_engine_restarts_total") == 1
        assert running.read_metric("dragoman_worker_restarts_total") == 0
        assert (
            f"engine (process {killed}) has died and is replaced: killed by SIGKILL" in running.log
        )
        assert running.stop() == 0


def test_replaced_engine_process_reports_lost_weights(
    tmp_path: Path,
) -> None:
    shutil.copytree(find_bundled_model(), tmp_path / "trained")
    body = ask(max_tokens=3, return_weight_versions=True)
    update = {"update_info": {"path": "trained"}}
    with sharing(tmp_path, "--store", "none", "--weights-dir", str(tmp_path)) as running:
        for step in (1, 2):
            answer = running.post("/update_weights", {**update, "weight_version": f"step-{step}"})
            assert answer[0] == 200, answer
            running.kill_engine()
            running.wait_until(
                lambda step=step: running.read_metric("dragoman_engine_restarts_total") == step
            )
            running.wait_until(running.is_ready)
            for number in range(2):
                status, answer = running.ask_worker(number, "POST", "/v1/chat/completions", body)
                assert status == 503, answer
                assert f"has lost the weights of version 'step-{step}'" in answer.decode()
                assert (
                    json.loads(running.ask_worker(number, "GET", "/weight_info")[1])[
                        "weight_version"
                    ]
                    == "default"
                )
        assert "the weights of version step-2 are lost" in running.log
        assert (
            json.loads(running.post("/update_weights", update)[1])["weight_version"] == "default+3"
        )
        status, answer = running.post("/v1/chat/completions", body)
        assert status == 200, answer
        assert b"default+3" in answer


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:.*:FutureWarning:transformers", "ignore:.*:UserWarning:peft")
def test_replaced_engine_process_reloads_runtime_adapters(tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="needs peft")
    library: Any = pytest.importorskip("transformers", reason="needs transformers")
    from tests.engines.transformers.test_lora import write_adapter

    model = find_bundled_model()
    for seed, name in enumerate(("kept", "moved")):
        write_adapter(library.AutoModelForCausalLM.from_pretrained(model), tmp_path / name, seed)
    body = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0, "logprobs": 1}
    start = (
        "--store",
        "none",
        "--lora-dir",
        str(tmp_path),
        "--lora-modules",
        f"first={tmp_path / 'kept'}",
    )
    with sharing(tmp_path, *start, model=f"transformers:{model}") as running:
        for name in ("kept", "moved"):
            fields = {"lora_name": name, "lora_path": str(tmp_path / name)}
            status, answer = running.ask_worker(0, "POST", "/v1/load_lora_adapter", fields)
            assert status == 200, answer
        assert (
            running.ask_worker(1, "POST", "/v1/unload_lora_adapter", {"lora_name": "first"})[0]
            == 200
        )
        before = json.loads(running.post("/v1/completions", {**body, "model": "kept"})[1])[
            "choices"
        ]
        (tmp_path / "moved").rename(tmp_path / "elsewhere")
        running.kill_engine()
        running.wait_until(lambda: running.read_metric("dragoman_engine_restarts_total") == 1)
        running.wait_until(running.is_ready)
        for number in range(2):
            for name, expected in (("kept", 200), ("moved", 404), ("first", 404)):
                status, answer = running.ask_worker(
                    number, "POST", "/v1/completions", {**body, "model": name}
                )
                assert status == expected, (name, answer)
                if name == "kept":
                    assert json.loads(answer)["choices"] == before
        assert "the adapter moved cannot be loaded again" in running.log


def test_requests_during_engine_restart_return_503(tmp_path: Path) -> None:
    """The engine cannot restart, because its weights were deleted."""
    directory = tmp_path / "model"
    shutil.copytree(find_bundled_model(), directory)
    with sharing(tmp_path, "--store", "none", model=f"tiny:{directory}") as running:
        assert running.post("/v1/chat/completions", ask(max_tokens=3))[0] == 200
        weights = next(directory.glob("*.safetensors"))
        weights.rename(tmp_path / "kept")
        running.kill_engine()
        running.wait_for_log("has died and is replaced", 2)
        for number in range(2):
            status, answer = running.ask_worker(number, "GET", "/health")
            assert (status, json.loads(answer)["reason"]) == (
                503,
                "the engine process is not running",
            )
            requests = (
                ("/v1/chat/completions", ask()),
                ("/v1/embeddings", {"input": "Hello"}),
                ("/pause", None),
            )
            for path, body in requests:
                status, answer = running.ask_worker(number, "POST", path, body)
                assert status == 503, (path, answer)
                assert "is being restarted" in str(answer)
        (tmp_path / "kept").rename(weights)
        running.wait_until(running.is_ready)
        assert running.post("/v1/chat/completions", ask(max_tokens=3))[0] == 200
        assert running.stop() == 0


def test_shutdown_finishes_streams_before_engine_stops(tmp_path: Path) -> None:
    with (
        sharing(tmp_path, "--store", "none", "--shutdown-timeout", "600") as running,
        ExitStack() as stack,
    ):
        body = ask(max_tokens=400, temperature=0, ignore_eos=True)
        streams = [stack.enter_context(streaming(running, number, body=body)) for number in (0, 1)]
        running.process.terminate()
        for stream in streams:
            assert b"[DONE]" in stream.read()
        assert running.process.wait(TIMEOUT) == 0
        assert not is_running(running.engine_pid)


def test_second_signal_stops_engine_process(tmp_path: Path) -> None:
    with (
        sharing(tmp_path, "--store", "none", "--shutdown-timeout", "600") as running,
        streaming(running, 0),
    ):
        for pid in (running.engine_pid, running.process.pid):
            os.kill(pid, signal.SIGTERM)
        running.wait_for_log("press Ctrl-C again")
        assert is_running(running.engine_pid)
        running.process.terminate()
        assert running.process.wait(TIMEOUT) == 0
        assert not is_running(running.engine_pid)


def test_reload_does_not_restart_engine_process(tmp_path: Path) -> None:
    file = tmp_path / "dragoman.yaml"
    file.write_text("log-level: info\n")
    with (
        sharing(tmp_path, "--store", "none", "--config", str(file)) as running,
        streaming(running, 0) as stream,
    ):
        engine = running.engine_pid
        file.write_text("log-level: debug\n")
        running.process.send_signal(signal.SIGHUP)
        running.wait_for_log("log level reloaded", 2)
        for _ in range(20):
            assert read_event(stream)
        assert is_running(engine)
        assert running.log.count("engine is process") == 1


def test_killed_supervisor_ends_all_processes(tmp_path: Path) -> None:
    with sharing(tmp_path, "--store", "none") as running:
        pids = [running.engine_pid, *running.pids.values()]
        assert running.post("/v1/chat/completions", ask(max_tokens=3))[0] == 200
        running.process.kill()
        running.process.wait(TIMEOUT)
        for pid in pids:
            wait_until_ended(pid)


def wait_until_ended(pid: int) -> None:
    """Wait for a process that is not a child. It may stay a zombie if nothing reaps
    orphans.
    """
    for _ in range(MAX_POLLS):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except (FileNotFoundError, ProcessLookupError):
            return
        pause()
    raise AssertionError(pid)


def test_admin_requests_reach_engine_through_any_front_end(tmp_path: Path) -> None:
    with sharing(tmp_path, "--store", "none") as running, streaming(running, 1) as stream:
        assert running.ask_worker(0, "POST", "/pause?mode=keep")[0] == 200
        for number in range(2):
            assert json.loads(running.ask_worker(number, "GET", "/is_paused")[1]) == {
                "is_paused": True
            }
        status, answer = running.ask_worker(0, "POST", "/abort_requests", {})
        assert (status, json.loads(answer)) == (200, {"status": "aborted", "aborted": 1})
        events = [event for event in iter(lambda: read_event(stream), b"") if event != b"[DONE]"]
        assert any(b'"finish_reason":"abort"' in event for event in events), events[-2:]
        assert running.ask_worker(1, "POST", "/resume")[0] == 200
        assert running.ask_worker(1, "POST", "/reset_prefix_cache")[0] == 200
        assert (
            running.ask_worker(0, "POST", "/update_weight_version", {"new_version": "step-1"})[0]
            == 200
        )
        assert json.loads(running.ask_worker(1, "GET", "/weight_info")[1]) == {
            "weight_version": "step-1"
        }


def test_engine_load_failure_is_reported_once(tmp_path: Path) -> None:
    directory = tmp_path / "model"
    shutil.copytree(find_bundled_model(), directory)
    next(directory.glob("*.safetensors")).write_bytes(b"nothing")
    command = [
        sys.executable,
        "-m",
        "dragoman",
        "serve",
        f"tiny:{directory}",
        "--api-server-count",
        "2",
        "--port",
        "0",
    ]
    result = subprocess.run(
        [*command, "--store", "none"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=TIMEOUT,
    )
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.count("cannot serve tiny:") == 1, result.stderr
    assert "Traceback" not in result.stderr


@pytest.fixture
def hub_environment(tmp_path: Path) -> Generator[dict[str, str]]:
    (tmp_path / "encoder").mkdir()
    with run_hub(build_repositories(tmp_path / "encoder")) as hub:
        yield {
            "HF_ENDPOINT": hub.url,
            "HF_HUB_CACHE": str(tmp_path / "cache"),
            "HF_HOME": str(tmp_path / "home"),
        }


def test_engine_process_downloads_hub_model(
    tmp_path: Path, hub_environment: Mapping[str, str]
) -> None:
    with sharing(
        tmp_path, "--store", "none", model=f"tiny:{SINGLE}", environment=hub_environment
    ) as running:
        for number in range(2):
            listed = json.loads(running.ask_worker(number, "GET", "/v1/models")[1])["data"][0]
            assert (listed["id"], listed["dragoman"]["engine"]) == (SINGLE, "tiny")
            assert listed["dragoman"]["revision"]
            status, answer = running.ask_worker(
                number, "POST", "/v1/chat/completions", ask(max_tokens=3)
            )
            assert (status, json.loads(answer)["model"]) == (200, SINGLE)


def test_hub_encoder_with_workers_is_rejected(
    tmp_path: Path, hub_environment: Mapping[str, str]
) -> None:
    command = [
        sys.executable,
        "-m",
        "dragoman",
        "serve",
        ENCODER,
        "--workers",
        "2",
        "--port",
        "0",
        "--store",
        "none",
    ]
    environment = {**os.environ, **hub_environment, "XDG_STATE_HOME": str(tmp_path)}
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=TIMEOUT,
        env=environment,
    )
    assert result.returncode == 2
    assert "as `encoder:NAME` each worker has its own" in result.stderr


@pytest.mark.parametrize(
    "victims", [3, pytest.param(int(os.environ.get("TEST_KILLS", "60")), marks=pytest.mark.long)]
)
def test_random_process_kills_leave_no_hanging_client(tmp_path: Path, victims: int) -> None:
    chance = random.Random(16)
    stopped = threading.Event()
    problems = list[str]()
    answered = Counter[str]()

    def load(running: FrontEnds) -> None:
        while not stopped.is_set():
            try:
                status, answer = running.post(
                    "/v1/chat/completions", ask(max_tokens=20, stream=True)
                )
            except TimeoutError:
                problems.append("a client hung")
            except LOST:
                answered["lost"] += 1
            else:
                is_whole = b"[DONE]" in answer or b'"error"' in answer
                if status not in (200, 503) or not is_whole:
                    problems.append(f"{status} {answer!r}")
                answered[str(status)] += 1

    with sharing(tmp_path, "--store", "none") as running:
        threads = [threading.Thread(target=load, args=(running,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        restarts = 0
        for number in range(victims):
            if number % 2 == 0:
                running.kill_engine()
                running.wait_until(
                    lambda n=number // 2 + 1: (
                        running.read_metric("dragoman_engine_restarts_total") == n
                    )
                )
            else:
                restarts += 1
                running.kill(chance.randrange(2))
                running.wait_until_replaced(restarts, 2)
            running.wait_until(running.is_ready)
        stopped.set()
        for thread in threads:
            thread.join()
        assert not problems, problems[:3]
        assert answered["200"] > 0
        running.wait_until(lambda: running.read_metric("vllm:kv_cache_usage_perc") == 0.0)
        assert running.stop() == 0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"model": "vllm:./m", "workers": 2},
            "vLLM has front ends and an engine process of its own",
        ),
        (
            {"model": "vllm:./m", "api_server_count": 1},
            "start `vllm serve` with --api-server-count",
        ),
        (
            {"model": "python:m:f", "workers": 2},
            "the engine `python` cannot run in a process that they share",
        ),
        (
            {"model": "sim", "api_server_count": 2},
            "the engine `sim` cannot have a process of its own; use --workers",
        ),
        (
            {"model": "http://127.0.0.1:1/v1", "api_server_count": 2},
            "the engine `upstream` cannot have a process",
        ),
        ({"model": "tiny", "workers": 2, "api_server_count": 2}, "use it or --workers, not both"),
        (
            {"models": {"a": "transformers:./m"}, "workers": 2},
            "workers can share the engine of one MODEL, not those",
        ),
        ({"models": {"a": "tiny"}, "api_server_count": 2}, "an engine process serves one model"),
        (
            {"model": "tiny", "api_server_count": 2, "store": "memory"},
            "each worker would have responses of its own",
        ),
    ],
)
def test_check_workers_unshareable_engine_is_rejected(
    options: dict[str, object], reason: str
) -> None:
    with pytest.raises(SettingsError) as raised:
        check_workers(load_settings(options, {}))
    assert reason in str(raised.value)


@pytest.mark.parametrize("model", ["transformers:./m", "mlx:./m", "m.gguf", "org/name"])
def test_single_instance_engines_get_own_process(model: str) -> None:
    assert check_workers(Settings(model=model, workers=2)) == plan_model(model)
    assert check_workers(Settings(model="tiny", workers=2)) is None
    assert check_workers(Settings(model="tiny", api_server_count=1)) == plan_model("tiny")
    # There is one engine process, so it may use the files.
    check_workers(Settings(model=model, workers=2, kv_offloading_dir="kv"))
