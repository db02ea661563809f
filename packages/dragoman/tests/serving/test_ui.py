"""The page at /ui without a browser: its files, their headers, access, and the routes
that it uses.

tests/clients/test_ui.py uses it in a browser.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import dragoman
from dragoman.engines.scripted import Fail, Say, ScriptEntry
from dragoman.launch import build_models, build_serving_options
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.serving.recent_requests import MAX_RECENT_REQUESTS, RecentRequests
from dragoman.serving.request_log import RequestLogLine
from dragoman.serving.routes.ui import load_page_files
from dragoman.serving.serving_options import ServingOptions
from dragoman.settings import Settings, load_settings

from .harness import ServerHarness, build_server

UI = ServingOptions(ui=True)
PROTECTED = ServingOptions(ui=True, api_key=("user",), admin_api_key=("root",))
BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
ROOT = {"authorization": "Bearer root"}
ASK: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "A secret question."}],
}
MAX_BYTES = 150_000
PAGE = {name: content.decode() for name, (content, _) in load_page_files().items()}
SCRIPTS = {name: text for name, text in PAGE.items() if name.endswith(".js")}


def test_ui_page_size_stays_below_limit():
    assert sum(len(text.encode()) for text in PAGE.values()) < MAX_BYTES


def test_ui_folder_contains_exactly_served_files():
    folder = Path(dragoman.__file__).parent / "ui"
    assert {entry.name for entry in folder.iterdir()} == set(PAGE)


def test_ui_referenced_files_exist():
    named = {name for text in SCRIPTS.values() for name in re.findall(r'from "\./([\w.]+)"', text)}
    named |= set(re.findall(r'(?:src|href)="ui/([\w.]+)"', PAGE["index.html"])) | {"index.html"}
    assert named == set(PAGE)


@pytest.mark.parametrize(
    "forbidden",
    [
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|setHTML|createContextualFragment",
        r"\beval\b|new Function|importScripts|import\(",
        r"setAttribute\(\"(?:style|on\w+)\"",
        r"https?://(?!www\.w3\.org/2000/svg|html\.spec\.whatwg\.org|spec\.commonmark\.org)",
    ],
)
def test_ui_scripts_contain_no_forbidden_calls_or_hosts(forbidden: str):
    assert {name for name, text in SCRIPTS.items() if re.search(forbidden, text)} == set()


def test_ui_document_has_no_inline_script_or_style():
    assert (
        re.findall(
            r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=|javascript:", PAGE["index.html"]
        )
        == []
    )


async def test_ui_files_served_with_strict_csp():
    server = build_server(options=UI)
    for name, text in PAGE.items():
        answer = await server.get("/ui" if name == "index.html" else f"/ui/{name}")
        assert (answer.status_code, answer.text) == (200, text)
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'self';")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        kind = {
            "html": "text/html",
            "js": "text/javascript",
            "css": "text/css",
            "svg": "image/svg+xml",
        }
        assert answer.headers["content-type"].partition(";")[0] == kind[name.rpartition(".")[2]]


async def test_ui_etag_match_returns_304():
    server = build_server(options=UI)
    first = await server.get("/ui/app.js")
    assert first.headers["cache-control"] == "no-cache"
    for known in (first.headers["etag"], f'"other", W/{first.headers["etag"]}'):
        again = await server.get("/ui/app.js", {"if-none-match": known})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"] == first.headers["etag"]
        assert "content-security-policy" in again.headers
    assert (await server.get("/ui/app.js", {"if-none-match": '"other"'})).status_code == 200


@pytest.mark.parametrize("options", [UI, PROTECTED], ids=["open", "protected"])
async def test_root_redirects_browser_to_ui_without_key(options: ServingOptions):
    server = build_server(options=options)
    async with server.http() as client:
        for method in ("GET", "HEAD"):
            answer = await client.request(method, "/", headers=BROWSER)
            assert (answer.status_code, answer.headers["location"]) == (307, "ui")
        assert answer.url.join(answer.headers["location"]).path == "/ui"
        page = await client.get("/", headers=BROWSER, follow_redirects=True)
        assert page.text == PAGE["index.html"]


@pytest.mark.parametrize("accept", ["*/*", "application/json", ""])
async def test_root_returns_text_index_to_other_clients(accept: str):
    answer = await build_server(options=UI).get("/", {"accept": accept})
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    assert (await build_server(options=PROTECTED).get("/", {"accept": accept})).status_code == 401


async def test_root_post_by_browser_requires_key():
    answer = await build_server(options=PROTECTED).post("/", {"inputs": "Hello"}, BROWSER)
    assert answer.status_code == 401


async def test_ui_disabled_returns_404():
    for path in ("/ui", "/ui/app.js"):
        answer = await build_server().get(path, BROWSER)
        assert answer.status_code == 404
        assert "--ui" in answer.json()["error"]["message"]
        closed = build_server(options=ServingOptions(api_key=("user",)))
        assert (await closed.get(path, BROWSER)).status_code == 401
    assert (await build_server().get("/", BROWSER)).status_code == 200


@pytest.mark.parametrize("name", ["none.js", "__init__.py", "..%2f__init__.py", "%2e%2e"])
async def test_ui_unknown_file_returns_404(name: str):
    assert (await build_server(options=UI).get(f"/ui/{name}")).status_code == 404


@pytest.mark.parametrize(
    ("set_options", "is_served"),
    [
        ({}, True),
        ({"host": "::1"}, True),
        ({"host": "0.0.0.0", "no_auth": True}, False),
        ({"host": "0.0.0.0", "no_auth": True, "ui": True}, True),
        ({"uds": "/tmp/dragoman.sock"}, False),
        ({"ui": False}, False),
    ],
)
def test_ui_enabled_by_default_only_on_loopback(set_options: dict[str, object], is_served: bool):
    assert build_serving_options(load_settings(set_options, {})).ui is is_served


async def test_ui_of_mounted_application_requires_setting():
    async def fetch(**settings: Any) -> int:
        app = dragoman.create_app("tiny", store="none", **settings)
        async with app.lifespan():
            return (await ServerHarness(app, build_server().engine).get("/ui")).status_code

    assert await fetch() == 404
    assert await fetch(ui=True) == 200


async def test_recent_requests_listed_without_content():
    server = build_server(
        ScriptEntry((Say("A secret answer."),)),
        ScriptEntry((Fail(429, "No secret."),)),
        options=PROTECTED,
    )
    user = {"authorization": "Bearer user"}
    assert (
        await server.post("/v1/chat/completions", {**ASK, "temprature": 1}, user)
    ).status_code == 200
    assert (await server.post("/v1/chat/completions", ASK, user)).status_code == 429
    assert (
        await server.post("/v1/messages", {**ASK, "max_tokens": 4, "logprobs": True}, user)
    ).status_code == 400
    assert (await server.get("/dragoman/requests", user)).status_code == 403
    answer = await server.get("/dragoman/requests", ROOT)
    assert "ecret" not in answer.text
    failed, done = answer.json()["data"]
    assert (failed["status"], failed["route"], failed["output_tokens"]) == (
        429,
        "/v1/chat/completions",
        0,
    )
    assert (done["status"], done["finish_reasons"], done["error"]) == (200, ["stop"], None)
    assert done["output_tokens"] > 0
    assert done["warnings"] == ["temprature is ignored: unknown field"]


async def test_recent_requests_truncate_warnings():
    server = build_server(ScriptEntry((Say("x"),)), options=UI)
    await server.post("/v1/chat/completions", {**ASK, **{f"{n}{'x' * 500}": 1 for n in range(20)}})
    (line,) = (await server.get("/dragoman/requests")).json()["data"]
    assert len(line["warnings"]) == 8
    assert max(len(warning) for warning in line["warnings"]) <= 200


def test_recent_requests_are_bounded():
    recent = RecentRequests()
    for number in range(MAX_RECENT_REQUESTS + 7):
        recent.add(RequestLogLine(0.0, f"{number}", "/", "m"))
    ids = [request.line.request_id for request in recent.iterate_newest_first()]
    assert (len(ids), ids[0], ids[-1]) == (MAX_RECENT_REQUESTS, f"{MAX_RECENT_REQUESTS + 6}", "7")


async def test_recent_requests_without_ui_return_404():
    server = build_server(ScriptEntry((Say("x"),)))
    await server.post("/v1/chat/completions", ASK)
    assert (await server.get("/dragoman/requests")).status_code == 404


async def test_detokenize_marks_control_tokens_for_ui():
    settings = Settings(model="tiny")
    models = build_models(settings, SystemClock())
    app = build_asgi_app(models, options=build_serving_options(settings))
    server = ServerHarness(app, build_server().engine)
    async with app.lifespan():
        question = {"messages": [{"role": "user", "content": "Hello"}]}
        explained = (await server.post("/v1/chat/completions/explain", question)).json()
        assert explained["previous"] is None, "earlier prompts are remembered only with --explain"
        body: dict[str, Any] = {"tokens": explained["tokens"], "return_token_strs": True}
        texts = (await server.post("/detokenize", body)).json()
        assert texts["token_strs"] == explained["token_strs"]
        assert "".join(texts["token_strs"]) == texts["prompt"] == explained["prompt"]
        control = {
            text
            for id, text in zip(body["tokens"], texts["token_strs"], strict=True)
            if id in texts["control_tokens"]
        }
        assert control == {"<|im_start|>", "<|im_end|>"}
        plain = await server.post("/detokenize", {"tokens": explained["tokens"]})
        assert set(plain.json()) == {"prompt"}
