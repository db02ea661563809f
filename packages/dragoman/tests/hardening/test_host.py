"""Accepted Host headers: DNS rebinding and Host confusion (Starlette CVE-2026-48710,
vLLM CVE-2026-48746).
"""

import httpx2
import pytest
from starlette.datastructures import Headers
from tests.http.wire import answers, serving

from dragoman.core.errors import MisdirectedRequest, RequestError
from dragoman.launch import build_models
from dragoman.serving.app import build_asgi_app
from dragoman.serving.clock import SystemClock
from dragoman.serving.host_header import build_allowed_hosts, check_host
from dragoman.serving.serving_options import ServingOptions
from dragoman.settings import Settings

LOCAL = build_allowed_hosts("127.0.0.1", ())


def headers(*hosts: str) -> Headers:
    return Headers(raw=[(b"host", host.encode("latin-1")) for host in hosts])


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8000", "127.0.0.1:1", "[::1]:8000", "LOCALHOST", "127.0.0.2"]
)
def test_check_host_accepts_local_names(host: str) -> None:
    check_host(headers(host), LOCAL)


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "10.0.0.1:8000", "127.0.0.1.evil.example"]
)
def test_check_host_foreign_name_raises_misdirected_request(host: str) -> None:
    with pytest.raises(MisdirectedRequest):
        check_host(headers(host), LOCAL)


@pytest.mark.parametrize(
    "host",
    ["", "a/b", "localhost:8x", "localhost:123456", "a b", "[::1", "u@localhost", "é", ":80"],
)
def test_check_host_malformed_value_returns_400(host: str) -> None:
    with pytest.raises(RequestError) as caught:
        check_host(headers(host), ("*",))
    assert caught.value.status == 400


@pytest.mark.parametrize("hosts", [(), ("localhost", "localhost")])
def test_check_host_missing_or_repeated_header_is_rejected(hosts: tuple[str, ...]) -> None:
    with pytest.raises(RequestError):
        check_host(headers(*hosts), LOCAL)


def test_public_bind_accepts_all_host_names_by_default() -> None:
    check_host(headers("anything.example"), build_allowed_hosts("0.0.0.0", ()))
    with pytest.raises(MisdirectedRequest):
        check_host(headers("anything.example"), build_allowed_hosts("0.0.0.0", ("llm.example",)))


@pytest.mark.parametrize(
    "host",
    [
        "10.0.0.1:8000",
        "[2001:db8::1]:8000",
        "dragoman:8000",
        "gpu1.local",
        "llm.default.svc.cluster.local:80",
        "localhost",
        "x.internal",
    ],
)
def test_public_bind_without_keys_accepts_private_names(host: str) -> None:
    check_host(headers(host), build_allowed_hosts("0.0.0.0", (), requires_key=False))


@pytest.mark.parametrize(
    "host", ["rebind.example", "10.0.0.1.evil.example", "local.example", "evil.example:8000"]
)
def test_public_bind_without_keys_rejects_public_names(host: str) -> None:
    allowed = build_allowed_hosts("0.0.0.0", (), requires_key=False)
    with pytest.raises(MisdirectedRequest, match="--allowed-hosts"):
        check_host(headers(host), allowed)
    name = host.partition(":")[0]
    check_host(headers(host), build_allowed_hosts("0.0.0.0", (name,), requires_key=False))


@pytest.mark.parametrize(("keys", "status"), [((), 421), (("k",), 200)])
async def test_rebound_page_reaches_only_server_with_keys(
    keys: tuple[str, ...], status: int
) -> None:
    models = build_models(Settings(model="scripted"), SystemClock())
    app = build_asgi_app(models, options=ServingOptions(bind="0.0.0.0", api_key=keys))
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app), base_url="http://rebind.example"
    ) as http:
        assert (await http.get("/version")).status_code == status


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /readyz HTTP/1.0\r\n\r\n", 200),
        (b"GET /health HTTP/1.0\r\nhost: localhost\r\n\r\n", 200),
        (b"GET /health HTTP/1.0\r\nhost: evil.example\r\n\r\n", 421),
        (b"GET /health HTTP/1.0\r\nhost: a\r\nhost: b\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nconnection: close\r\n\r\n", 400),
    ],
)
async def test_http_1_0_probe_without_host_is_answered(head: bytes, status: int) -> None:
    models = build_models(Settings(model="scripted"), SystemClock())
    await models.start()
    async with serving(build_asgi_app(models)) as wire:
        assert [each.status for each in answers(await wire.ask(head))] == [status]
    await models.stop()


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (None, 200),
        ("http://localhost", 200),
        ("https://evil.example", 403),
        ("null", 403),
        ("http://localhost:1", 403),
    ],
)
async def test_pause_route_cross_site_request_is_rejected(origin: str | None, status: int):
    """Browsers send a POST without a body across sites without a preflight."""
    models = build_models(Settings(model="tiny"), SystemClock())
    await models.start()
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(build_asgi_app(models)), base_url="http://localhost"
    ) as http:
        answer = await http.post("/pause", headers={} if origin is None else {"origin": origin})
        assert answer.status_code == status
        assert (await http.get("/is_paused")).json() == {"is_paused": status == 200}
    await models.stop()
