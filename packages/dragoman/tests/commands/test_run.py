"""`dragoman run` in a separate process: one answer to a prompt from the arguments, from
a pipe, or both.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Generator
from pathlib import Path

import pytest

from dragoman import create_app
from tests.loopback import serve_app

from .processes import read_until, run_command, start_command


@pytest.fixture(scope="module")
def url() -> Generator[str]:
    with serve_app(create_app("scripted", store="none")) as url:
        yield url


def test_run_prints_answer_of_embedded_model():
    done = run_command("run", "tiny", "What is the capital", "of Japan?", "--temperature", "0")
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        "The capital of Japan is Tokyo.\n",
        "",
    )


def test_run_json_prints_full_response():
    done = run_command(
        "run", "tiny", "--json", "--max-tokens", "2", "--system", "Be brief.", stdin="Hello\n"
    )
    response = json.loads(done.stdout)
    assert (done.returncode, response["choices"][0]["finish_reason"]) == (0, "length")
    assert response["usage"]["completion_tokens"] == 2


def test_run_schema_constrains_answer(tmp_path: Path):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    (tmp_path / "s.json").write_text(json.dumps(schema | {"additionalProperties": False}))
    done = run_command("run", "tiny", "--schema", "s.json", "A number?", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert isinstance(json.loads(done.stdout)["n"], int)


@pytest.mark.parametrize("as_option", [True, False])
def test_run_with_url_uses_running_server(url: str, as_option: bool):
    arguments = ["scripted", "--url", f"{url}/v1/"] if as_option else [url]
    done = run_command("run", *arguments, "[[think Hm.]] [[say Hi.]]")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Hi.\n", "")


def test_run_stdin_precedes_prompt_argument(url: str):
    # Each of the two directives emits its part, in the order of the prompt.
    done = run_command("run", url, "[[say second]]", stdin="[[say first]]\n")
    assert done.stdout == "firstsecond\n"


@pytest.mark.parametrize(
    ("prompt", "printed", "reported"),
    [
        ("[[error 429 too many]]", "", "Error: too many (HTTP 429)\n"),
        ("[[say So far]] [[error 500 out of memory]]", "So far\n", "Error: out of memory\n"),
    ],
)
def test_run_failure_exits_1_with_error(url: str, prompt: str, printed: str, reported: str):
    done = run_command("run", url, prompt)
    assert (done.returncode, done.stdout, done.stderr) == (1, printed, reported)
    done = run_command("run", url, "--json", prompt)
    assert (done.returncode, done.stdout) == (1, "")
    assert reported.removesuffix("\n").partition(" (")[0] in done.stderr


def test_run_incomplete_answer_prints_warning(url: str):
    done = run_command("run", url, "[[say One two]] [[finish length]]")
    assert (done.returncode, done.stdout) == (0, "One two\n")
    assert done.stderr == "Warning: the answer is incomplete (finish_reason: length)\n"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["tiny"], "no prompt: pass it after MODEL"),
        (["tinny", "Hi"], "did you mean `tiny`?"),
        (["tiny", "--url", "{url}", "Hi"], "has no model 'tiny'; it has scripted"),
        (["http://127.0.0.1:1", "Hi"], "no server answers at http://127.0.0.1:1"),
        (["tiny", "--schema", "absent.json", "Hi"], "absent.json: No such file"),
    ],
)
def test_run_invalid_request_exits_2(url: str, arguments: list[str], why: str):
    done = run_command("run", *(argument.format(url=url) for argument in arguments))
    assert (done.returncode, done.stdout) == (2, "")
    assert why in done.stderr
    assert "Traceback" not in done.stderr


def test_run_sends_api_key_from_environment():
    with serve_app(create_app("scripted", store="none", api_key=("k1", "k2"))) as url:
        assert run_command("run", url, "[[say Hi.]]").returncode == 2
        assert run_command("run", url, "[[say Hi.]]", DRAGOMAN_API_KEY="k2").stdout == "Hi.\n"
        assert (
            run_command("run", url, "[[say Hi.]]", "--api-key", "k1", DRAGOMAN_API_KEY="x").stdout
            == "Hi.\n"
        )


def test_run_applies_environment_settings_to_started_server():
    done = run_command(
        "run",
        "tiny",
        "Hello",
        DRAGOMAN_MAX_MODEL_LEN="8",
        DRAGOMAN_API_KEY="k",
        DRAGOMAN_UDS="/absent",
    )
    assert done.returncode == 1
    assert "8 tokens" in done.stderr


def test_run_ctrl_c_exits_130(url: str):
    with start_command("run", url, "[[say one]] [[delay 60]] [[say two]]") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        read_until(process.stdout, "one")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
