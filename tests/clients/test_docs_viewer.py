"""The API viewer at /docs in Chromium: all routes are shown without a browser error."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path

import pytest

from .client_process import serving
from .devtools import BROWSER, Page, browsing

pytestmark = [pytest.mark.clients, pytest.mark.skipif(BROWSER is None, reason="needs Chromium")]

LINKS = "[...document.querySelectorAll('#list a')]"


@pytest.fixture
def page(tmp_path: Path) -> Generator[Page]:
    """Yield a page of a new browser; at the end it must have logged no error and called
    only one server.
    """
    with browsing(tmp_path) as opened:
        opened.resize(1280, 800)
        yield opened
        # Errors of the last command have been reported by now.
        opened.evaluate("0")
        origins = ("about:", *(url.partition("/docs")[0] for url in opened.opened))
        assert opened.complaints == []
        assert [url for url in opened.requested if not url.startswith(origins)] == []


def test_docs_viewer_displays_every_route(page: Page, tmp_path: Path):
    with serving("tiny --store memory", tmp_path) as address:
        page.open(f"{address}/docs")
        page.wait("document.querySelector('#operation h2')")
        described = page.evaluate(
            "fetch('openapi.json').then((response) => response.json()).then(({ paths }) =>"
            " Object.entries(paths).flatMap(([path, methods]) => Object.keys(methods)"
            ".filter((name) => name !== 'parameters' && !name.startsWith('x-'))"
            ".map((method) => `${method.toUpperCase()}${path}`)))"
        )
        assert len(described) > 100
        assert sorted(page.evaluate(f"{LINKS}.map((link) => link.textContent)")) == sorted(
            described
        )
        # Each route is shown with its responses. Exceptions and CSP violations are
        # recorded in `complaints`.
        for number in range(len(described)):
            page.evaluate(f"{LINKS}[{number}].click()")
            page.wait(f"{LINKS}[{number}].getAttribute('aria-current') === 'page'")
            title = page.evaluate(f"{LINKS}[{number}].textContent")
            assert page.text("#operation h2") == title
            assert page.text("#operation pre").startswith("curl "), title
            assert page.evaluate("document.querySelectorAll('#operation h3').length") > 0, title


def test_docs_viewer_search_by_field_finds_route_and_schemas(page: Page, tmp_path: Path):
    with serving("tiny --store memory", tmp_path) as address:
        page.open(f"{address}/docs")
        page.wait("document.querySelector('#operation h2')")
        page.fill("#search", "chat stream_options")
        page.wait(f"{LINKS}[0]?.textContent === 'POST/v1/chat/completions'")
        page.evaluate(f"{LINKS}[0].click()")
        page.wait(
            "document.querySelector('#operation h2').textContent === 'POST/v1/chat/completions'"
        )
        assert "ChatRequest" in page.text("#operation > details:not(.outer) summary")
        assert "stream_options" in page.text("#operation > details table")
        # Schemas that a field refers to open within it.
        page.click("#operation table details summary")
        page.wait("document.querySelector('#operation table details[open] table')")
        page.fill("#search", "nosuchfieldanywhere")
        page.wait("document.querySelector('#list').textContent === 'No route has these words.'")


def test_docs_viewer_with_auth_shows_routes_by_key(page: Page, tmp_path: Path):
    with serving("tiny --store memory --api-key user --admin-api-key root", tmp_path) as address:
        page.open(f"{address}/docs")
        page.wait(
            "document.querySelector('#operation .error')?.textContent.includes('needs an API key')"
        )
        page.fill("#key", "user")
        page.press("Enter")
        page.wait(f"{LINKS}.length > 10")
        seen = page.evaluate(f"{LINKS}.length")
        page.fill("#key", "root")
        page.press("Enter")
        page.wait(f"{LINKS}.length > {seen}")
        assert "root" not in page.evaluate(
            "JSON.stringify({...sessionStorage, ...localStorage}) + document.cookie"
        )
        assert "KEY" in page.text("#operation pre")
        assert "root" not in page.text("#operation")
    # The browser logs the 401 of the first request by itself.
    assert [text for text in page.complaints if "(Unauthorized)" not in text] == []
    page.complaints.clear()


def test_docs_viewer_tries_request_with_key(page: Page, tmp_path: Path):
    with serving("scripted --directives --store memory --api-key user", tmp_path) as address:
        page.open(f"{address}/docs")
        page.wait("document.querySelector('#operation .error')")
        page.fill("#key", "user")
        page.press("Enter")
        page.wait("document.querySelector('#operation h2').textContent.startsWith('POST')")
        assert page.text("#operation h2") == "POST/v1/chat/completions"
        page.click("#operation summary", "Try it")
        body = {"stream": True, "messages": [{"role": "user", "content": "[[say one two]]"}]}
        page.fill(".try textarea", json.dumps(body))
        page.click(".try button", "Send")
        page.wait("document.querySelector('.try [role=status]').textContent.endsWith(' ms')")
        assert page.text(".try [role=status]").startswith("200 OK · text/event-stream")
        assert page.text(".try pre").rstrip().endswith("data: [DONE]")
        page.evaluate(
            f"{LINKS}.find((one) => one.textContent === 'GET/v1/models/{{model}}').click()"
        )
        page.wait("document.querySelector('#operation h2').textContent === 'GET/v1/models/{model}'")
        page.click("#operation summary", "Try it")
        page.fill(".try input", "scripted")
        page.press("Enter")
        page.wait("document.querySelector('.try pre').textContent.includes('max_model_len')")
    assert [text for text in page.complaints if "(Unauthorized)" not in text] == []
    page.complaints.clear()
