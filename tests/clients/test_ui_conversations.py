"""Conversations of the page at /ui in Chromium: kept, found, exported, attached to,
compared and continued.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.pictures import png

from .devtools import BROWSER, Page
from .page_servers import Servers
from .test_ui import ASK, DIALECTS, ask, set_up

pytestmark = [pytest.mark.clients, pytest.mark.skipif(BROWSER is None, reason="needs Chromium")]

SCRIPTED = "scripted --directives"
TITLES = "[...document.querySelectorAll('.chat-title span')].map((one) => one.textContent)"
MCP_SERVER = (
    Path(__file__).parents[2] / "packages" / "dragoman" / "tests" / "tools" / "official_server.py"
)
FILE: dict[str, Any] = {
    "format": "dragoman.conversations",
    "version": 1,
    "conversations": [
        {
            "name": "Imported",
            "nodes": [
                {"id": "a", "parent": None, "role": "user", "text": "Question?"},
                {
                    "id": "b",
                    "parent": "a",
                    "role": "assistant",
                    "model": "m",
                    "dialect": "messages",
                    "reply": {"text": "An **answer**.", "calls": [], "warnings": [3]},
                },
            ],
        }
    ],
}


def choose_file(page: Page, selector: str, *files: Path) -> None:
    root = page.call("DOM.getDocument")["root"]["nodeId"]
    node = page.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
    page.call("DOM.setFileInputFiles", nodeId=node, files=[str(file) for file in files])


def read_body(page: Page) -> dict[str, Any]:
    """Return the body of the request of the last answer, as the Wire view shows it."""
    page.click(".turn:last-child button", "Wire")
    page.wait("document.querySelector('.columns details pre')?.textContent")
    body = json.loads(page.text(".columns details pre"))
    page.click("[role=tab]", "Chat")
    return body


def test_conversations_are_found_renamed_and_deleted(page: Page, servers: Servers):
    set_up(page, servers.start(SCRIPTED))
    ask(page, "[[say apples]] fruit")
    page.click("button", "New conversation")
    ask(page, "[[say pears]] other")
    assert page.evaluate(TITLES) == ["[[say pears]] other", "[[say apples]] fruit"]
    page.click("button", "Rename")
    page.fill(".chats input", "Second")
    page.press("Enter")
    page.wait(f"({TITLES})[0] === 'Second'")
    page.fill("[aria-label='Search conversations']", "APPLES fruit")
    page.wait(f"({TITLES}).join() === '[[say apples]] fruit'")
    page.click(".chat-title")
    page.wait("document.querySelector('.log').innerText.includes('apples')")
    page.fill("[aria-label='Search conversations']", "nowhere")
    page.wait("document.querySelector('.chats').innerText.includes('No conversation')")
    page.open(page.evaluate("location.origin") + "/ui?later")
    page.wait("document.querySelector('.bar select')?.value")
    assert page.evaluate(TITLES) == ["Second", "[[say apples]] fruit"]
    page.click("button", "Delete")
    page.click("button", "Delete this?")
    page.wait(f"({TITLES}).join() === 'Second'")
    page.click("button", "Delete all")
    page.click("button", "Delete all 1?")
    page.wait(f"({TITLES}).join() === 'New conversation'")
    assert page.evaluate("document.querySelectorAll('.turn').length") == 0


def test_conversations_export_imports_unchanged(page: Page, servers: Servers, tmp_path: Path):
    set_up(page, servers.start(SCRIPTED))
    ask(page, "[[think hm]] [[say one]]")
    ask(page, '[[tool f {"a": 1}]]')
    page.evaluate(
        "(() => { const real = URL.createObjectURL; URL.createObjectURL = (blob) => {"
        " blob.text().then((text) => (window.exported = text)); return real.call(URL, blob); };"
        " })()"
    )
    page.call("Browser.setDownloadBehavior", behavior="deny")
    page.click("button", "Export all")
    page.wait("window.exported")
    exported = page.evaluate("window.exported")
    before = page.evaluate("document.querySelector('.log').innerText")
    (tmp_path / "file.json").write_text(exported)
    page.click("button", "Delete all")
    page.click("button", "Delete all 1?")
    page.wait("document.querySelector('.empty')")
    choose_file(page, ".history input[type=file]", tmp_path / "file.json")
    page.wait("document.querySelector('.history [role=status]').textContent === '1 imported.'")
    assert page.evaluate("document.querySelector('.log').innerText") == before


def change_node(**fields: Any) -> str:
    chat = FILE["conversations"][0]
    nodes = [chat["nodes"][0], {**chat["nodes"][1], **fields}]
    return json.dumps({**FILE, "conversations": [{**chat, "nodes": nodes}]})


BAD_FILES = (
    ("{", "This file is not JSON."),
    ("null", "no conversations of this page"),
    ('{"messages": []}', 'its "format" is not'),
    (json.dumps({**FILE, "version": 2}), "has version 2; this page reads version 1."),
    (json.dumps({**FILE, "conversations": {}}), '"conversations" is not a list.'),
    (json.dumps({**FILE, "conversations": []}), "This file has no conversations."),
    (json.dumps({**FILE, "conversations": [{}]}), 'Conversation 1: it has no list "nodes".'),
    (change_node(id="a"), 'Conversation 1: message 2 has no "id" of its own.'),
    (change_node(parent="b"), "message 2 does not follow one that stands before it."),
    (change_node(parent=None, role="system"), 'message 2 has the role "system".'),
)


def test_conversations_import_of_bad_file_says_why(page: Page, servers: Servers, tmp_path: Path):
    set_up(page, servers.start(SCRIPTED))
    for text, sentence in BAD_FILES:
        (tmp_path / "file.json").write_text(text)
        choose_file(page, ".history input[type=file]", tmp_path / "file.json")
        status = "document.querySelector('.history [role=status]').textContent"
        page.wait(f"{status}.includes({json.dumps(sentence)})")
    assert page.evaluate(TITLES) == ["New conversation"]


def test_conversations_import_keeps_known_fields_only(page: Page, servers: Servers):
    set_up(page, servers.start(SCRIPTED))
    script = f"""(async () => {{
      const {{ readConversations }} = await import(new URL("ui/transfer.js", document.baseURI));
      return readConversations({json.dumps(change_node(dialect="x", reply=7, evil=1))});
    }})()"""
    (chat,) = page.evaluate(script)
    answer = chat["nodes"][1]
    assert (answer["dialect"], answer["reply"]["text"], "evil" in answer) == ("chat", "", False)


def test_attached_text_is_sent_in_every_api(page: Page, servers: Servers, tmp_path: Path):
    (tmp_path / "notes.txt").write_text("Zürich: 7\n")
    (tmp_path / "data.bin").write_bytes(b"\x00\xff")
    for dialect in DIALECTS:
        set_up(page, servers.start(SCRIPTED), dialect=dialect)
        page.click("button", "New conversation")
        choose_file(
            page, ".composer input[type=file]", tmp_path / "notes.txt", tmp_path / "data.bin"
        )
        page.wait("document.querySelector('.preview')?.textContent.includes('notes.txt')")
        assert page.text(".composer .bad").startswith("data.bin is neither")
        ask(page, "Read it.")
        assert page.text(".turn .file summary") == "notes.txt"
        sent = json.dumps(read_body(page), ensure_ascii=False)
        assert "File notes.txt:\\nZürich: 7" in sent
        assert "Read it." in sent
        assert page.evaluate("document.querySelectorAll('.error').length") == 0


def test_attached_pdf_and_image_need_capable_model(page: Page, servers: Servers, tmp_path: Path):
    (tmp_path / "a.pdf").write_bytes(b"%PDF-1.4\n")
    (tmp_path / "a.png").write_bytes(png(2, 2))
    for dialect, kind in (("chat", "file"), ("responses", "input_file"), ("messages", "document")):
        set_up(page, servers.start(SCRIPTED), dialect=dialect)
        page.click("button", "New conversation")
        choose_file(page, ".composer input[type=file]", tmp_path / "a.pdf", tmp_path / "a.png")
        page.wait("document.querySelectorAll('.preview').length === 2")
        ask(page, "[[say Read.]]")
        assert page.evaluate("document.querySelectorAll('.error').length") == 0
        body = read_body(page)
        content = (body.get("input") or body["messages"])[0]["content"]
        assert [part["type"] for part in content][1] == kind
    set_up(page, servers.start("tiny"))
    choose_file(page, ".composer input[type=file]", tmp_path / "a.pdf", tmp_path / "a.png")
    problem = "document.querySelector('.composer .bad').textContent"
    assert page.wait(f"{problem} && {problem}")
    assert page.evaluate(problem) == (
        "a.pdf: this model takes no PDF files. a.png: this model takes no images."
    )


def test_two_models_answer_side_by_side(page: Page, servers: Servers, tmp_path: Path):
    (tmp_path / "models.yaml").write_text(
        "models:\n  left: {model: tiny}\n  right: {model: tiny}\n"
    )
    address = servers.start(f"--config {tmp_path / 'models.yaml'}")
    set_up(page, address, temperature="0", second="right")
    page.fill(ASK, "What is the capital of Japan?")
    page.press("Enter")
    page.wait("document.querySelectorAll('.compare .meta').length === 2")
    heads = "[...document.querySelectorAll('.compare .head strong')].map((one) => one.textContent)"
    assert page.evaluate(heads) == ["left · Chat Completions", "right · Chat Completions"]
    texts = "[...document.querySelectorAll('.compare .text')].map((one) => one.textContent)"
    assert page.evaluate(texts) == ["The capital of Japan is Tokyo."] * 2
    page.click("button", "Continue with this answer")
    page.wait("document.querySelector('.compare article').innerText.includes('Continue with')")
    page.choose("[aria-label='Second model']", "")
    assert ask(page, "What is 17 + 26?")
    page.click(".compare button", "Regenerate")
    page.wait("document.querySelector('.head .row')?.textContent.includes('2/2')")


def test_preset_keeps_system_prompt_and_sampling(page: Page, servers: Servers):
    set_up(page, servers.start(SCRIPTED), system="Be brief.", temperature="0.5")
    page.click("button", "Save as a preset")
    page.type("Brief")
    page.press("Enter")
    preset = "[...document.querySelectorAll('.side select')][1]"
    page.wait(f"{preset}.value === 'Brief'")
    page.evaluate(f"{preset}.value = '', {preset}.dispatchEvent(new Event('change'))")
    page.wait("document.querySelector('.side textarea').value === ''")
    ask(page, "[[say a]]")
    assert "temperature" not in read_body(page)
    page.evaluate(f"{preset}.value = 'Brief', {preset}.dispatchEvent(new Event('change'))")
    page.wait("document.querySelector('.side textarea').value === 'Be brief.'")
    ask(page, "[[say a]]")
    body = read_body(page)
    assert (body["temperature"], body["messages"][0]["content"]) == (0.5, "Be brief.")
    page.click("button", "Delete preset")
    page.wait(f"{preset}.length === 1")


@pytest.mark.parametrize("approve", [True, False], ids=["approve", "deny"])
def test_mcp_call_waits_for_approval(page: Page, servers: Servers, tmp_path: Path, approve: bool):
    pytest.importorskip("mcp.server.mcpserver")
    server = {"command": sys.executable, "args": [str(MCP_SERVER)]}
    tools = tmp_path / "tools.yaml"
    tools.write_text(json.dumps({"servers": {"weather": server}}))
    address = servers.start(f"{SCRIPTED} --tools-file {tools}")
    mcp = json.dumps([{"type": "mcp", "server_label": "weather"}])
    set_up(page, address, dialect="responses", tools=mcp)
    ask(page, '[[tool weather__look {"city": "Bern"}]] [[then]] [[say Done.]]')
    assert "weather wants to run look." in page.evaluate("document.querySelector('.log').innerText")
    page.click("button", "Approve" if approve else "Deny")
    page.wait("document.querySelectorAll('.turn > .meta').length === 2")
    log = page.evaluate("document.querySelector('.log').textContent")
    assert "Done." in log
    assert ("It is sunny in Bern." in log) is approve
    assert page.evaluate("document.querySelectorAll('.error').length") == 0
    # Another API has no such tools.
    page.choose("#settings select", "chat")
    page.fill(ASK, "And now?")
    page.press("Enter")
    page.wait("document.querySelector('.error')?.textContent.includes('need the API Responses')")


@pytest.mark.parametrize("engine", [SCRIPTED, "tiny", "sim --sim-output-tokens 5"])
def test_default_request_causes_no_warning(page: Page, servers: Servers, engine: str):
    for dialect in DIALECTS:
        set_up(page, servers.start(engine), dialect=dialect)
        page.click("button", "New conversation")
        ask(page, "Hello")
        assert (
            page.evaluate(
                "[...document.querySelectorAll('.warning, .error')].map((one) => one.textContent)"
            )
            == []
        ), dialect


def test_token_rate_omitted_for_instant_answer(page: Page, servers: Servers):
    page.open(f"{servers.start(SCRIPTED)}/ui")
    script = """(async () => {
      const { describe } = await import(new URL("ui/ask.js", document.baseURI));
      const usage = { prompt: 1, completion: 41 };
      return [{ steps: 2, first: 1, last: 1.001 }, { steps: 9, first: 1, last: 1.001 },
        { steps: 41, first: 1, last: 3 }].map((reply) =>
        describe({ ...reply, usage, seconds: 3 }).map((one) => one.textContent).join());
    })()"""
    whole, at_once, streamed = page.evaluate(script)
    assert "tokens/s" not in whole + at_once
    assert "20 tokens/s" in streamed
