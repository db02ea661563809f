"""The request log: the fields of a line, a line for every outcome, and writing without
blocking.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.core.errors import EngineError
from dragoman.core.events import (
    ChoiceFinished,
    Event,
    Finished,
    FinishReason,
    Started,
    TextDelta,
    Token,
    Usage,
)
from dragoman.core.reply import Reply
from dragoman.engines.scripted import Fail, Say, ScriptEntry
from dragoman.launch.server_assembly import open_request_log
from dragoman.pipeline.driver import BatchStream
from dragoman.serving.call_observer import CallObserver
from dragoman.serving.reply_persistence import ReplyPersistence
from dragoman.serving.request_log import RequestLog, RequestLogLine
from dragoman.serving.rotated_file import RotatedFile
from dragoman.settings import SettingsError
from dragoman_check.load.logs.generic_table import read_json_lines

from .harness import build_server

DEPLOY = Path(__file__).parents[4] / "deploy"
LOGROTATE = shutil.which("logrotate") or shutil.which("logrotate", path="/usr/sbin")
ASK: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "A secret question."}],
}
EVENTS: tuple[Event, ...] = (
    Started(7, 4),
    TextDelta(0, "a", (Token(1, "a"),)),
    TextDelta(0, "b", (Token(2, "b"),)),
    ChoiceFinished(0, FinishReason.STOP),
    Finished(Usage(7, 3)),
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "requests.jsonl"


@pytest.fixture
def into(file: Path) -> Iterator[RequestLog]:
    log = RequestLog(file)
    yield log
    log.close()


def read_log(into: RequestLog, file: Path) -> list[dict[str, Any]]:
    into.close()
    return [msgspec.json.decode(line) for line in content(file).splitlines()]


def content(file: Path) -> bytes:
    return file.read_bytes()


async def stream(*batches: Event | Exception) -> AsyncGenerator[list[Event]]:
    for event in batches:
        if isinstance(event, Exception):
            raise event
        yield [event]


def observe_stream(into: RequestLog, *batches: Event | Exception) -> BatchStream:
    """Observe a stream on a clock that advances by a second at each read; it is not
    read for tokens after the first.
    """
    seconds = count(1)
    line = RequestLogLine(100.0, "r", "/v1/completions", "m")
    observer = CallObserver(line, None, into, lambda: float(next(seconds)))
    return BatchStream(stream(*batches), observer)


async def test_request_log_line_has_counts_times_and_finish_reason(into: RequestLog, file: Path):
    assert [event async for (event,) in observe_stream(into, *EVENTS)] == list(EVENTS)
    assert read_log(into, file) == [
        {
            "arrival_s": 100.0, "request_id": "r", "route": "/v1/completions", "model": "m",
            "status": 200,
            "error": None, "finish_reasons": ["stop"], "prompt_tokens": 7, "cached_tokens": 4,
            "output_tokens": 3,
            "queue_s": 1.0, "ttft_s": 2.0, "latency_s": 5.0, "key": None, "client": None,
        }
    ]  # fmt: skip


async def test_request_log_uses_counts_reported_at_end(into: RequestLog, file: Path):
    async for _ in observe_stream(into, Started(None), *EVENTS[1:-1], Finished(Usage(7, 3, 4))):
        pass
    (line,) = read_log(into, file)
    assert (line["prompt_tokens"], line["cached_tokens"], line["output_tokens"]) == (7, 4, 3)


async def test_request_log_readable_by_calibrate(into: RequestLog, file: Path):
    async for _ in observe_stream(into, *EVENTS):
        pass
    with pytest.raises(EngineError):
        await anext(observe_stream(into, EngineError("broken")))
    into.close()
    (timing,) = read_json_lines(content(file), "s").timings
    assert (timing.input_tokens, timing.output_tokens, timing.ttft, timing.latency) == (
        7,
        3,
        2.0,
        5.0,
    )


async def test_request_log_unstored_reply_has_error(into: RequestLog, file: Path):
    async def fail(_: Reply) -> None:
        raise EngineError("The store is full.", code="store_full")

    batches = observe_stream(into, *EVENTS)
    batches.add_stage(ReplyPersistence(fail))
    with pytest.raises(EngineError, match="full"):
        _ = [batch async for batch in batches]
    (line,) = read_log(into, file)
    assert (line["status"], line["error"]) == (500, "store_full")
    assert (line["prompt_tokens"], line["output_tokens"]) == (7, 3)


async def test_request_log_includes_disconnected_and_failed_requests(into: RequestLog, file: Path):
    left = observe_stream(into, *EVENTS)
    await anext(left)
    await anext(left)
    await left.aclose()
    broken = observe_stream(into, EVENTS[0], EngineError("with the prompt in it"))
    await anext(broken)
    with pytest.raises(EngineError):
        await anext(broken)
    mistaken = observe_stream(into, KeyError("with the prompt in it"))
    with pytest.raises(KeyError):
        await anext(mistaken)
    first, second, third = read_log(into, file)
    assert (first["status"], first["error"], first["output_tokens"]) == (499, "cancelled", 1)
    assert (second["status"], second["error"], second["ttft_s"]) == (500, "engine_error", None)
    assert (third["status"], third["error"]) == (500, "KeyError")


@pytest.mark.parametrize("streamed", [False, True])
async def test_request_log_excludes_prompt_and_key(into: RequestLog, file: Path, streamed: bool):
    server = build_server(ScriptEntry((Say("A secret answer."),)), request_log=into)
    headers = {"x-request-id": "mine", "authorization": "Bearer a-key"}
    await server.post("/v1/chat/completions", {**ASK, "stream": streamed}, headers)
    (line,) = read_log(into, file)
    assert (line["request_id"], line["route"], line["model"]) == (
        "mine",
        "/v1/chat/completions",
        "m",
    )
    assert (line["status"], line["finish_reasons"]) == (200, ["stop"])
    assert line["output_tokens"] > 0
    assert b"secret" not in content(file)
    assert b"a-key" not in content(file)


async def test_request_log_rejected_request_has_status(into: RequestLog, file: Path):
    server = build_server(ScriptEntry((Fail(429, "slowly"),)), request_log=into)
    assert (await server.post("/v1/chat/completions", ASK)).status_code == 429
    assert (
        await server.post("/v1/chat/completions", {**ASK, "max_tokens": 10**6})
    ).status_code == 400
    assert [line["status"] for line in read_log(into, file)] == [429, 400]


async def test_request_log_full_queue_drops_lines_without_blocking(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """The file is a pipe without a reader."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    into = RequestLog(pipe, queue_size=2)
    long = RequestLogLine(
        0.0, "r", "/", "m" * 2**20
    )  # more than a pipe holds: the thread waits with it
    for _ in range(5):
        into.put(long)
    os.set_blocking(reader, True)
    with os.fdopen(reader, "rb") as file:
        read = asyncio.create_task(asyncio.to_thread(file.read))
        await asyncio.to_thread(into.close)
        assert (await read).count(b"\n") in (2, 3)
    assert "lines were dropped" in caplog.text


def test_request_log_unwritable_file_raises_settings_error(tmp_path: Path):
    with pytest.raises(SettingsError, match="request-log"):
        open_request_log(str(tmp_path))


def write_line(log: RotatedFile, number: int) -> None:
    log.write(b"%d\n" % number)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot rename an open file")
def test_rotated_file_is_opened_again_after_rename(file: Path) -> None:
    # Two processes of a server have one file.
    logs = [RotatedFile(file), RotatedFile(file)]
    for log in logs:
        write_line(log, 1)
    file.rename(file.with_suffix(".1"))
    for log in logs:
        write_line(log, 2)
    file.unlink()
    for log in logs:
        write_line(log, 3)
        log.close()
    assert (content(file.with_suffix(".1")), content(file)) == (b"1\n1\n", b"3\n3\n")
    assert file.stat().st_mode & 0o777 == 0o600


def test_rotated_file_continues_after_truncation(file: Path) -> None:
    log = RotatedFile(file)
    write_line(log, 1)
    os.truncate(file, 0)
    write_line(log, 2)
    log.close()
    assert content(file) == b"2\n"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot rename an open file")
def test_rotated_file_unopenable_path_keeps_former_file(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = RotatedFile(file)
    former = file.with_suffix(".1")
    file.rename(former)
    file.mkdir()
    for number in (1, 2):
        write_line(log, number)
    assert content(former) == b"1\n2\n"
    assert caplog.text.count("cannot be opened after its rotation") == 1
    file.rmdir()
    write_line(log, 3)
    log.close()
    assert content(file) == b"3\n"


@pytest.mark.skipif(LOGROTATE is None, reason="logrotate is not installed")
def test_logrotate_with_shipped_configuration_loses_no_line(file: Path, tmp_path: Path) -> None:
    assert LOGROTATE is not None
    text = (DEPLOY / "logrotate/dragoman").read_text()
    path = "/var/log/dragoman/requests.jsonl"
    assert path in text
    config = tmp_path / "logrotate.conf"
    text = text.replace("    su dragoman dragoman\n", "")
    config.write_text(text.replace(path, str(file)))
    config.chmod(0o644)
    tmp_path.chmod(0o755)
    log = RotatedFile(file)
    for number in range(3):
        write_line(log, number)
        state = tmp_path / "state"
        subprocess.run([LOGROTATE, "--force", "--state", state, config], check=True, timeout=60)
    write_line(log, 3)
    log.close()
    found = sorted(tmp_path.glob("requests.jsonl*"))
    lines = [
        line
        for each in found
        for line in (
            gzip.decompress(content(each)) if each.suffix == ".gz" else content(each)
        ).split()
    ]
    assert sorted(lines) == [b"0", b"1", b"2", b"3"]
    assert content(file) == b"3\n"


@pytest.mark.skipif(sys.platform == "win32", reason="modes of POSIX")
def test_request_log_new_file_is_private(file: Path) -> None:
    umask = os.umask(0)
    try:
        RequestLog(file).close()
        assert file.stat().st_mode & 0o777 == 0o600
        # Its owner lets a log shipper read it.
        file.chmod(0o640)
        RequestLog(file).close()
    finally:
        os.umask(umask)
    assert file.stat().st_mode & 0o777 == 0o640
