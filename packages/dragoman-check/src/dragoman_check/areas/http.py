"""Checks of HTTP: framing (request smuggling), headers, methods, CORS."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from ..check_catalog import Area, Level
from ..check_exceptions import Skipped
from ..dialects import CHAT
from ..error_bodies import check_openai_error
from ..exchange import Exchange
from ..rules.json_values import require
from ..session import Session

RFC = "https://www.rfc-editor.org/rfc/rfc9112"
SEMANTICS = "https://www.rfc-editor.org/rfc/rfc9110"
AREA = Area("http", claims=("http",), source=RFC)
PATHS = ("/v1/models", "/health", "/api/tags")
RESPONSE = re.compile(rb"HTTP/1\.[01] (\d{3})")


async def find_path(s: Session) -> str:
    """Return a path that returns 200. Raises Skipped if there is none."""

    async def find() -> str:
        for path in PATHS:
            if (await s.get(path)).status == 200:
                return path
        raise Skipped(f"none of {', '.join(PATHS)} returns 200")

    return await s.share("http.path", find)


def count_responses(exchange: Exchange) -> int:
    return len(RESPONSE.findall(exchange.body))


def build_second(s: Session) -> bytes:
    """Build a second request, which must have no response after a request whose end is
    ambiguous.
    """
    return s.build_head("GET", "/smuggled", "Connection: close") + b"\r\n"


Framing = tuple[str, str, tuple[str, ...], bytes, str, Level]
"""Name, rule, header lines, body, section of RFC 9112, level."""
REJECTED: tuple[Framing, ...] = (
    (
        "two-lengths",
        "Two different Content-Length headers are rejected.",
        ("Content-Length: 3", "Content-Length: 4"),
        b"abc",
        "6.3",
        "must",
    ),
    (
        "length-list",
        "A Content-Length with a list of different values is rejected.",
        ("Content-Length: 3, 4",),
        b"abc",
        "6.3",
        "must",
    ),
    (
        "signed-length",
        "A Content-Length with a sign is rejected.",
        ("Content-Length: +3",),
        b"abc",
        "6.3",
        "must",
    ),
    (
        "negative-length",
        "A negative Content-Length is rejected.",
        ("Content-Length: -3",),
        b"abc",
        "6.3",
        "must",
    ),
    (
        "hex-length",
        "A hexadecimal Content-Length is rejected.",
        ("Content-Length: 0x3",),
        b"abc",
        "6.3",
        "must",
    ),
    (
        "huge-length",
        "A Content-Length that does not fit into 64 bits is rejected.",
        ("Content-Length: " + "9" * 40,),
        b"abc",
        "6.3",
        "must",
    ),
    (
        "unknown-coding",
        "An unknown transfer coding is rejected.",
        ("Transfer-Encoding: xchunked",),
        b"0\r\n\r\n",
        "6.1",
        "must",
    ),
    (
        "chunked-not-last",
        "A transfer coding after `chunked` is rejected.",
        ("Transfer-Encoding: chunked, gzip",),
        b"0\r\n\r\n",
        "6.3",
        "must",
    ),
    (
        "tab-coding",
        "A vertical tab before a transfer coding is rejected.",
        ("Transfer-Encoding: \x0bchunked",),
        b"0\r\n\r\n",
        "6.1",
        "must",
    ),
    (
        "space-before-colon",
        "A space between a header name and the colon is rejected.",
        ("Content-Length : 3",),
        b"abc",
        "5.1",
        "must",
    ),
    (
        "space-in-coding-name",
        "A space between `Transfer-Encoding` and the colon is rejected.",
        ("Transfer-Encoding : chunked",),
        b"0\r\n\r\n",
        "5.1",
        "must",
    ),
    ("nul", "A NUL byte in a header is rejected.", ("X-Check: a\x00b",), b"", "2.2", "must"),
    (
        "bare-cr",
        "A bare carriage return in a header is rejected.",
        ("X-Check: a\rb",),
        b"",
        "2.2",
        "must",
    ),
    ("no-colon", "A header line without a colon is rejected.", ("nonsense",), b"", "5", "must"),
    ("empty-name", "A header without a name is rejected.", (": value",), b"", "5", "must"),
    (
        "name-with-space",
        "A space in a header name is rejected.",
        ("X Check: a",),
        b"",
        "5",
        "must",
    ),
)
# Name, rule, chunked body.
CHUNKS: tuple[tuple[str, str, bytes], ...] = (
    ("no-size", "A chunk without a size is rejected.", b"\r\nabc\r\n0\r\n\r\n"),
    ("hex-prefix", "A chunk size with the prefix 0x is rejected.", b"0x3\r\nabc\r\n0\r\n\r\n"),
    ("signed-size", "A chunk size with a sign is rejected.", b"+3\r\nabc\r\n0\r\n\r\n"),
    ("negative-size", "A negative chunk size is rejected.", b"-3\r\nabc\r\n0\r\n\r\n"),
    (
        "huge-size",
        "A chunk size that does not fit into 64 bits is rejected.",
        b"f" * 20 + b"\r\nabc\r\n0\r\n\r\n",
    ),
    (
        "long-data",
        "Chunk data that is longer than the chunk size is rejected.",
        b"3\r\nabcd\r\n0\r\n\r\n",
    ),
    ("underscore", "A chunk size with an underscore is rejected.", b"1_0\r\nabc\r\n0\r\n\r\n"),
    (
        "line-feed",
        "Chunk data that ends with a bare line feed is rejected.",
        b"3\r\nabc\n0\r\n\r\n",
    ),
)


def add_framing() -> None:
    def build(lines: tuple[str, ...], body: bytes) -> Callable[[Session], Awaitable[None]]:
        async def run(s: Session) -> None:
            exchange = await s.send_bytes(
                s.build_head("GET", await find_path(s), *lines) + b"\r\n" + body + build_second(s)
            )
            check_rejection(exchange)

        return run

    for name, rule, lines, body, section, level in REJECTED:
        AREA.add(
            f"rejects-{name}",
            rule,
            build(lines, body),
            source=f"{RFC}#section-{section}",
            level=level,
        )
    for name, rule, body in CHUNKS:
        run = build(("Transfer-Encoding: chunked",), body)
        AREA.add(f"chunk-{name}", rule, run, source=f"{RFC}#section-7.1")


def check_rejection(exchange: Exchange) -> None:
    """Check that the request was rejected: with an error status, or by a connection
    closed without a response.
    """
    require(
        exchange.status == 0 or 400 <= exchange.status < 600,
        f"the request is accepted: status {exchange.status}",
    )
    require(exchange.status != 500, "the request causes status 500")
    require(count_responses(exchange) <= 1, "the following request has a response, too")
    require(
        exchange.status or not exchange.body, f"the response is not HTTP: {exchange.body[:80]!r}"
    )


add_framing()


@AREA.check(
    "A request with both Content-Length and Transfer-Encoding is rejected, or its "
    "connection is closed."
)
async def both_lengths(s: Session) -> None:
    head = s.build_head(
        "GET", await find_path(s), "Content-Length: 5", "Transfer-Encoding: chunked"
    )
    exchange = await s.send_bytes(head + b"\r\n0\r\n\r\n" + build_second(s))
    require(count_responses(exchange) <= 1, "the following request has a response, too")


@AREA.check("An HTTP/1.0 request with Transfer-Encoding is rejected, or its connection is closed.")
async def http10_coding(s: Session) -> None:
    head = s.build_head(
        "GET",
        await find_path(s),
        "Transfer-Encoding: chunked",
        "Connection: keep-alive",
        version="HTTP/1.0",
    )
    exchange = await s.send_bytes(head + b"\r\n0\r\n\r\n" + build_second(s))
    require(count_responses(exchange) <= 1, "the following request has a response, too")


@AREA.check("A folded header line is rejected.")
async def folded(s: Session) -> None:
    exchange = await s.send_bytes(
        s.build_head("GET", await find_path(s), "X-Check: a", " b: c", "Connection: close")
        + b"\r\n"
    )
    require(exchange.status in (0, 400), f"status {exchange.status}")


@AREA.check("An HTTP/1.1 request without Host is rejected.", source=f"{RFC}#section-3.2")
async def no_host(s: Session) -> None:
    exchange = await s.send_bytes(
        s.build_head("GET", await find_path(s), "Connection: close", host=False) + b"\r\n"
    )
    require(exchange.status == 400, f"status {exchange.status}")


@AREA.check("Two Host headers are rejected.", source=f"{RFC}#section-3.2")
async def two_hosts(s: Session) -> None:
    exchange = await s.send_bytes(
        s.build_head("GET", await find_path(s), "Host: other.example", "Connection: close")
        + b"\r\n"
    )
    require(400 <= exchange.status < 500, f"status {exchange.status}")


@AREA.check("A path with NUL, a space, invalid UTF-8 or `..` does not cause a 5xx status.")
async def bad_path(s: Session) -> None:
    # NUL, an unencoded space, invalid UTF-8 and path traversal break decoders and file
    # systems.
    for path in ("/v1/models/%00", "/v1/models/a b", "/v1/models/%ff", "/%2e%2e/%2e%2e/etc/passwd"):
        exchange = await s.send_bytes(s.build_head("GET", path, "Connection: close") + b"\r\n")
        require(
            exchange.status < 500 or exchange.status == 505, f"{path}: status {exchange.status}"
        )
        require(b"root:" not in exchange.body, f"{path}: the response is a file of the machine")


@AREA.check("A header of 100,000 bytes is rejected with a 4xx status.", level="should")
async def long_header(s: Session) -> None:
    head = s.build_head("GET", await find_path(s), "X-Check: " + "a" * 100_000, "Connection: close")
    exchange = await s.send_bytes(head + b"\r\n")
    require(exchange.status == 0 or 400 <= exchange.status < 500, f"status {exchange.status}")


@AREA.check("A path of 100,000 bytes is rejected with a 4xx status.")
async def long_path(s: Session) -> None:
    exchange = await s.send_bytes(
        s.build_head("GET", "/" + "a" * 100_000, "Connection: close") + b"\r\n"
    )
    require(exchange.status == 0 or 400 <= exchange.status < 500, f"status {exchange.status}")


@AREA.check("Two requests on one HTTP/1.1 connection both receive a response.")
async def keep_alive(s: Session) -> None:
    first = s.build_head("GET", await find_path(s)) + b"\r\n"
    second = s.build_head("GET", await find_path(s), "Connection: close") + b"\r\n"
    exchange = await s.send_bytes(first + second)
    if exchange.body.startswith(b"HTTP/1.0 "):
        raise Skipped("the server speaks HTTP/1.0, which closes a connection after a response")
    statuses = RESPONSE.findall(exchange.body)
    require(len(statuses) == 2 and statuses[0] == statuses[1], f"the statuses are {statuses}")


@AREA.check("With `Connection: close`, the connection is closed after the response.")
async def close(s: Session) -> None:
    exchange = await s.send_bytes(
        s.build_head("GET", await find_path(s), "Connection: close") + b"\r\n" + build_second(s)
    )
    require(count_responses(exchange) == 1, f"{count_responses(exchange)} responses")


@AREA.check("An HTTP/1.0 request is accepted.")
async def http10(s: Session) -> None:
    exchange = await s.send_bytes(
        s.build_head("GET", await find_path(s), version="HTTP/1.0") + b"\r\n"
    )
    require(exchange.status == 200, f"status {exchange.status}")


@AREA.check(
    "A request body in chunks of one byte is accepted, or rejected with 411.", claims=("chat",)
)
async def chunked_body(s: Session) -> None:
    body = json.dumps(CHAT.build_request(s.model, "Name a colour.", 8)).encode()
    # With chunks of one byte, every position in the JSON and in its characters is a
    # chunk boundary.
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    lines = ("Content-Type: application/json", "Transfer-Encoding: chunked", "Connection: close")
    exchange = await s.send_bytes(
        s.build_head("POST", CHAT.path, *lines) + b"\r\n" + chunks, patience=s.target.timeout
    )
    # 411: the server demands Content-Length, as RFC 9112, 6.3, allows.
    require(exchange.status in (200, 411), f"status {exchange.status}: {exchange.body[-200:]!r}")


@AREA.check(
    "A request with `Expect: 100-continue` succeeds, or is rejected with 417.", claims=("chat",)
)
async def expect_continue(s: Session) -> None:
    body = json.dumps(CHAT.build_request(s.model, "Name a colour.", 8)).encode()
    lines = (
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Expect: 100-continue",
        "Connection: close",
    )
    exchange = await s.send_bytes(
        s.build_head("POST", CHAT.path, *lines) + b"\r\n" + body, patience=s.target.timeout
    )
    statuses = RESPONSE.findall(exchange.body)
    # 417: the expectation cannot be met (RFC 9110, 15.5.18); clients then retry without
    # it.
    require(statuses and statuses[-1] in (b"200", b"417"), f"the statuses are {statuses}")


@AREA.check(
    "A Content-Length of 1 TiB is rejected before the body is sent.",
    level="should",
    claims=("chat",),
)
async def huge_body(s: Session) -> None:
    # With `Expect` the server can reject before the body is sent; without it the
    # rejection would race with the body.
    lines = (
        "Content-Type: application/json",
        "Content-Length: 1099511627776",
        "Expect: 100-continue",
    )
    exchange = await s.send_bytes(s.build_head("POST", CHAT.path, *lines) + b"\r\n", patience=3.0)
    require(400 <= exchange.status < 500, f"status {exchange.status or 'none'}")


@AREA.check("A gzip request body is accepted, or rejected with a 4xx status.", claims=("chat",))
async def gzip_body(s: Session) -> None:
    body = gzip.compress(json.dumps(CHAT.build_request(s.model, "Name a colour.", 8)).encode())
    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    exchange = await s.post(CHAT.path, None, raw=body, headers=headers)
    require(exchange.status == 200 or 400 <= exchange.status < 500, f"status {exchange.status}")


@AREA.check(
    "An unknown Content-Encoding is rejected.",
    claims=("chat",),
    source=f"{SEMANTICS}#section-15.5.16",
)
async def unknown_coding(s: Session) -> None:
    headers = {"content-encoding": "wizard", "content-type": "application/json"}
    exchange = await s.post(CHAT.path, None, raw=b"\x00\x01\x02", headers=headers)
    require(exchange.status in (400, 415, 422), f"status {exchange.status}")


@AREA.check("An unknown path returns 404, or 401 if a key is required.")
async def unknown_path(s: Session) -> None:
    for path in ("/v1/no/such/path", "/no-such-path"):
        exchange = await s.get(path)
        # 401: a server may authenticate before it looks up the path.
        require(exchange.status in (401, 404), f"{path}: status {exchange.status}")


@AREA.check(
    "An unknown path below `/v1` returns 404 or 405, with OpenAI's error body.",
    level="should",
    claims=("chat",),
)
async def unknown_path_form(s: Session) -> None:
    exchange = await s.post("/v1/chat/no-such-path", {})
    require(exchange.status in (404, 405), f"status {exchange.status}")
    check_openai_error(exchange.json())


@AREA.check(
    "A 405 response lists the allowed methods in `Allow`.", source=f"{SEMANTICS}#section-15.5.6"
)
async def allow(s: Session) -> None:
    path = await find_path(s)
    exchange = await s.send("DELETE", path)
    if exchange.status != 405:
        raise Skipped(f"DELETE {path} returns status {exchange.status}")
    require("GET" in (exchange.header("allow") or ""), f"Allow is {exchange.header('allow')!r}")


@AREA.check("A response to HEAD has no body.", source=f"{SEMANTICS}#section-9.3.2")
async def head(s: Session) -> None:
    exchange = await s.send_bytes(
        s.build_head("HEAD", await find_path(s), "Connection: close") + b"\r\n"
    )
    require(exchange.status in (200, 404, 405), f"status {exchange.status}")
    require(not exchange.body.partition(b"\r\n\r\n")[2], "the response to HEAD has a body")


@AREA.check(
    "A response has either Content-Length or Transfer-Encoding, not both; in HTTP/1.0 it may "
    "have neither.",
    source=f"{RFC}#section-6.3",
)
async def response_framing(s: Session) -> None:
    exchange = await s.send_bytes(
        s.build_head("GET", await find_path(s), "Connection: close") + b"\r\n"
    )
    lines = exchange.body.partition(b"\r\n\r\n")[0].lower().split(b"\r\n")
    lengths = [
        line for line in lines if line.startswith((b"content-length:", b"transfer-encoding:"))
    ]
    # Without a length, the response ends with the connection.
    is_old = exchange.body.startswith(b"HTTP/1.0 ")
    require(len(lengths) == 1 or (is_old and not lengths), f"the headers are {lengths}")


@AREA.check("The Content-Length of a response equals the length of its body.")
async def response_length(s: Session) -> None:
    exchange = await s.send_bytes(
        s.build_head("GET", await find_path(s), "Connection: close") + b"\r\n"
    )
    head, _, body = exchange.body.partition(b"\r\n\r\n")
    match = re.search(rb"content-length: *(\d+)", head.lower())
    require(
        match is None or int(match[1]) == len(body),
        f"Content-Length is {match and match[1]!r}, the body has {len(body)} bytes",
    )


@AREA.check(
    "A cross-origin request with `Content-Type: text/plain`, which browsers send without "
    "a preflight, is rejected.",
    level="should",
    claims=("chat",),
    source="https://fetch.spec.whatwg.org/#simple-header",
)
async def simple_request(s: Session) -> None:
    """Send a CORS "simple request": browsers send text/plain to other sites without a
    preflight.
    """
    headers = {"content-type": "text/plain", "origin": "https://other.example"}
    exchange = await s.post(
        CHAT.path, CHAT.build_request(s.model, "Name a colour.", 8), headers=headers
    )
    require(400 <= exchange.status < 500, f"status {exchange.status}")


@AREA.check(
    "CORS does not allow credentials for arbitrary origins.",
    claims=("chat",),
    source="https://fetch.spec.whatwg.org/#cors-protocol-and-credentials",
)
async def cors(s: Session) -> None:
    headers = {"origin": "https://other.example", "access-control-request-method": "POST"}
    exchange = await s.send("OPTIONS", CHAT.path, headers=headers)
    is_open = exchange.header("access-control-allow-origin") == "https://other.example"
    require(
        not is_open or exchange.header("access-control-allow-credentials") != "true",
        "the origin other.example is allowed with credentials",
    )


@AREA.check(
    "A server on a loopback address rejects other host names (DNS rebinding).",
    level="should",
    source="https://owasp.org/www-community/attacks/DNS_Rebinding",
)
async def rebinding(s: Session) -> None:
    if urlsplit(s.target.url).hostname not in ("127.0.0.1", "localhost", "::1"):
        raise Skipped("the server is not on a loopback address")
    head = s.build_head(
        "GET", await find_path(s), "Host: other.example", "Connection: close", host=False
    )
    exchange = await s.send_bytes(head + b"\r\n")
    require(400 <= exchange.status < 500, f"status {exchange.status}")


@AREA.check(
    "A stream has `Cache-Control: no-cache` or `no-store`.",
    level="should",
    claims=("chat",),
)
async def stream_cache(s: Session) -> None:
    exchange = await s.request(CHAT.path, CHAT.build_stream_request(s.model, "Name a colour.", 8))
    require(
        "no-" in (exchange.header("cache-control") or ""),
        f"Cache-Control is {exchange.header('cache-control')!r}",
    )
