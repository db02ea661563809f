"""A recording made in front of a real server is replayed; the official SDK reads both."""

from __future__ import annotations

import time
from pathlib import Path

import httpx2
import openai
import pytest
from tests.cli_core.cli_runner import get_error

from dragoman.launch import build_models
from dragoman.recording.cassette import CassetteWriter, read_cassette
from dragoman.recording.proxy import RecordingProxy
from dragoman.recording.replay import ReplayApp
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.settings import Settings
from dragoman_http import HttpClient
from tests.loopback import serve_app

HOSTS = ("localhost", "127.0.0.1")
STREAM = {
    "model": "tiny",
    "stream": True,
    "temperature": 0,
    "messages": [{"role": "user", "content": "Hello"}],
}


def get_answer(url: str) -> str:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="sk-very-secret", max_retries=0)
    chunks = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "Hello"}], temperature=0, stream=True
    )
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def raw(url: str) -> tuple[list[tuple[bytes, bytes]], bytes]:
    answer = httpx2.post(f"{url}/v1/chat/completions", json=STREAM, timeout=60)
    return sorted(
        pair for pair in answer.headers.raw if pair[0] != b"transfer-encoding"
    ), answer.content


def test_replay_equals_recording_byte_for_byte(tmp_path: Path) -> None:
    path = tmp_path / "tape.jsonl"
    with serve_app(build_asgi_app(build_models(Settings(), SystemClock()))) as upstream:
        tape = CassetteWriter(path, upstream)
        recorder = RecordingProxy(
            HttpClient(decodes_bodies=False), upstream, tape, now=time.perf_counter, hosts=HOSTS
        )
        with serve_app(recorder) as url:
            through = get_answer(url)
            passed = raw(url)
        assert through == get_answer(upstream)
    exchanges = read_cassette(path.read_bytes().splitlines())
    assert [exchange.ended for exchange in exchanges] == ["complete", "complete"]
    assert len(exchanges[0].pieces) > 1
    assert "very-secret" not in path.read_text()
    with serve_app(ReplayApp(exchanges, hosts=HOSTS, time_scale=float("inf"))) as url:
        assert get_answer(url) == through
        assert raw(url) == passed
        with pytest.raises(openai.NotFoundError, match="no response for this GET"):
            openai.OpenAI(base_url=f"{url}/v1", api_key="none").models.list()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["record", "--upstream", "openai", "--out", "x"], "'openai' is not a URL"),
        (
            ["record", "--upstream", "http://x?key=1", "--out", "x"],
            "--upstream: a URL without query and fragment",
        ),
        (
            ["record", "--upstream", "http://x/#a", "--out", "x"],
            "--upstream: a URL without query and fragment",
        ),
        (["record", "--upstream", "http://x", "--out", "/absent/x"], "/absent/x: No such file"),
        (["record", "--upstream", "http://x", "--out", "x", "--host", "0.0.0.0"], "--no-auth"),
        (["replay", "absent.jsonl"], "absent.jsonl: No such file"),
        (["replay", __file__], "line 1"),
        (["replay", __file__, "--match", "x"], "must be `question` or `path`"),
        (["replay", __file__, "--port", "-1"], "--port"),
    ],
)
def test_record_invalid_arguments_print_one_line_error(
    arguments: list[str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert why in get_error(*arguments)
