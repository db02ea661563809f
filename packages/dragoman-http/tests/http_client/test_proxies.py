"""The environment's proxy for a URL."""

from __future__ import annotations

import pytest

from dragoman_http import ProxyRules
from dragoman_http.proxies import Proxy
from dragoman_http.urls import parse_url


def find(url: str, **settings: str) -> Proxy | None:
    return ProxyRules(settings).find(parse_url(url))


def test_proxy_rules_select_proxy_by_scheme() -> None:
    settings = {"http": "one:8080", "https": "https://two"}
    assert find("http://a/", **settings) == Proxy(False, "one", 8080)
    assert find("https://a/", **settings) == Proxy(True, "two", 443)
    assert find("https://a/", http="one:8080") is None
    assert find("https://a/", all="http://three:1", http="one:8080") == Proxy(False, "three", 1)


def test_proxy_credentials_are_parsed_and_hidden_in_repr() -> None:
    assert find("http://a/", http="http://me:p%3Aw@one") == Proxy(
        False, "one", 80, "Basic bWU6cDp3"
    )
    assert "bWU6" not in repr(find("http://a/", http="http://me:p%3Aw@one"))


@pytest.mark.parametrize("text", ["socks5://one:1080", "ftp://one", "http://"])
def test_proxy_rules_unsupported_proxy_raises_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="proxy"):
        ProxyRules({"all": text})


@pytest.mark.parametrize(
    ("entry", "url", "is_direct"),
    [
        ("*", "http://a.b/", True),
        ("b.test", "http://b.test/", True),
        ("b.test", "http://a.b.test/", True),
        ("b.test", "http://ab.test/", False),
        (".b.test", "http://a.b.test/", True),
        (".b.test", "http://b.test/", False),
        ("*.b.test", "http://a.b.test/", True),
        ("B.TEST", "http://b.test/", True),
        ("x, b.test ,y", "http://b.test/", True),
        ("b.test:80", "http://b.test/", True),
        ("b.test:81", "http://b.test/", False),
        ("https://b.test", "http://b.test/", False),
        ("https://b.test", "https://b.test/", True),
        ("localhost", "http://localhost:8000/", True),
        ("127.0.0.1", "http://127.0.0.1:8000/", True),
        ("192.168.0.0/16", "http://192.168.7.1/", True),
        ("192.168.0.0/16", "http://192.169.7.1/", False),
        ("::1", "http://[::1]:8000/", True),
        ("[::1]:8000", "http://[::1]:8000/", True),
        ("fd00::/8", "http://[fd12::1]/", True),
        ("", "http://b.test/", False),
    ],
)
def test_proxy_exceptions_connect_directly(entry: str, url: str, is_direct: bool) -> None:
    proxy = find(url, http="one:1", https="one:1", no=entry)
    assert (proxy is None) is is_direct


def test_parse_url_accepts_http_urls_and_rejects_others() -> None:
    assert parse_url("https://A.test/x?y#z").target == "/x?y"
    assert parse_url("https://A.test").authority == "a.test"
    assert parse_url("http://[::1]:81/").authority == "[::1]:81"
    assert parse_url("http://bücher.test/").host == "xn--bcher-kva.test"
    # IDNA 2003 makes another domain of it: strasse.test.
    with pytest.raises(ValueError, match="must be written in ASCII"):
        parse_url("http://straße.test/")
    for text in ("ftp://a/", "http:///x", "http://u:p@a/", "http://a:99999/", "a"):
        with pytest.raises(ValueError, match=r"URL|[Pp]ort"):
            parse_url(text)
