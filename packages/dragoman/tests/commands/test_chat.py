"""`dragoman chat` in a separate process: on a pipe, and on a pseudo-terminal."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest

from dragoman import create_app
from tests.loopback import serve_app

from .processes import COMMAND, build_environment, read_until, run_command, start_command


@pytest.fixture(scope="module")
def url() -> Generator[str]:
    with serve_app(create_app("scripted", store="none")) as url:
        yield url


def test_chat_with_embedded_model_keeps_history(tmp_path: Path):
    lines = "Hello\nWhat is 17 + 26?\n/save chat.json\n/exit\nnever sent\n"
    done = run_command(
        "chat", "--temperature", "0", "--reasoning-effort", "none", stdin=lines, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (
        done.stdout
        == "Hello! How can I help you today?\n17 + 26 = 43.\nSaved 4 messages to chat.json\n"
    )
    saved = json.loads((tmp_path / "chat.json").read_text())
    assert [message["content"] for message in saved["messages"]][:2] == [
        "Hello",
        "Hello! How can I help you today?",
    ]


def test_chat_marks_or_hides_reasoning(url: str):
    line = "[[think Two sums.]] [[say Five.]]\n"
    assert run_command("chat", url, stdin=line).stdout == "Thinking: Two sums.\nFive.\n"
    assert run_command("chat", url, "--hide-reasoning", stdin=line).stdout == "Five.\n"


def test_chat_prints_tool_calls_and_reads_results_from_input(url: str, tmp_path: Path):
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    (tmp_path / "tools.json").write_text(json.dumps([tool]))
    ask = '[[tool add {"a": 1}]] [[tool add {"a": 2}]] [[then]] [[say Done.]]'
    done = run_command(
        "chat", url, "--tools", "tools.json", stdin=f"{ask}\n1\n2\n/save c.json\n", cwd=tmp_path
    )
    assert done.stdout == '-> add({"a": 1})\n-> add({"a": 2})\nDone.\nSaved 5 messages to c.json\n'
    messages = json.loads((tmp_path / "c.json").read_text())["messages"]
    calls = [call["id"] for call in messages[1]["tool_calls"]]
    assert [(message["tool_call_id"], message["content"]) for message in messages[2:4]] == [
        (calls[0], "1"),
        (calls[1], "2"),
    ]


def test_chat_commands_change_conversation(url: str, tmp_path: Path):
    lines = [
        "/help", "/system", "[[say one]]", "/system Be brief.", "/system", "/clear", "/nothing",
        "/save", ' /x [[say two]]',
        '"""[[say three', 'four]]"""', "/save c.json", "/save /absent/c.json",
    ]  # fmt: skip
    done = run_command("chat", url, stdin="\n".join(lines), cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("/system [TEXT]")
    assert done.stdout.endswith(
        "There is no system prompt.\none\nBe brief.\ntwo\nthree\nfour\nSaved 4 messages to c.json\n"
    )
    assert "unknown command /nothing" in done.stderr
    assert "unknown command /save" in done.stderr
    assert "/absent/c.json: No such file" in done.stderr
    messages = json.loads((tmp_path / "c.json").read_text())["messages"]
    assert [message["role"] for message in messages] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
    ]


def test_chat_failed_message_is_dropped_and_exit_code_is_1(url: str, tmp_path: Path):
    lines = "[[error 503 no room]]\n[[say fine]]\n/save c.json\n"
    done = run_command("chat", url, stdin=lines, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "fine\nSaved 2 messages to c.json\n")
    assert done.stderr == "Error: no room (HTTP 503)\n"


def test_chat_ctrl_c_stops_answer_and_continues(url: str):
    with start_command("chat", url) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("[[say one]] [[delay 60]] [[say two]]\n")
        process.stdin.flush()
        read_until(process.stdout, "one")
        process.send_signal(signal.SIGINT)
        read_until(process.stdout, "(stopped)\n")
        output, errors = process.communicate("[[say three]]\n", timeout=60)
    assert (process.returncode, output, errors) == (0, "three\n", "")


class Terminal:
    """A chat on a pseudo-terminal."""

    def __init__(self, *arguments: str, **variables: str) -> None:
        self._controller, terminal = os.openpty()
        self.process = subprocess.Popen(
            [*COMMAND, "chat", *arguments],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env=build_environment(**variables),
            start_new_session=True,
        )
        os.close(terminal)

    def read_until(self, text: str) -> str:
        seen = b""
        while text.encode() not in seen:
            ready, _, _ = select.select([self._controller], [], [], 60)
            assert ready, f"no {text!r} after {seen!r}"
            seen += os.read(self._controller, 1024)
        return seen.decode().replace("\r\n", "\n")

    def interrupt(self) -> None:
        """Press Ctrl-C until the chat answers: readline loses a signal that comes just
        before it waits for a key.
        """
        for _ in range(60):
            self.process.send_signal(signal.SIGINT)
            if select.select([self._controller], [], [], 0.5)[0]:
                return
        raise AssertionError("the chat does not answer to SIGINT")

    def type(self, text: str) -> None:
        os.write(self._controller, text.encode())

    def close(self) -> int:
        self.type("\x04")
        code = self.process.wait(60)
        os.close(self._controller)
        return code


def test_chat_terminal_shows_prompt_and_dim_reasoning(url: str):
    terminal = Terminal(url, NO_COLOR="", TERM="xterm")
    assert f"scripted at {url}" in terminal.read_until("> ")
    terminal.type("[[think Hm.]] [[say Five.]]\n")
    output = terminal.read_until("\n> ")
    assert "\x1b[2mThinking: Hm.\x1b[0m\nFive.\n" in output.replace("\x1b[0m\x1b[2m", "")
    terminal.interrupt()
    assert "Ctrl-D or /exit ends the chat" in terminal.read_until("> ")
    assert terminal.close() == 0


def test_chat_terminal_strips_control_characters(tmp_path: Path):
    (tmp_path / "script.yaml").write_text('- {reply: "a\\e[31mb", repeat: true}\n')
    with serve_app(create_app(f"scripted:{tmp_path / 'script.yaml'}", store="none")) as url:
        assert run_command("chat", url, stdin="Hi\n").stdout == "a\x1b[31mb\n"
        terminal = Terminal(url, TERM="xterm")
        terminal.read_until("> ")
        terminal.type("Hi\n")
        assert "Hi\na[31mb\n" in terminal.read_until("\n> ")
        assert terminal.close() == 0
