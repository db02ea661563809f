"""Which Host names are answered: DNS rebinding and Host confusion (Starlette CVE-2026-48710, vLLM CVE-2026-48746)."""

import pytest
from starlette.datastructures import Headers

from dragoman.core.errors import Misdirected, RequestError
from dragoman.serving.host import allowed_hosts, check_host

LOCAL = allowed_hosts("127.0.0.1", ())


def headers(*hosts: str) -> Headers:
    return Headers(raw=[(b"host", host.encode("latin-1")) for host in hosts])


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1:1", "[::1]:8000", "LOCALHOST", "127.0.0.2"])
def test_local_names_are_ours(host: str) -> None:
    check_host(headers(host), LOCAL)


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "10.0.0.1:8000", "127.0.0.1.evil.example"])
def test_other_names_are_misdirected(host: str) -> None:
    with pytest.raises(Misdirected):
        check_host(headers(host), LOCAL)


@pytest.mark.parametrize(
    "host", ["", "a/b", "localhost:8x", "localhost:123456", "a b", "[::1", "u@localhost", "é", ":80"]
)
def test_a_malformed_host_is_a_400(host: str) -> None:
    with pytest.raises(RequestError) as caught:
        check_host(headers(host), ("*",))
    assert caught.value.status == 400


@pytest.mark.parametrize("hosts", [(), ("localhost", "localhost")])
def test_host_is_given_exactly_once(hosts: tuple[str, ...]) -> None:
    with pytest.raises(RequestError):
        check_host(headers(*hosts), LOCAL)


def test_a_public_bind_answers_for_all_names_unless_told_otherwise() -> None:
    check_host(headers("anything.example"), allowed_hosts("0.0.0.0", ()))
    with pytest.raises(Misdirected):
        check_host(headers("anything.example"), allowed_hosts("0.0.0.0", ("llm.example",)))
