"""The page at /ui in Chromium: every view, by mouse and keyboard, without a browser
error.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.pictures import png

from .devtools import BROWSER, Page, PageError
from .page_servers import Servers

pytestmark = [pytest.mark.clients, pytest.mark.skipif(BROWSER is None, reason="needs Chromium")]

VIEWS = ("Chat", "Tokens", "Wire", "Server", "Simulator")
DIALECTS = ("chat", "responses", "messages", "ollama")
ASK = ".composer textarea"
BOTH_ANSWERED = (
    "[...document.querySelectorAll('.columns .meta')].filter((one) => "
    "one.textContent.includes('total')).length === 2"
)


def open_view(page: Page, address: str, view: str = "chat") -> None:
    page.open(f"{address}/ui#{view}")
    page.wait("document.querySelector('#panel > *')")
    page.wait("document.querySelectorAll('[role=tab]').length === 5")


def set_up(page: Page, address: str, **settings: Any) -> None:
    """Open the chat with these settings, with models listed."""
    page.open(f"{address}/ui")
    page.evaluate(
        f"localStorage.setItem('dragoman.settings', JSON.stringify({json.dumps(settings)}))"
    )
    page.open(f"{address}/ui?again")
    page.wait("document.querySelector('.bar select')?.value")


def ask(page: Page, text: str) -> str:
    """Send a message, and return the complete answer's text."""
    before = page.evaluate("document.querySelectorAll('.turn > .meta').length")
    page.fill(ASK, text)
    page.press("Enter")
    page.wait(f"document.querySelectorAll('.turn > .meta').length > {before}")
    return page.evaluate(
        "[...document.querySelectorAll('.turn')].at(-1).querySelector('.body').innerText"
    )


TOOLS = json.dumps(
    [
        {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        }
    ]
)


def test_ui_chat_streams_tool_call_and_result(page: Page, servers: Servers):
    address = servers.start("tiny")
    set_up(page, address, temperature="0")
    page.click("summary", "Tools")
    page.click("details[open] button", "Insert an example")
    page.wait("document.querySelector('details[open] [role=status]').textContent === 'Valid.'")
    assert "get_weather" in ask(page, "What is the weather in Rome?")
    assert json.loads(page.text(".call pre")) == {"city": "Rome"}
    page.fill("form.group .code", "Sunny, 24 degrees.")
    page.click("button", "Send result")
    page.wait("document.querySelectorAll('.turn > .meta').length === 2")
    answer = page.evaluate(
        "[...document.querySelectorAll('.turn')].at(-1).querySelector('.text').innerText"
    )
    assert answer
    roles = page.evaluate("[...document.querySelectorAll('.turn')].map((turn) => turn.ariaLabel)")
    assert roles == ["You", "Answer", "Tool result", "Answer"]
    assert "Answer: " in page.text(".main > [role=status]"), "for screen readers"


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_ui_dialect_shows_reasoning_tool_calls_and_results(
    page: Page, servers: Servers, dialect: str, stream: bool
):
    settings = {"temperature": "0", "dialect": dialect, "stream": stream}
    set_up(page, servers.start("tiny"), **settings, effort="high")
    assert "17 + 26 = 43." in ask(page, "What is 17 + 26?")
    assert page.text(".reasoning pre").startswith("I need to add 17 and 26.")
    facts = page.evaluate(
        "[...document.querySelectorAll('.turn .meta span')].map((one) => one.textContent).join()"
    )
    assert "20 prompt tokens" in facts
    assert "33 tokens" in facts
    set_up(page, servers.start("tiny"), **settings, tools=TOOLS)
    page.click("button", "New conversation")
    assert "get_weather" in ask(page, "What is the weather in Rome?")
    assert json.loads(page.text(".call pre")) == {"city": "Rome"}
    page.fill("form.group .code", "Sunny.")
    page.click("button", "Send result")
    page.wait("document.querySelectorAll('.turn > .meta').length === 2")
    assert page.evaluate("document.querySelectorAll('.error').length") == 0


@pytest.mark.parametrize("dialect", DIALECTS)
def test_ui_output_schema_constrains_answer(page: Page, servers: Servers, dialect: str):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    set_up(
        page,
        servers.start("tiny"),
        dialect=dialect,
        schema=json.dumps(schema),
        temperature="0",
        maxTokens="60",
    )
    assert isinstance(json.loads(ask(page, "Give me a number."))["n"], int)


def test_ui_invalid_tool_or_schema_is_reported_before_request(page: Page, servers: Servers):
    set_up(page, servers.start("tiny"))
    page.click("summary", "Tools")
    page.fill("[aria-label='Tools, as JSON']", '[{"description": "nameless"}]')
    page.wait(
        "document.querySelector('details[open] [role=status]').textContent === 'Tool 1 has no "
        "name.'"
    )
    assert (
        page.evaluate(
            "document.querySelector('details[open] textarea').getAttribute('aria-invalid')"
        )
        == "true"
    )
    page.fill(ASK, "Hello")
    page.press("Enter")
    assert "Tool 1 has no name." in page.wait("document.querySelector('.error')?.textContent")
    assert not [url for url in page.requested if url.endswith("/completions")]


def test_ui_edit_and_retry_create_branches(page: Page, servers: Servers):
    set_up(page, servers.start("tiny"), temperature="0")
    assert ask(page, "What is 17 + 26?") == "17 + 26 = 43."
    page.click("button", "Regenerate")
    page.wait("document.body.innerText.includes('2/2') && document.querySelector('.turn > .meta')")
    page.click("button", "Edit")
    page.fill("[aria-label='Edit message']", "What is the capital of Japan?")
    page.click("button", "Send as a new branch")
    page.wait(
        "document.querySelector('.turn > .meta') && document.body.innerText.includes('Tokyo')"
    )
    assert "17 + 26 = 43" not in page.evaluate("document.querySelector('.log').innerText")
    page.click("[aria-label='Previous branch']")
    page.wait("document.querySelector('.log').innerText.includes('17 + 26 = 43')")
    page.open(page.evaluate("location.origin") + "/ui?later")
    page.wait("document.querySelector('.log').innerText.includes('17 + 26 = 43')")
    page.click("[aria-label='Next branch']")
    page.wait("document.querySelector('.log').innerText.includes('Tokyo')")
    page.click("button", "New conversation")
    page.wait("!document.querySelector('.turn') && document.querySelector('.empty')")
    assert page.evaluate("document.querySelectorAll('.chats li').length") == 2


def test_ui_stop_aborts_generation(page: Page, servers: Servers):
    address = servers.start("sim --sim-output-tokens 4000 --data-parallel-size 2")
    set_up(page, address)
    for stop in (lambda: page.press("Escape"), lambda: page.click("button", "Stop")):
        page.click("button", "New conversation")
        page.fill(ASK, "Count.")
        page.press("Enter")
        page.wait("[...document.querySelectorAll('.turn .text')].at(-1).textContent.length > 20")
        stop()
        page.wait("document.querySelector('.turn > .meta')?.textContent.includes('stopped')")
        page.wait("!document.querySelector('.composer .primary').hidden")
    idle = (
        "(await (await fetch('metrics')).text()).match(/num_requests_running\\{.*\\} "
        "0.0/g)?.length === 2"
    )
    page.evaluate(
        f"(async () => {{ while (!({idle})) await new Promise((go) => setTimeout(go, 20)); }})()"
    )


@pytest.mark.parametrize("dialect", DIALECTS)
def test_ui_truncated_stream_shows_error(page: Page, servers: Servers, dialect: str):
    set_up(page, servers.start("tiny"), dialect=dialect, temperature="0", logprobs=False)
    page.evaluate(
        "(() => { const real = fetch; fetch = async (url, options) => {"
        "const response = await real(url, options); if (options.method !== 'POST') return response;"
        "const text = await response.text();"
        "return new Response(text.slice(0, text.length / 2), {headers: response.headers}); }; })()"
    )
    assert ask(page, "What is the capital of Japan?").startswith("The capital")
    assert page.text(".turn .error") == "ErrorThe stream ended before the answer."


def test_ui_reopened_conversation_scrolls_to_end(page: Page, servers: Servers):
    set_up(page, servers.start("scripted --directives"), logprobs=False)
    ask(page, f'[[say "{"word " * 2000}"]]')
    for view in ("Wire", "Chat"):
        page.click("[role=tab]", view)
    page.wait(
        "(({scrollTop, scrollHeight, clientHeight}) => scrollHeight - clientHeight - scrollTop < "
        "2 && scrollTop > 0)"
        "(document.querySelector('.log'))"
    )


def test_ui_model_output_is_rendered_as_text(page: Page, servers: Servers):
    address = servers.start("scripted --directives")
    set_up(page, address, logprobs=False)
    evil = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    assert ask(page, f"[[say {json.dumps(evil)}]]").strip() in (evil, json.dumps(evil))
    assert page.evaluate("document.querySelectorAll('main img, main script').length") == 0
    fenced = "Look:\\n```python\\nprint('<b>')\\n```\\nDone."
    ask(page, f'[[say "{fenced}"]]')
    for markup in ("document.body.innerHTML = '<p>'", "document.write('x')"):
        with pytest.raises(PageError, match=r"Trusted|Content Security Policy|assignment"):
            page.evaluate(markup)
    # The CSP reported exactly these, each in two ways.
    page.evaluate("new Promise((go) => setTimeout(go, 100))")
    assert all("trusted" in complaint.lower() for complaint in page.complaints)
    page.complaints.clear()


def test_ui_image_is_sent_and_displayed(page: Page, servers: Servers, tmp_path: Path):
    (tmp_path / "red.png").write_bytes(png(8, 6))
    for dialect in DIALECTS:
        set_up(
            page, servers.start("sim --sim-image-tokens 16 --sim-output-tokens 5"), dialect=dialect
        )
        page.click("button", "New conversation")
        root = page.call("DOM.getDocument")["root"]["nodeId"]
        node = page.call("DOM.querySelector", nodeId=root, selector=".composer input[type=file]")[
            "nodeId"
        ]
        page.call("DOM.setFileInputFiles", nodeId=node, files=[str(tmp_path / "red.png")])
        page.wait("document.querySelector('.preview canvas')?.width === 8")
        ask(page, "What is this?")
        assert page.evaluate("document.querySelectorAll('.error').length") == 0
        # It is shown after it has been decoded.
        page.wait("document.querySelector('.turn canvas').height === 6")


def test_ui_tokens_view_shows_prompt_and_answer_tokens(page: Page, servers: Servers):
    set_up(page, servers.start("tiny"), temperature="0")
    ask(page, "What is 17 + 26?")
    page.click("button", "Tokens")
    page.wait("document.querySelectorAll('.tokens').length === 2")
    prompt, answer = page.evaluate(
        "[...document.querySelectorAll('.tokens')].map((one) => one.textContent)"
    )
    assert prompt == "<|im_start|>user↵\nWhat is 17 + 26?<|im_end|>↵\n<|im_start|>assistant↵\n"
    assert answer == "17 + 26 = 43.<|im_end|>"
    control = "[...document.querySelectorAll('.tokens .control')].map((one) => one.textContent)"
    assert set(page.evaluate(control)) == {"<|im_start|>", "<|im_end|>"}
    levels = (
        "[...document.querySelectorAll('.tokens')[1].children].map((one) => "
        "/p[0-5]/.exec(one.className)?.[0])"
    )
    assert page.evaluate(levels)[:3] == ["p0", "p0", "p0"]
    page.click(".tokens[aria-label='Tokens of the answer'] .tok", "4")
    detail = page.evaluate("document.querySelector('.detail').innerText")
    assert "Logprob" in detail
    assert "Alternatives" in detail
    assert page.evaluate("document.querySelectorAll('.detail tr').length") == 5
    # Arrow keys move on, and Tab leaves the tokens.
    page.press("ArrowRight")
    page.wait(
        "document.activeElement.textContent === '3' && document.activeElement.ariaSelected === "
        "'true'"
    )
    page.press("End")
    page.wait("document.activeElement.textContent === '<|im_end|>'")
    assert "control token" in page.text(".detail")
    # The same prompt again: all but its end comes from the cache, as the view shows.
    page.click("[role=tab]", "Chat")
    page.click("button", "Regenerate")
    page.wait("document.body.innerText.includes('2/2') && document.querySelector('.turn > .meta')")
    page.click("button", "Tokens")
    page.wait("document.querySelector('.tokens .cached')")
    cached = page.evaluate("document.querySelectorAll('.tokens .cached').length")
    assert f"{cached} from the cache" in page.text(".split h2")


def test_ui_tokens_view_supports_lazily_loaded_model(page: Page, servers: Servers, tmp_path: Path):
    (tmp_path / "models.yaml").write_text("models:\n  lazy: {model: tiny}\n")
    set_up(page, servers.start(f"--config {tmp_path / 'models.yaml'}"), temperature="0")
    assert ask(page, "Hello")
    page.click("button", "Tokens")
    page.click("button", "Ask again with log-probabilities")
    page.wait("document.querySelectorAll('.tokens').length === 2")
    page.click("[role=tab]", "Chat")
    assert ask(page, "What is 17 + 26?")
    page.click(".turn:last-child button", "Tokens")
    page.wait("document.querySelectorAll('.tokens')[1].querySelector('.p0, .p1, .p2')")


@pytest.mark.parametrize("dialect", ["responses", "messages", "ollama"])
def test_ui_tokens_view_supports_other_dialects(page: Page, servers: Servers, dialect: str):
    """The prompt is explained; ids and log-probabilities come from Chat Completions
    where the dialect has none.
    """
    set_up(page, servers.start("tiny"), temperature="0", dialect=dialect)
    ask(page, "What is 17 + 26?")
    page.click("button", "Tokens")
    page.wait("document.querySelector('.tokens')?.textContent.startsWith('<|im_start|>user')")
    if dialect == "messages":
        page.click("button", "Ask again with log-probabilities")
    page.wait("document.querySelectorAll('.tokens')[1]?.textContent.startsWith('17 + 26 = 43.')")
    assert page.evaluate("document.querySelectorAll('.tokens .p0').length") > 4


def test_ui_wire_view_compares_two_dialects(page: Page, servers: Servers):
    set_up(page, servers.start("tiny"), temperature="0")
    page.click("[role=tab]", "Wire")
    page.fill(".card textarea", "What is the capital of Japan?")
    page.click("button", "Send to both")
    page.wait(BOTH_ANSWERED)
    answers = page.evaluate(
        "[...document.querySelectorAll('.columns .text')].map((one) => one.textContent)"
    )
    assert answers == ["The capital of Japan is Tokyo."] * 2
    left, right = page.evaluate(
        "[...document.querySelectorAll('.columns .events')].map((one) => "
        "[...one.querySelectorAll('b')].map((name) => name.textContent))"
    )
    # A comment is a keepalive on a busy machine, like Anthropic's ping.
    assert set(left) - {"comment"} == {"chat.completion.chunk", "data"}
    assert [name for name in right if name not in ("ping", "content_block_delta")] == [
        *(
            "message_start",
            "content_block_start",
            "content_block_stop",
            "message_delta",
            "message_stop",
        )
    ]
    times = page.evaluate(
        "[...document.querySelectorAll('.events .num')].map((one) => one.textContent)"
    )
    assert all(time.endswith(("µs", "ms", "s")) for time in times)
    page.click(".columns section:nth-child(2) .events summary")
    page.wait(
        "JSON.parse(document.querySelector('section:nth-child(2) .events details[open] "
        "pre').textContent).type"
    )


def test_ui_wire_view_of_failed_stream_shows_text_and_error(page: Page, servers: Servers):
    set_up(page, servers.start("scripted --directives"), logprobs=False)
    page.click("[role=tab]", "Wire")
    page.fill(".card textarea", '[[say "one two three"]] [[error 500 <b>broken</b> pipe]]')
    page.click("button", "Send to both")
    page.wait("document.querySelectorAll('.columns .error').length === 2")
    for part, expected in ((".text", "one two three"), (".error div", "<b>broken</b> pipe")):
        texts = page.evaluate(
            f"[...document.querySelectorAll('.columns {part}')].map((one) => one.innerText)"
        )
        assert texts == [expected] * 2


def test_ui_code_examples_run_and_print_answer(page: Page, servers: Servers):
    """The copied programs, run unchanged against the server's address, print the
    answer.
    """
    set_up(
        page,
        servers.start("tiny"),
        temperature="0",
        topK="3",
        seed="7",
        stop="xyz",
        tools=TOOLS,
        stream=False,
    )
    page.click("[role=tab]", "Wire")
    page.fill(".card textarea", "What is the capital of Japan?")
    node = shutil.which("node")
    for dialect, languages in {
        "chat": ("curl", "openai", "javascript"),
        "responses": ("curl", "openai", "javascript"),
        "messages": ("curl", "anthropic", "javascript"),
        "ollama": ("curl", "javascript"),
    }.items():
        page.choose(".columns section select", dialect)
        page.click("button", "Send to both")
        page.wait("document.querySelector('.columns .meta')?.textContent.includes('total')")
        page.wait("document.querySelector('.card .danger').hidden")
        for language in languages:
            page.choose(".columns section .spread select", language)
            program = page.text(".columns section > pre:last-child")
            runner = {
                "curl": ["bash", "-c"],
                "javascript": [str(node), "--input-type=module", "-e"],
            }
            if language == "javascript" and node is None:
                continue
            command = [*runner.get(language, [sys.executable, "-c"]), program]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            assert "Tokyo" in done.stdout, (program, done.stdout, done.stderr)
        page.choose(".columns section .spread select", "anthropic" if dialect == "chat" else "curl")
    page.choose(".columns section select", "chat")
    page.choose(".columns section .spread select", "ollama")
    assert "choose that API" in page.text(".columns section > pre:last-child")


def test_ui_code_example_quotes_python_keywords_as_strings(page: Page, servers: Servers):
    """A text such as "true" must not become a boolean. Without HTTPS, a browser has no
    Clipboard API.
    """
    set_up(page, servers.start("tiny"), system="true", temperature="0")
    page.evaluate(
        "Object.defineProperty(navigator, 'clipboard', { value: undefined, configurable: true })"
    )
    page.click("[role=tab]", "Wire")
    page.fill(".card textarea", "None")
    page.click("button", "Send to both")
    page.wait(BOTH_ANSWERED)
    page.choose(".columns section .spread select", "openai")
    program = page.text(".columns section > pre:last-child")
    assert '"content": "true"' in program
    assert "stream=True" in program
    page.evaluate(
        "document.body.append(Object.assign(document.createElement('textarea'), { id: 'paste' }))"
    )
    page.click(".columns section > .spread button", "Copy")
    page.wait(
        "document.querySelector('.columns section > .spread button').textContent === 'Copied'"
    )
    page.evaluate("document.querySelector('#paste').focus()")
    page.call(
        "Input.dispatchKeyEvent",
        type="keyDown",
        key="v",
        code="KeyV",
        modifiers=2,
        commands=["paste"],
    )
    page.wait("document.querySelector('#paste').value")
    assert page.evaluate("document.querySelector('#paste').value") == program


def test_ui_server_view_updates_charts(page: Page, servers: Servers):
    address = servers.start("sim --sim-output-tokens 4000 --data-parallel-size 2")
    open_view(page, address, "server")
    page.wait(
        "document.querySelectorAll('figure').length === 4 && document.querySelectorAll('tbody "
        "tr').length > 0"
    )
    assert "loaded" in page.text(".models")
    samples = (
        "Number(/(\\d+) samples/.exec(document.querySelectorAll('figcaption')[3].textContent)[1])"
    )
    before = page.evaluate(samples)
    body = {"prompt": "Hello", "max_tokens": 300, "ignore_eos": True, "n": 4, "no_such_field": 1}
    with httpx2.Client(base_url=address, trust_env=False, timeout=60) as client:
        asking = threading.Thread(
            target=lambda: client.post("/v1/completions", json=body, timeout=60)
        )
        asking.start()
        page.wait("document.querySelector('.tile strong').textContent === '4'")
        page.wait("Number(document.querySelectorAll('.tile strong')[2].textContent) > 20")
        page.wait(f"{samples} > {before}")
        page.wait(
            "document.querySelectorAll('polyline')[0].getAttribute('points').split(' ').length > 2"
        )
        page.wait("document.querySelector('.requests').textContent.includes('running')")
        asking.join()
        client.post("/v1/completions", json={"prompt": "x", "max_tokens": -7})
    page.wait("document.querySelector('.requests .warning')?.textContent.includes('no_such_field')")
    page.wait("document.querySelector('.tile strong').textContent === '0'")
    assert page.evaluate("document.querySelectorAll('figure rect').length") > 8


def test_ui_server_view_loads_and_unloads_models(page: Page, servers: Servers, tmp_path: Path):
    (tmp_path / "models.yaml").write_text(
        "models:\n  first: {model: tiny}\n  second: {model: tiny, pinned: true}\n"
    )
    open_view(page, servers.start(f"--config {tmp_path / 'models.yaml'}"), "server")
    row = "document.querySelector('.models tbody tr')"
    page.wait(f"{row}?.textContent.includes('unloaded')")
    page.click(".models button", "Load")
    page.wait(f"{row}.querySelector('.state').textContent === 'loaded'")
    page.click(".models tr:first-child button", "Unload")
    page.wait(f"{row}.querySelector('.state').textContent === 'unloaded'")


def test_ui_simulator_view_controls_replicas_faults_and_time(page: Page, servers: Servers):
    address = servers.start("sim --sim-output-tokens 4000 --data-parallel-size 2")
    open_view(page, address, "simulator")
    page.wait("document.querySelectorAll('figure').length === 4")
    with httpx2.Client(base_url=address, trust_env=False, timeout=60) as client:
        page.choose(".columns select", "A fifth is rejected with 429")
        page.click("[role=switch]", "Faults are off")
        page.wait("document.querySelector('[role=switch]').ariaChecked === 'true'")
        (fault,) = client.get("/dragoman/faults").json()
        assert (fault["status"], fault["probability"]) == (429, 0.2)
        page.click("[role=switch]", "Faults are on")
        page.wait("document.querySelector('[role=switch]').ariaChecked === 'false'")
        assert client.get("/dragoman/faults").json() == []
        page.fill(".columns textarea", '[{"status": "no"}]')
        page.click("[role=switch]")
        client.post("/v1/completions", json={"prompt": "Hello", "max_tokens": 20})
        page.wait("document.querySelector('.charts .meta').textContent.match(/[1-9]\\d* steps/)")
        page.click("button", "×100")
        page.wait("document.querySelectorAll('.tile strong')[4].textContent === '×100'")
        assert client.get("/dragoman/simulator").json()["data"][0]["time_scale"] == 100
        page.click("button", "×1")
        page.wait("document.querySelectorAll('.tile strong')[4].textContent === '×1'")
    # The server rejected the invalid plan, which the browser logs.
    assert [text for text in page.complaints if "400" not in text] == []
    page.complaints.clear()


def test_ui_simulator_view_links_instances(page: Page, servers: Servers):
    open_view(page, servers.start("sim --instances 2"), "simulator")
    page.wait("document.querySelectorAll('.ports a').length === 2")
    links = page.evaluate("[...document.querySelectorAll('.ports a')].map((one) => one.href)")
    assert page.evaluate("location.href") in links
    other = next(link for link in links if link != page.evaluate("location.href"))
    page.open(other)
    page.wait("document.querySelectorAll('.ports a').length === 2")


def test_ui_without_simulator_hides_simulator_tab(page: Page, servers: Servers):
    open_view(page, servers.start("tiny"))
    page.wait("document.querySelector('#tab-simulator').hidden")


def test_ui_with_auth_asks_for_key(page: Page, servers: Servers):
    address = servers.start("tiny --api-key user --admin-api-key root")
    page.open(address)
    page.wait("location.pathname === '/ui' && document.querySelector('dialog').open")
    page.type("wrong")
    page.press("Enter")
    page.wait(
        "!document.querySelector('dialog').open || document.querySelector('#key-input').value === "
        "''"
    )
    page.wait("document.querySelector('dialog').open")
    page.wait(
        "document.querySelector('dialog [role=alert]').textContent === 'The server rejects this "
        "key.'"
    )
    page.fill("#key-input", "user")
    page.press("Enter")
    page.wait("document.querySelector('.bar select')?.value === 'tiny'")
    assert page.text("#key-button") == "Key set"
    assert ask(page, "Hello")
    page.click("[role=tab]", "Server")
    page.wait("document.querySelector('.requests').textContent.includes('administrator')")
    page.click("#key-button")
    page.wait("document.querySelector('dialog').open")
    page.fill("#key-input", "root")
    page.press("Enter")
    page.wait("document.querySelector('.requests tbody')")
    storage = page.evaluate(
        "[JSON.stringify({...sessionStorage}), JSON.stringify({...localStorage}), document.cookie]"
    )
    assert (json.loads(storage[0])["dragoman.key"], "root" in storage[1], storage[2]) == (
        "root",
        False,
        "",
    )
    page.click("[role=tab]", "Wire")
    program = page.text(".columns section > pre:last-child")
    assert "$DRAGOMAN_API_KEY" in program
    assert "root" not in program
    page.click("#key-button")
    page.click("button", "Forget the key")
    page.wait("sessionStorage.length === 0 && document.querySelector('dialog').open")
    # The browser itself logs every 401 and 403.
    assert [
        text
        for text in page.complaints
        if "(Unauthorized)" not in text and "(Forbidden)" not in text
    ] == []
    page.complaints.clear()


def test_ui_is_operable_with_keyboard(page: Page, servers: Servers):
    address = servers.start("sim --sim-output-tokens 4000 --data-parallel-size 2")
    open_view(page, address)
    page.press("Tab")
    page.evaluate("document.querySelector('#tab-chat').focus()")
    for view in VIEWS[1:]:
        page.press("ArrowRight")
        page.wait(f"document.querySelector('[aria-selected=true]').textContent === '{view}'")
        page.wait(f"document.activeElement.textContent === '{view}'")
    page.press("ArrowRight")
    page.wait("document.activeElement.textContent === 'Chat'")
    # Tab reaches every control once, but only the selected tab.
    page.press("Tab")
    assert page.evaluate("document.activeElement.id") == "key-button"
    page.press("Enter")
    page.wait("document.querySelector('dialog').open && document.activeElement.id === 'key-input'")
    page.press("Escape")
    page.wait(
        "!document.querySelector('dialog').open && document.activeElement.id === 'key-button'"
    )
    seen: list[str] = []
    for _ in range(30):
        page.press("Tab")
        seen.append(
            page.evaluate("document.activeElement.ariaLabel || document.activeElement.textContent")
        )
    assert {"New conversation", "Search conversations", "Chats", "Model"} <= set(seen)
    assert {"Second model", "Settings", "Conversation", "Message", "Send", "Sampling"} <= set(seen)


def test_ui_controls_have_accessible_names(page: Page, servers: Servers):
    address = servers.start("sim --sim-output-tokens 4000 --data-parallel-size 2")
    set_up(page, address, temperature="0", tools=TOOLS, maxTokens="40")
    ask(page, "What is the weather in Rome?")
    for view in VIEWS:
        page.click("[role=tab]", view)
        page.wait("document.querySelector('#panel > *')")
        if view in ("Server", "Simulator"):
            page.wait("document.querySelectorAll('figure').length === 4")
        page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
        nodes = page.call("Accessibility.getFullAXTree")["nodes"]
        roles = {
            "button",
            "textbox",
            "combobox",
            "checkbox",
            "spinbutton",
            "tab",
            "listbox",
            "option",
            "image",
        }
        roles |= {"switch", "meter"}
        nameless = [
            node["role"]["value"]
            for node in nodes
            if not node.get("ignored")
            and node["role"]["value"] in roles
            and not node.get("name", {}).get("value")
        ]
        assert nameless == [], view


def test_ui_on_phone_has_no_horizontal_overflow(page: Page, servers: Servers):
    page.resize(360, 740, mobile=True)
    address = servers.start("sim --sim-output-tokens 4000 --data-parallel-size 2")
    set_up(page, address, maxTokens="40", tools=TOOLS, seed="1")
    ask(page, "A long word: " + "x" * 300)
    for view in VIEWS:
        page.click("[role=tab]", view)
        page.wait("document.querySelector('#panel > *')")
        if view in ("Server", "Simulator"):
            page.wait("document.querySelectorAll('figure').length === 4")
        if view == "Wire":
            page.click("button", "Send to both")
            page.wait("document.querySelectorAll('.events li').length > 10")
        assert page.evaluate("document.documentElement.scrollWidth") == 360, view
        wide = (
            "[...document.querySelectorAll('main *')].filter((one) => "
            "one.getBoundingClientRect().right > 361"
            " && !one.closest('.scroll, .events, svg, .hidden'))"
        )
        assert page.evaluate(f"{wide}.map((one) => one.outerHTML.slice(0, 80))") == [], view
    page.click("[role=tab]", "Chat")
    assert not page.evaluate("document.querySelector('#settings').checkVisibility()")
    page.click("button", "Settings")
    page.wait("document.querySelector('#settings').checkVisibility()")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_ui_text_meets_contrast_ratio(page: Page, servers: Servers, dark: bool):
    """At least 4.5 to 1, as WCAG 2.2 asks of text: text and muted text on each surface,
    the accent and the errors.
    """
    page.resize(1280, 800, dark=dark)
    open_view(page, servers.start("tiny"))
    script = """
    (() => {
      const probe = document.body.appendChild(document.createElement("div"));
      const context = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
      const read = (name) => {
        probe.style.color = `var(--${name})`;
        context.fillStyle = getComputedStyle(probe).color;
        context.fillRect(0, 0, 1, 1);
        const [r, g, b] = [...context.getImageData(0, 0, 1, 1).data].map((value) => {
          const share = value / 255;
          return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const ratio = (one, two) => {
        const [low, high] = [read(one), read(two)].sort((a, b) => a - b);
        return (high + 0.05) / (low + 0.05);
      };
      const pairs = [["accent", "tint"], ["bg", "accent"]];
      for (const front of ["text", "muted", "accent", "bad", "warn"])
        for (const back of ["bg", "soft", "raised"]) pairs.push([front, back]);
      return Object.fromEntries(
        pairs.map(([front, back]) => [`${front} on ${back}`, ratio(front, back)]));
    })()
    """
    assert {pair: ratio for pair, ratio in page.evaluate(script).items() if ratio < 4.5} == {}
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(16, 19, 22)" if dark else "rgb(255, 255, 255)")


def test_page_screenshot_returns_png(page: Page, servers: Servers):
    open_view(page, servers.start("tiny"))
    assert base64.b64encode(page.screenshot()).startswith(b"iVBOR")
