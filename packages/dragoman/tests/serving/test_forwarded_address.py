"""The client's address behind a reverse proxy, in logs and limits."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.http.wire import serving, stream
from tests.serving.harness import build_server

from dragoman.core.trusted_proxies import TrustedProxies
from dragoman.http.limits import HttpLimits
from dragoman.serving.serving_options import ServingOptions
from dragoman.settings import SettingsError, load_keywords


@pytest.mark.parametrize(
    ("trusted", "logged"),
    [((), "127.0.0.1:1 "), (("127.0.0.1",), "192.0.2.1 "), (("10.0.0.0/8",), "127.0.0.1:1 ")],
)
async def test_access_log_shows_forwarded_client(
    trusted: tuple[str, ...], logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = build_server(options=ServingOptions(forwarded_allow_ips=trusted))
    with caplog.at_level(logging.INFO, "dragoman.access"):
        async with server.http() as client:
            forwarded = {"x-forwarded-for": "10.9.9.9, 192.0.2.1"}
            await client.get("/health", headers=forwarded)
    [line] = caplog.messages
    # The test client's own address has another port.
    assert line.startswith(logged.replace(":1 ", ":"))


async def test_connections_of_proxy_exceed_limit_per_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def is_loopback(_: str) -> bool:
        return False

    monkeypatch.setattr("dragoman.http.server_context.is_loopback", is_loopback)
    for proxies, n_answered in ((TrustedProxies(), 1), (TrustedProxies(["127.0.0.1"]), 3)):
        limits = HttpLimits(per_address=1, proxies=proxies)
        async with serving(stream, limits) as wire:
            connections = [await wire.connect() for _ in range(3)]
            answered = 0
            for reader, writer in connections:
                writer.write(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n")
                async with asyncio.timeout(60):
                    line = await reader.readline()
                answered += b" 200 " in line
            assert answered == n_answered
            for _, writer in connections:
                writer.close()


def test_forwarded_allow_ips_invalid_raises_settings_error():
    with pytest.raises(SettingsError, match="use addresses, networks"):
        load_keywords({"model": "tiny", "forwarded_allow_ips": ("nginx",)})
