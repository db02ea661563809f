"""Media URLs are fetched only from the public internet (CVE-2025-6242, CVE-2026-33626,
LightLLM's file:).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator
from ipaddress import ip_address

import httpx2
import pytest
from tests.http_transport import FakeTransport

from dragoman.core.errors import RequestError
from dragoman.core.image_header import MAX_BYTES
from dragoman.serving.media_fetcher import Fetcher, is_public
from tests.loopback import serve_app
from tests.pictures import PIXEL

PUBLIC = "93.184.215.14"


class FakeNetwork:
    """A fake network.

    Names have lists of addresses, one per resolution; responses are found by path;
    requests are recorded.
    """

    def __init__(
        self, names: dict[str, list[list[str]]], pages: dict[str, httpx2.Response] | None = None
    ) -> None:
        self._names = {name: list(found) for name, found in names.items()}
        self._pages = pages or {}
        self.requests: list[httpx2.Request] = []
        self.transport = FakeTransport(self)

    async def resolve(self, host: str, _port: int) -> list[str]:
        found = self._names.get(host, [[host]])
        return found.pop(0) if len(found) > 1 else found[0]

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        return self._pages.get(request.url.path) or answer()

    def fetcher(self, *hosts: str) -> Fetcher:
        return Fetcher(hosts, resolve=self.resolve, transport=self.transport)


async def stream(data: bytes) -> AsyncGenerator[bytes]:
    yield data


def answer(status: int = 200, **headers: str) -> httpx2.Response:
    """Return a response that is not read yet, as from a network."""
    return httpx2.Response(status, headers=headers, content=stream(PIXEL))


def redirect(to: str) -> httpx2.Response:
    return httpx2.Response(302, headers={"location": to})


async def fetch_error(web: FakeNetwork, url: str, *hosts: str) -> RequestError:
    with pytest.raises(RequestError) as error:
        await web.fetcher(*hosts).fetch(url, "here")
    assert error.value.param == "here"
    return error.value


async def test_fetch_public_host_connects_to_checked_address():
    web = FakeNetwork({"pictures.example": [[PUBLIC]]})
    assert await web.fetcher().fetch("https://pictures.example/a.png?b#c", "here") == PIXEL
    (request,) = web.requests
    assert str(request.url) == "https://pictures.example/a.png?b#c"
    assert web.transport.addresses == [PUBLIC]


@pytest.mark.parametrize(
    "address",
    [
        *(
            "127.0.0.1",
            "127.8.8.8",
            "0.0.0.0",
            "10.0.0.1",
            "172.16.5.4",
            "192.168.1.1",
            "169.254.169.254",
        ),
        *(
            "192.0.0.8",
            "192.0.0.9",
            "192.88.99.1",
            "fec0::1",
            "3fff::1",
            "3fff:fff::1",
            "5f00::1",
            "64:ff9b:1::1",
        ),
        *("2001:4:112::1", "::ffff:0:127.0.0.1", "::127.0.0.1", "100::1", "4000::1"),
        *("100.64.0.1", "192.0.2.1", "198.18.0.1", "224.0.0.1", "255.255.255.255", "240.0.0.1"),
        *(
            "::",
            "::1",
            "fe80::1",
            "fc00::1",
            "fd12::1",
            "ff02::1",
            "2001:db8::1",
            "::ffff:127.0.0.1",
        ),
        *("::ffff:93.184.215.14", "64:ff9b::7f00:1", "2002:7f00:1::", "2001:0:7f00:1::"),
    ],
)
async def test_fetch_non_public_address_is_rejected(address: str):
    assert not is_public(ip_address(address))
    web = FakeNetwork({"sly.example": [[address]], "half.example": [[PUBLIC, address]]})
    literal = f"[{address}]" if ":" in address else address
    for host in ("sly.example", "half.example", literal):
        assert (await fetch_error(web, f"http://{host}/")).code == "invalid_image_url"
    assert web.requests == []


async def test_fetch_resolves_host_name_once():
    """DNS rebinding: the name has a public address when it is checked, and a private
    one when it is connected to.
    """
    web = FakeNetwork({"sly.example": [[PUBLIC], ["127.0.0.1"]]})
    await web.fetcher().fetch("http://sly.example/", "here")
    assert web.transport.addresses == [PUBLIC]


@pytest.mark.parametrize(
    "location",
    [
        "http://169.254.169.254/meta",
        "//inner.example/",
        "file:///etc/passwd",
        "ftp://x.example/",
        "http://[",
    ],
)
async def test_fetch_redirect_target_is_checked_again(location: str):
    web = FakeNetwork(
        {"a.example": [[PUBLIC]], "inner.example": [["10.0.0.1"]]}, {"/a": redirect(location)}
    )
    assert (await fetch_error(web, "http://a.example/a")).code == "invalid_image_url"
    assert [request.url.path for request in web.requests] == ["/a"]


async def test_fetch_follows_redirects_up_to_limit():
    names = {"a.example": [[PUBLIC]]}
    web = FakeNetwork(names, {"/a": redirect("/b"), "/b": redirect("http://a.example/c")})
    assert await web.fetcher().fetch("http://a.example/a", "here") == PIXEL
    web = FakeNetwork(names, {"/a": redirect("/a")})
    assert (await fetch_error(web, "http://a.example/a")).code == "failed_to_download_image"
    assert len(web.requests) == 4


@pytest.mark.parametrize(
    "url",
    [
        "http://u:p@a.example/",
        "file:///etc/passwd",
        "http:///x",
        "gopher://a.example/",
        "http://a.example:x/",
    ],
)
async def test_fetch_unsupported_url_is_rejected(url: str):
    web = FakeNetwork({"a.example": [[PUBLIC]]})
    assert (await fetch_error(web, url)).code == "invalid_image_url"
    assert web.requests == []


async def test_fetch_allowed_hosts_list_is_enforced():
    web = FakeNetwork(
        {name: [[PUBLIC]] for name in ("a.example", "b.a.example", "evil.example", "xa.example")}
    )
    for host in ("a.example", "b.a.example", "A.EXAMPLE"):
        assert (
            await web.fetcher("a.example", "*.a.example").fetch(f"http://{host}/", "here") == PIXEL
        )
    for host in ("evil.example", "xa.example", "a.example.evil.example"):
        assert (
            await fetch_error(web, f"http://{host}/", "a.example", "*.a.example")
        ).code == "invalid_image_url"


async def endless() -> AsyncGenerator[bytes]:
    while True:
        yield bytes(1 << 20)


async def test_fetch_enforces_size_and_time_limits():
    async def silent(_: httpx2.Request) -> httpx2.Response:
        await asyncio.Event().wait()
        raise AssertionError

    web = FakeNetwork({"a.example": [[PUBLIC]]}, {"/": httpx2.Response(200, content=endless())})
    error = await fetch_error(web, "http://a.example/")
    assert (error.code, str(MAX_BYTES) in error.message) == ("image_too_large", True)
    slow = Fetcher(resolve=web.resolve, timeout=0.01, transport=FakeTransport(silent))
    with pytest.raises(RequestError, match="could not be fetched"):
        await slow.fetch("http://a.example/", "here")


@pytest.mark.parametrize(("status", "headers"), [(404, {}), (200, {"content-encoding": "gzip"})])
async def test_fetch_unusable_response_raises_request_error(status: int, headers: dict[str, str]):
    web = FakeNetwork({"a.example": [[PUBLIC]]}, {"/": answer(status, **headers)})
    assert (await fetch_error(web, "http://a.example/")).code == "failed_to_download_image"


async def test_fetch_unresolvable_host_raises_request_error():
    async def resolve(_host: str, _port: int) -> list[str]:
        raise OSError

    with pytest.raises(RequestError, match="could not be fetched"):
        await Fetcher(resolve=resolve).fetch("http://a.example/", "here")


async def test_fetches_read_certificates_once(monkeypatch: pytest.MonkeyPatch):
    async def resolve(_host: str, _port: int) -> list[str]:
        raise OSError

    contexts: list[ssl.SSLContext] = []

    def load() -> ssl.SSLContext:
        contexts.append(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        return contexts[-1]

    monkeypatch.setattr(ssl, "create_default_context", load)
    fetcher = Fetcher(resolve=resolve)
    for _ in range(3):
        with pytest.raises(RequestError, match="could not be fetched"):
            await fetcher.fetch("https://a.example/", "here")
    assert len(contexts) == 1


async def test_fetch_over_real_connection_sends_original_host():
    async def app(scope: dict[str, object], receive: object, send: object) -> None:
        assert scope["type"] == "http"
        await send({"type": "http.response.start", "status": 200, "headers": []})  # pyright: ignore
        await send({"type": "http.response.body", "body": dict(scope["headers"])[b"host"]})  # pyright: ignore

    async def here(_host: str, _port: int) -> list[str]:
        return ["127.0.0.1"]

    with serve_app(app) as where:  # pyright: ignore[reportArgumentType]
        port = where.rpartition(":")[2]
        there = Fetcher(resolve=here, is_allowed=lambda _: True)
        assert (
            await there.fetch(f"http://pictures.example:{port}/", "here")
            == f"pictures.example:{port}".encode()
        )
        with pytest.raises(RequestError, match="not a public host"):
            await Fetcher().fetch(where, "here")
