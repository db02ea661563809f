"""Client input cannot forge headers or log lines, and logs contain no prompts or keys."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from starlette.types import Message
from tests.serving.harness import ServerHarness, build_server, scope

from dragoman.engines.scripted import Fail, Say, ScriptEntry
from dragoman.serving.request_log import RequestLog
from dragoman.serving.serving_options import ServingOptions

SECRET = "the-secret-prompt"
KEY = "sk-the-key"
LOGGED = ServingOptions(access_log=True, api_key=(KEY,))


async def raw(server: ServerHarness, path: str, **headers: str) -> list[tuple[bytes, bytes]]:
    """Send a request that no client library would send, and return the response's
    headers.
    """
    head: list[tuple[bytes, bytes]] = []

    async def send(message: Message) -> None:
        head.extend(message.get("headers", []))

    async def receive() -> Message:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    header_fields = {name.replace("_", "-"): value for name, value in headers.items()}
    await server.app(scope(path, header_fields), receive, send)
    return head


@pytest.mark.parametrize(
    "id", ["x\r\nset-cookie: a=b", "a b", "x" * 129, "\x1b[31m", "é", "<script>", ""]
)
async def test_request_id_invalid_value_is_replaced(id: str, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    headers = dict(await raw(build_server(options=LOGGED), "/v1/models", x_request_id=id))
    assert headers[b"x-request-id"].startswith(b"req_")
    assert not id or id not in caplog.text


async def test_request_id_valid_value_is_echoed():
    assert (
        dict(await raw(build_server(), "/v1/models", x_request_id="aB3._-"))[b"x-request-id"]
        == b"aB3._-"
    )


@pytest.mark.parametrize(
    "path", ["/x\nINFO forged", "/x\r\n", "/\x1b[2J", "/x\u2028y", "/" + "x" * 100_000]
)
async def test_access_log_path_is_escaped_and_truncated(
    path: str, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    await raw(build_server(options=LOGGED), path)
    (line,) = (record.getMessage() for record in caplog.records if record.name == "dragoman.access")
    assert line.isprintable()
    assert len(line) < 400


async def test_warnings_header_escapes_ignored_field_names():
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "x\r\nset-cookie: a": 1,
        "é\u2028": 2,
    }
    answer = await build_server(ScriptEntry((Say("hi"),))).post("/v1/chat/completions", body)
    warnings = answer.headers["x-dragoman-warnings"]
    assert "x??set-cookie: a" in warnings
    assert warnings.isprintable()
    assert warnings.isascii()
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("entry", [ScriptEntry((Say("hi"),)), ScriptEntry((Say("x"), Fail()))])
async def test_logs_contain_no_prompts_or_keys(
    entry: ScriptEntry, caplog: pytest.LogCaptureFixture, tmp_path: Path
):
    caplog.set_level(logging.DEBUG)
    requests = RequestLog(tmp_path / "requests.jsonl")
    server = build_server(entry, options=LOGGED, request_log=requests)
    body = {"model": "m", "messages": [{"role": "user", "content": SECRET}], "user": SECRET}
    for key in (KEY, f"{KEY}-wrong"):
        await server.post("/v1/chat/completions", body, {"authorization": f"Bearer {key}"})
    await server.post("/v1/chat/completions", {**body, "n": "1"}, {"x-api-key": KEY})
    requests.close()
    log = (tmp_path / "requests.jsonl").read_text()
    assert json.loads(log.splitlines()[0])["prompt_tokens"] is not None
    for text in (caplog.text, log):
        assert SECRET not in text
        assert KEY not in text
