"""The client that trusted proxies report."""

from __future__ import annotations

import pytest

from dragoman.core.trusted_proxies import TrustedProxies

PROXY = ("10.0.0.7", 4000)


def headers(*forwarded: str, proto: str | None = None) -> list[tuple[bytes, bytes]]:
    lines = [(b"x-forwarded-for", value.encode("latin-1")) for value in forwarded]
    return lines if proto is None else [*lines, (b"x-forwarded-proto", proto.encode())]


@pytest.mark.parametrize(
    ("names", "peer", "forwarded", "client"),
    [
        # The header of a stranger is ignored.
        ((), PROXY, ["192.0.2.1"], PROXY),
        (("10.0.0.8",), PROXY, ["192.0.2.1"], PROXY),
        (("unix",), PROXY, ["192.0.2.1"], PROXY),
        # One hop, and several from the right.
        (("10.0.0.7",), PROXY, ["192.0.2.1"], ("192.0.2.1", 0)),
        (("10.0.0.0/8",), PROXY, ["192.0.2.1, 10.0.0.9"], ("192.0.2.1", 0)),
        (("10.0.0.7, 10.0.0.9",), PROXY, ["192.0.2.1", "10.0.0.9"], ("192.0.2.1", 0)),
        # What the client has put to the left of its own address does not count.
        (("10.0.0.0/8",), PROXY, ["198.51.100.1, 192.0.2.1, 10.0.0.9"], ("192.0.2.1", 0)),
        (("10.0.0.0/8",), PROXY, ["10.0.0.1, 192.0.2.1"], ("192.0.2.1", 0)),
        (("10.0.0.0/8",), PROXY, ["10.0.0.1,10.0.0.2"], ("10.0.0.1", 0)),
        (("*",), PROXY, ["192.0.2.1, 198.51.100.1"], ("192.0.2.1", 0)),
        # Ports, as some proxies add them, and IPv6.
        (("10.0.0.7",), PROXY, ["192.0.2.1:8123"], ("192.0.2.1", 8123)),
        (("10.0.0.7",), PROXY, ["2001:db8::1"], ("2001:db8::1", 0)),
        (("10.0.0.7",), PROXY, ["[2001:DB8:0::1]:81"], ("2001:db8::1", 81)),
        (("2001:db8::/32",), ("2001:db8::5", 1), ["192.0.2.1"], ("192.0.2.1", 0)),
        (("fe80::/10",), ("fe80::1%eth0", 1), ["192.0.2.1"], ("192.0.2.1", 0)),
        (("10.0.0.7",), ("::ffff:10.0.0.7", 1), ["::ffff:192.0.2.1"], ("192.0.2.1", 0)),
        # What is no address ends the search at the last hop that is one.
        (("10.0.0.0/8",), PROXY, ["192.0.2.1, unknown, 10.0.0.9"], ("10.0.0.9", 0)),
        (("10.0.0.7",), PROXY, ["evil\x1b[31m"], PROXY),
        (("10.0.0.7",), PROXY, ["[2001:db8::1"], PROXY),
        (("10.0.0.7",), PROXY, ["192.0.2.1:http"], PROXY),
        (("10.0.0.7",), PROXY, [""], PROXY),
        (("10.0.0.7",), PROXY, [], PROXY),
        # A Unix socket has no address.
        (("unix",), None, ["192.0.2.1"], ("192.0.2.1", 0)),
        (("unix",), ("", 0), ["192.0.2.1"], ("192.0.2.1", 0)),
        (("unix", "10.0.0.0/8"), None, ["192.0.2.1, 10.0.0.9"], ("192.0.2.1", 0)),
        (("10.0.0.7",), None, ["192.0.2.1"], None),
        (("*",), None, ["192.0.2.1"], ("192.0.2.1", 0)),
    ],
)
def test_find_client_reads_trusted_hops_from_right(
    names: tuple[str, ...],
    peer: tuple[str, int] | None,
    forwarded: list[str],
    client: tuple[str, int] | None,
):
    assert TrustedProxies(names).find_client(peer, headers(*forwarded)) == client


@pytest.mark.parametrize(
    ("proto", "kind", "scheme"),
    [
        ("https", "http", "https"),
        ("HTTPS", "websocket", "wss"),
        ("http, https", "http", "https"),
        ("javascript", "http", None),
        ("wss", "http", None),
        (None, "http", None),
    ],
)
def test_find_scheme_of_trusted_proxy(proto: str | None, kind: str, scheme: str | None):
    proxies = TrustedProxies(["10.0.0.7"])
    assert proxies.find_scheme(PROXY, headers(proto=proto), kind=kind) == scheme
    stranger = ("192.0.2.9", 1)
    assert proxies.find_scheme(stranger, headers(proto=proto), kind=kind) is None


@pytest.mark.parametrize("name", ["localhost", "10.0.0.1/8", "300.1.1.1", "10.0.0.1:80"])
def test_trusted_proxies_invalid_name_raises_value_error(name: str):
    with pytest.raises(ValueError, match=r"appear to be|host bits"):
        TrustedProxies([name])


def test_trusted_proxies_without_names_is_false():
    assert not TrustedProxies()
    assert not TrustedProxies(["", " , "])
    assert TrustedProxies(["unix"])
