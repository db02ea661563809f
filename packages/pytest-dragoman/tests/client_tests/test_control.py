"""The control route of `dragoman scripted --for-tests`, and its process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from tests.client_tests.chat_client import ChatClient

from pytest_dragoman import Dragoman
from pytest_dragoman.control_app import PREFIX, ControlApp
from pytest_dragoman.event_loop_thread import EventLoopThread

QUESTION = [{"role": "user", "content": "What is 1 + 2?"}]


@pytest.fixture(scope="module")
def server(dragoman_loop: EventLoopThread) -> Iterator[Dragoman]:
    server = Dragoman(dragoman_loop, wrap_app=ControlApp)
    yield server
    server.close()


@pytest.fixture
def control(server: Dragoman) -> str:
    server.reset()
    return server.base_url + PREFIX


def call(url: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urlopen(Request(url, data), timeout=60) as response:
            return json.load(response)
    except HTTPError as error:
        return json.load(error)


def test_control_queues_replies_and_lists_requests(server: Dragoman, control: str) -> None:
    call(f"{control}replies", [{"reply": "It is 3."}, {"usage": {"completion": 7}}])
    call(
        f"{control}replies",
        [{"when": {"contains": "1 + 2", "role": "user"}}, {"tool_call": {"name": "add"}}],
    )
    client = ChatClient(server.base_url)
    assert client.ask(QUESTION).calls
    assert client.ask([{"role": "user", "content": "Thanks"}]).text == "It is 3."
    first, second = call(f"{control}requests")
    assert (first["text"], first["tools"]) == ("What is 1 + 2?", ["add"])
    assert first["tool_calls"][0]["name"] == "add"
    assert (second["json"]["stream"], second["usage"]["completion"]) == (True, 7)
    # The control route itself is not recorded.
    assert len(call(f"{control}http_requests")) == 2


def test_control_verdict_judges_client_under_fault(server: Dragoman, control: str) -> None:
    for checks_end, outcome in ((False, "broken answer taken as complete"), (True, "raised E")):
        call(f"{control}reset", {"fault": "truncated-stream"})
        call(f"{control}replies", [{"reply": "one two three four"}])
        error = None
        if checks_end:
            error = {"name": "E", "message": "ended early"}
        ChatClient(server.base_url, checks_end=False).ask(QUESTION)
        verdict = call(f"{control}verdict", {"error": error})
        assert verdict["outcome"] == outcome
        assert [each["mistake"] for each in verdict["findings"]] == [outcome][: not checks_end]


def test_control_verdict_without_fault_judges_usage(server: Dragoman, control: str) -> None:
    call(f"{control}replies", [{"reply": "one two"}])
    tokens = ChatClient(server.base_url).ask(QUESTION).tokens
    assert call(f"{control}verdict", {"completion": tokens})["outcome"] == "same answer"


INVALID: list[tuple[str, object, str]] = [
    ("replies", [{"malformed": "xml"}], "malformed: kind"),
    ("replies", [{"reply": "a"}, {"times": "x"}], "times: count: Expected `int`"),
    ("replies", [{"times": 2}], "begins with reply, reasoning"),
    ("replies", [{"tool_call": {"nam": "a"}}], "tool_call: unknown nam; it has name"),
    ("replies", [{"tool_call": {}}], "tool_call: name is missing"),
    ("replies", [{"close": 1}], "a step is an object with one of the keys reply"),
    ("reset", {"fault": "storm"}, "fault: 'storm' is none of none, rate-limit"),
    ("reset", {"patiense": 1}, "patiense"),
    ("stop", {}, "POST stop is none of POST replies"),
]


@pytest.mark.parametrize(("route", "body", "words"), INVALID)
def test_control_invalid_body_is_rejected(
    server: Dragoman, control: str, route: str, body: object, words: str
) -> None:
    assert words in call(f"{control}{route}", body)["error"]
    assert not server.unused_replies


def test_fixture_server_has_no_control_route(dragoman: Dragoman) -> None:
    with pytest.raises(HTTPError, match="404"):
        urlopen(f"{dragoman.base_url}{PREFIX}requests", timeout=60)


def run_scripted(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "dragoman", "scripted", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_scripted_command_ends_when_stdin_is_closed() -> None:
    with run_scripted("--for-tests") as process:
        assert process.stdout is not None
        addresses = json.loads(process.stdout.readline())
        assert call(f"{addresses['control_url']}/requests") == []
        assert addresses["environment"]["OPENAI_BASE_URL"] == addresses["openai_base_url"]
        _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, "")


def test_scripted_command_ends_with_signal_after_addresses() -> None:
    with run_scripted("--for-tests") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.terminate()
        _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, "")


def test_scripted_command_without_option_is_rejected() -> None:
    with run_scripted() as process:
        _, errors = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "--for-tests is required" in errors
