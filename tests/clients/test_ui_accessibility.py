"""Every view of the page at /ui, and /docs, under the rules of axe-core."""

from __future__ import annotations

from pathlib import Path

import pytest

from .devtools import BROWSER, Page
from .page_servers import Servers
from .test_ui import BOTH_ANSWERED, ask, open_view, set_up
from .test_ui_markdown import DOCUMENT

AXE = Path(__file__).parent / "node" / "node_modules" / "axe-core" / "axe.min.js"

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(BROWSER is None, reason="needs Chromium"),
    pytest.mark.skipif(
        not AXE.exists(), reason="needs axe-core from `npm install --prefix tests/clients/node`"
    ),
]
RUN = (
    "axe.run(document).then(({violations}) => violations.map(({id, nodes}) =>"
    " `${id}: ${nodes.map((node) => node.html.slice(0, 200)).slice(0, 3)}`))"
)


def find_violations(page: Page) -> list[str]:
    page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    return page.evaluate(RUN)


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_ui_views_have_no_axe_violations(page: Page, servers: Servers, width: int, dark: bool):
    page.resize(width, 844, dark=dark, mobile=width < 500)
    address = servers.start("scripted --directives")
    set_up(page, address, second="scripted")
    assert find_violations(page) == []
    ask(page, f"[[say {DOCUMENT!r}]]".replace("'", '"'))
    for view in ("Chat", "Tokens", "Wire", "Server"):
        page.click("[role=tab]", view)
        page.wait("document.querySelector('#panel > *')")
        if view == "Wire":
            page.click("button", "Send to both")
            page.wait(BOTH_ANSWERED)
        assert find_violations(page) == [], view
    page.click("[role=tab]", "Chat")
    if width < 500:
        for name in ("Chats", "Settings"):
            page.click("button", name)
            assert find_violations(page) == [], name
    page.open(f"{address}/docs")
    page.wait("document.querySelector('#operation pre')")
    assert find_violations(page) == []


def test_ui_simulator_view_has_no_axe_violations(page: Page, servers: Servers):
    open_view(page, servers.start("sim --data-parallel-size 2"), "simulator")
    page.wait("document.querySelectorAll('figure').length === 4")
    assert find_violations(page) == []
