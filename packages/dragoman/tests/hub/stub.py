"""A stub of the Hugging Face hub: repositories over HTTP on loopback, with ranges,
ETags, and the hub's errors.

The wire format follows https://huggingface.co/docs/hub/api and what huggingface_hub
requests.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

LARGE_SUFFIXES = (".safetensors", ".gguf", ".bin", "tokenizer.json")
"""Suffixes of files that the hub stores outside of git, as .gitattributes declares."""
TOKEN = "hf_of_the_tests"


@dataclass
class StubRepository:
    """A repository.

    files: content by path.
    is_gated: requires TOKEN.
    damaged: paths whose content does not match its checksum.
    branches: names of the commit, in addition to `main`.
    """

    files: dict[str, bytes]
    is_gated: bool = False
    damaged: frozenset[str] = frozenset()
    branches: frozenset[str] = frozenset()

    @property
    def commit(self) -> str:
        names = "".join(
            f"{path}{hashlib.sha256(data).hexdigest()}" for path, data in sorted(self.files.items())
        )
        return hashlib.sha1(names.encode()).hexdigest()


@dataclass
class HubStub:
    """The hub.

    requests: method, path and range of each request.
    leaked_tokens: paths of the CDN that were requested with a token.
    cuts: bytes after which the connections of the next large files close.
    max_sent: maximum bytes of a large file in a response, with a matching
        content-length.
    stall_after: bytes of a large file after which its response waits for `released`.
    trickles: a response that waits sends a byte now and then, by which a client notices
        that it was cancelled.
    ignores_ranges: answers ranges with the whole file.
    stalled: set when a response waits.
    """

    repositories: dict[str, StubRepository]
    url: str = ""
    cdn_url: str = ""
    requests: list[tuple[str, str, str | None]] = field(
        default_factory=list[tuple[str, str, str | None]]
    )
    leaked_tokens: list[str] = field(default_factory=list[str])
    cuts: list[int] = field(default_factory=list[int])
    max_sent: int | None = None
    ignores_ranges: bool = False
    stall_after: int | None = None
    trickles: bool = False
    stalled: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)

    def count(self, pattern: str) -> int:
        return sum(
            re.search(pattern, f"{method} {path}") is not None for method, path, _ in self.requests
        )


def is_large(path: str) -> bool:
    return path.endswith(LARGE_SUFFIXES)


def compute_blob_id(data: bytes) -> str:
    """Compute the id that git gives a file."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: HubStub

    def log_message(self, format: str, *args: object) -> None: ...

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def answer(self, *, with_body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path, self.headers.get("range")))
        if found := re.fullmatch(r"/api/models/(.+?)/revision/(.+)", path):
            self.describe(found[1], found[2])
        elif found := re.fullmatch(r"/cdn/(\w+)", path):
            if self.headers.get("authorization") is not None:
                self.hub.leaked_tokens.append(path)
            self.send_large(found[1], with_body=with_body)
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self.resolve(found[1], found[2], found[3], with_body=with_body)
        else:
            self.refuse(404, "EntryNotFound", "no such route")

    def find(self, name: str, revision: str) -> StubRepository | None:
        repository = self.hub.repositories.get(name)
        if repository is None:
            # The hub does not reveal what exists to clients without a token.
            self.refuse(
                401 if self.headers.get("authorization") is None else 404,
                "RepoNotFound",
                "Repository not found",
            )
        elif repository.is_gated and self.headers.get("authorization") != f"Bearer {TOKEN}":
            status = 401 if self.headers.get("authorization") is None else 403
            self.refuse(status, "GatedRepo", "Access to this model is restricted")
        elif revision not in ("main", repository.commit, *repository.branches):
            self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        else:
            return repository
        return None

    def describe(self, name: str, revision: str) -> None:
        repository = self.find(name, revision)
        if repository is None:
            return
        siblings = [_describe_file(path, data) for path, data in repository.files.items()]
        body = {
            "id": name,
            "modelId": name,
            "sha": repository.commit,
            "private": False,
            "siblings": siblings,
        }
        self.send(200, json.dumps(body).encode(), {"content-type": "application/json"})

    def resolve(self, name: str, revision: str, path: str, *, with_body: bool) -> None:
        repository = self.find(name, revision)
        if repository is None:
            return
        data = repository.files.get(path)
        if data is None:
            self.refuse(
                404, "EntryNotFound", "Entry not found", {"x-repo-commit": repository.commit}
            )
            return
        headers = {"x-repo-commit": repository.commit, "accept-ranges": "bytes"}
        if is_large(path):
            sha256 = hashlib.sha256(data).hexdigest()
            headers |= {
                "x-linked-etag": f'"{sha256}"',
                "x-linked-size": str(len(data)),
                "etag": '"pointer"',
            }
            self.send(302, b"", headers | {"location": f"{self.hub.cdn_url}/cdn/{sha256}"})
        else:
            etag = compute_blob_id(data)
            self.send(200, data, headers | {"etag": f'"{etag}"'}, with_body=with_body)

    def send_large(self, sha256: str, *, with_body: bool) -> None:
        found = (
            (repository, path, data)
            for repository in self.hub.repositories.values()
            for path, data in repository.files.items()
            if hashlib.sha256(data).hexdigest() == sha256
        )
        repository, path, data = next(found)
        if path in repository.damaged:
            data = data[:-1] + bytes([data[-1] ^ 1])
        self.send_file(data, {"etag": f'"{sha256}"'}, with_body=with_body)

    def send_file(self, data: bytes, headers: dict[str, str], *, with_body: bool) -> None:
        requested = re.fullmatch(r"bytes=(\d+)-.*", self.headers.get("range") or "")
        start = int(requested[1]) if requested and not self.hub.ignores_ranges else 0
        headers["accept-ranges"] = "bytes"
        if start:
            headers["content-range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        body = data[start:][: self.hub.max_sent]
        self.send(206 if start else 200, body, headers, with_body=with_body, is_large=True)

    def send(
        self,
        status: int,
        body: bytes,
        headers: dict[str, str],
        *,
        with_body: bool = True,
        is_large: bool = False,
    ) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if with_body:
            self.write(
                body, self.hub.cuts if is_large else [], self.hub.stall_after if is_large else None
            )

    def write(self, body: bytes, cuts: list[int], stall_after: int | None) -> None:
        if cuts and len(body) > cuts[0]:
            self.wfile.write(body[: cuts.pop(0)])
            self.close_connection = True
            return
        try:
            if stall_after is not None and len(body) > stall_after:
                self.wfile.write(body[:stall_after])
                body = body[stall_after:]
                self.hub.stalled.set()
                while self.hub.trickles and not self.hub.released.wait(0.01):
                    self.wfile.write(body[:1])
                    body = body[1:]
                self.hub.released.wait(60)
            self.wfile.write(body)
        except OSError:
            # The client was killed.
            self.close_connection = True

    def refuse(
        self, status: int, code: str, message: str, headers: dict[str, str] | None = None
    ) -> None:
        error = {
            "x-error-code": code,
            "x-error-message": message,
            "content-type": "application/json",
        }
        self.send(status, json.dumps({"error": message}).encode(), error | (headers or {}))


def _describe_file(path: str, data: bytes) -> dict[str, object]:
    entry: dict[str, object] = {
        "rfilename": path,
        "size": len(data),
        "blobId": compute_blob_id(data),
    }
    if is_large(path):
        entry["lfs"] = {
            "sha256": hashlib.sha256(data).hexdigest(),
            "size": len(data),
            "pointerSize": 130,
        }
    return entry


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors: a client that is killed resets its connections."""


@contextmanager
def run_hub(repositories: dict[str, StubRepository]) -> Generator[HubStub]:
    hub = HubStub(repositories)

    class Handler(_Handler):
        pass

    Handler.hub = hub
    with _Server(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        # A different host than the hub's, like the real one.
        hub.cdn_url = f"http://localhost:{server.server_address[1]}"
        hub.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield hub
        finally:
            hub.released.set()
            server.shutdown()
            thread.join()
