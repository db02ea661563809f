"""Scripts of web pages in a real browser: those of an allowed origin are served, those
of others are not.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
from contextlib import closing
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from .client_process import MODELS, PATIENCE, Results, serving

PAGES = Path(__file__).parent / "browser"
BROWSER = (
    shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
)
FLAGS = (
    *(
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-sync",
    ),
    *("--disable-background-networking", "--disable-component-update"),
)

pytestmark = [pytest.mark.clients, pytest.mark.skipif(BROWSER is None, reason="needs Chromium")]


class Site(ThreadingHTTPServer):
    """A web site that serves the page and receives the results that its script posts."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), partial(_Visit, directory=str(PAGES)))
        self.results: Queue[Results] = Queue()
        self._thread = threading.Thread(target=self.serve_forever)
        self._thread.start()

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def close(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()

    def opened(self, folder: Path, address: str, page: str = "page.html") -> Results:
        """Open a page in a browser and return its results."""
        command = (
            str(BROWSER),
            *FLAGS,
            f"--user-data-dir={folder / 'profile'}",
            f"{self.origin}/{page}?at={address}",
        )
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as browser:
            try:
                return self.results.get(timeout=PATIENCE)
            finally:
                browser.terminate()


class _Visit(SimpleHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Site)
        self.server.results.put(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Results]:
    """Return the results of the page from an allowed origin, and from another one."""
    folder = tmp_path_factory.mktemp("browser")
    (folder / "models.yaml").write_text(MODELS)
    with closing(Site()) as allowed, closing(Site()) as other:
        command = f"--config models.yaml --store memory --allowed-origins {allowed.origin}"
        with serving(command, folder) as address:
            return {
                "allowed": allowed.opened(folder, address),
                "other": other.opened(folder, address),
            }


def test_page_of_allowed_origin_is_served(results: dict[str, Results]) -> None:
    assert results["allowed"] == {
        "streamed": {"text": "5 and 8", "id": True},
        "refused": {"status": 429, "after": True, "message": "slowly"},
        "listed": {"models": ["scripted", "tiny"]},
        "socket": {"opened": True},
    }


def test_page_of_other_origin_is_blocked(results: dict[str, Results]) -> None:
    failed = {"error": "TypeError"}
    assert results["other"] == {
        "streamed": failed,
        "refused": failed,
        "listed": failed,
        "socket": {"opened": False},
    }


PASSED = re.compile(r"INFO dragoman\.access: \S+ \S+ (\S+) (\S+) (\d+) ")


def test_default_server_blocks_page_of_other_origin(tmp_path: Path) -> None:
    """With the headers that Chromium sends, a page can start, change and read nothing,
    by `localhost` or by address.
    """
    with (
        closing(Site()) as site,
        serving("scripted --directives --store memory", tmp_path) as address,
    ):
        port = address.rpartition(":")[2]
        for host in ("127.0.0.1", "localhost"):
            result = site.opened(tmp_path, f"http://{host}:{port}", "attack.html")
            assert {name for name, found in result.items() if found["readable"]} == set()
            assert len(result) == 14
    requests = PASSED.findall((tmp_path / "server.log").read_text())
    assert {path for _, path, _ in requests} >= {
        "/v1/chat/completions",
        "/v1/files",
        "/flush_cache",
        "/pause",
    }
    assert [one for one in requests if not one[2].startswith("4")] == []
