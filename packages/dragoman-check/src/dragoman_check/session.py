"""Checks, areas that group them, and the session in which a check runs: its requests,
their record and limits.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar, cast
from urllib.parse import urlsplit

import httpx2
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidHandshake

from .rules.json_values import Violation, require, require_object

T = TypeVar("T")

REFUSALS = (400, 403, 404, 405, 422, 501)
"""Statuses of a server that lacks the requested feature."""
# Names of the objects of sampling options in a request, and of token limits in a
# request or such an object.
_OPTIONS = ("options", "parameters", "sampling_params")
_LIMITS = (
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "num_predict",
    "max_new_tokens",
)
DEFAULT_OUTPUT = 256
"""Output tokens that are counted for a request without a limit."""
QUIET = 1.0
"""Seconds without data after which the response on a raw connection counts as complete.
"""

Json = dict[str, Any]
Level = Literal["must", "should"]
"""must: a broken rule breaks clients or contradicts the specification. should: it costs
    robustness or comfort.
"""
Run = Callable[["Session"], Awaitable[None]]
"""Runs a check: returns if the rule holds; raises Violation if it does not, and Skipped
if it cannot be judged.
"""


class Skipped(Exception):
    """The rule does not apply to this server, or cannot be judged. The message gives
    the reason.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One rule.

    id: area and name, such as `chat.stream-role-first`.
    rule: a sentence.
    source: URL of the rule's specification.
    claims: what a server has to claim for the rule to apply; see `runner.PROFILES`.
    level: see `Level`.
    except_for: profiles whose servers document another behavior.
    is_destructive: it loads the server heavily or changes its state; run only on
        demand.
    """

    id: str
    rule: str
    source: str
    claims: frozenset[str]
    level: Level
    except_for: frozenset[str]
    is_destructive: bool
    run: Run

    @property
    def area(self) -> str:
        return self.id.partition(".")[0]

    def matches(self, pattern: str) -> bool:
        """Whether the id contains the pattern, a regular expression."""
        return re.search(pattern, self.id) is not None


class Area:
    """The checks of one API or subject, with defaults: its claims apply to each check,
    its source if none is given.
    """

    def __init__(self, name: str, *, claims: Iterable[str], source: str) -> None:
        self.name = name
        self.checks = list[Check]()
        self._defaults = Check(
            id=name,
            rule="",
            source=source,
            claims=frozenset(claims),
            level="must",
            except_for=frozenset(),
            is_destructive=False,
            run=_run_nothing,
        )

    def add(
        self,
        name: str,
        rule: str,
        run: Run,
        *,
        claims: Iterable[str] = (),
        source: str | None = None,
        level: Level = "must",
        except_for: Iterable[str] = (),
        is_destructive: bool = False,
    ) -> None:
        """Add a check. claims: claims besides those of the area."""
        check = replace(
            self._defaults,
            id=f"{self.name}.{name}",
            rule=rule,
            source=source or self._defaults.source,
            claims=self._defaults.claims | frozenset(claims),
            level=level,
            except_for=frozenset(except_for),
            is_destructive=is_destructive,
            run=run,
        )
        self.checks.append(check)

    def check(self, rule: str, **options: Any) -> Callable[[Run], Run]:
        """Add the decorated coroutine function as a check; its name, with dashes, is
        the check's.

        options: those of `add`.
        """

        def register(run: Run) -> Run:
            self.add(getattr(run, "__name__", "").replace("_", "-"), rule, run, **options)
            return run

        return register


async def _run_nothing(_: Session) -> None:
    return None


class LimitReached(Skipped):
    """The limit of requests or tokens is used up."""


@dataclass(slots=True)
class Exchange:
    """A request and its response: the evidence of a verdict.

    request: body of the request; the whole request on a raw connection.
    status: 0 if there is no response.
    headers: headers of the response, names in lower case.
    body: body of the response; everything received on a raw connection.
    seconds: from the request to the end of the response.
    """

    method: str
    path: str
    request: bytes
    status: int = 0
    headers: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    body: bytes = b""
    seconds: float = 0.0

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)

    @property
    def content_type(self) -> str:
        return (self.header("content-type") or "").partition(";")[0].strip().lower()

    def json(self) -> Json:
        """Parse the body as a JSON object. Raises Violation."""
        try:
            value: object = json.loads(self.body, parse_constant=_reject_constant)
        except ValueError as error:
            raise Violation(f"the body is not JSON: {error}: {self.body[:80]!r}") from None
        return require_object(value, "the body")

    def message(self) -> str:
        """Return the error message of the body, in any common envelope."""
        try:
            error: Any = json.loads(self.body)
        except ValueError:
            return self.body[:200].decode(errors="replace")
        # Envelopes nest: {"error": {"message": …}}, {"error": "…"}, FastAPI's
        # {"detail": …}.
        while isinstance(error, dict):
            values = cast(Json, error)
            error = values.get("error", values.get("message", values.get("detail", str(values))))
        return str(error)[:300]


def _reject_constant(name: str) -> float:
    # Python's parser accepts NaN and Infinity, which are not JSON.
    raise ValueError(f"{name} is not JSON")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckTarget:
    """The server to check, and the limits for it.

    url: base URL without `/v1`.
    model: name of the model; empty selects the first listed one.
    profile: a key of `runner.PROFILES`, or `auto`.
    timeout: seconds per request.
    max_requests: limit of all requests.
    max_tokens: limit of the output tokens that all requests together allow.
    """

    url: str
    api_key: str | None = None
    model: str = ""
    profile: str = "auto"
    timeout: float = 60.0
    max_requests: int = 2000
    max_tokens: int = 200_000


class Client:
    """An HTTP client of the server that counts requests and the output tokens that they
    allow.

    cache: results of `Session.share` with their exchanges.
    """

    def __init__(self, target: CheckTarget) -> None:
        self.target = target
        self.requests = self.tokens = 0
        self.cache: dict[str, tuple[object, list[Exchange]]] = {}
        self._client = httpx2.AsyncClient(
            base_url=target.url,
            timeout=httpx2.Timeout(target.timeout),
            # A proxy in front of the server would answer for it.
            trust_env=False,
        )

    async def close(self) -> None:
        await self._client.aclose()

    @property
    def has_room(self) -> bool:
        return self.requests < self.target.max_requests and self.tokens < self.target.max_tokens

    def spend(self, body: object) -> None:
        """Count a request before it is sent. Raises LimitReached."""
        if self.requests >= self.target.max_requests:
            raise LimitReached(f"the limit of {self.target.max_requests} requests is used up")
        fields = cast(Json, body) if isinstance(body, dict) else {}
        tokens = 0
        # Only embeddings have `encoding_format`.
        if fields.keys() & {"messages", "prompt", "input", "text", "inputs"} and not fields.get(
            "encoding_format"
        ):
            # Count what the request allows, not the reported usage: the limit must hold
            # even if usage is wrong.
            no_options: Json = {}
            options = next(
                filter(None, (get_object(fields, name) for name in _OPTIONS)), no_options
            )
            limits = [source.get(name) for source in (fields, options) for name in _LIMITS]
            limits = [limit for limit in limits if isinstance(limit, int) and limit > 0]
            n = fields.get("n")
            tokens = max(limits, default=DEFAULT_OUTPUT) * (
                n if isinstance(n, int) and 0 < n < 10 else 1
            )
        if self.tokens + tokens > self.target.max_tokens:
            raise LimitReached(f"the limit of {self.target.max_tokens} output tokens is used up")
        self.requests += 1
        self.tokens += tokens

    def build_headers(self, path: str) -> dict[str, str]:
        """Build the headers with the key for this API, and Anthropic's version."""
        headers: dict[str, str] = {}
        if self.target.api_key is not None:
            headers["authorization"] = f"Bearer {self.target.api_key}"
        if path.startswith("/v1/messages"):
            headers["anthropic-version"] = "2023-06-01"
            if self.target.api_key is not None:
                headers["x-api-key"] = self.target.api_key
        return headers

    @asynccontextmanager
    async def open(
        self, method: str, path: str, content: bytes | None, headers: Mapping[str, str]
    ) -> AsyncGenerator[httpx2.Response]:
        merged = {**self.build_headers(path), **headers}
        async with self._client.stream(method, path, content=content, headers=merged) as response:
            yield response


class Session:
    """The requests of one check.

    claims: the features that the server claims.
    exchanges: the evidence, in order.
    """

    def __init__(self, client: Client, claims: frozenset[str]) -> None:
        self.client = client
        self.target = client.target
        self.claims = claims
        self.exchanges: list[Exchange] = []

    @property
    def model(self) -> str:
        return self.target.model

    async def send(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        headers: Mapping[str, str] | None = None,
        raw: bytes | None = None,
    ) -> Exchange:
        """Send a request, and read the whole response.

        body: encoded as JSON.
        raw: bytes to send as the body instead.

        Raises Violation if there is no complete response, and LimitReached.
        """
        self.client.spend(body)
        content = raw if raw is not None else None if body is None else json.dumps(body).encode()
        sent = {
            **({} if content is None else {"content-type": "application/json"}),
            **(headers or {}),
        }
        exchange = Exchange(method, path, content or b"")
        self.exchanges.append(exchange)
        start = time.perf_counter()
        try:
            try:
                await self._receive(exchange, content, sent)
            except (httpx2.RemoteProtocolError, httpx2.ReadError, httpx2.WriteError):
                # The server may have closed an idle connection while it was reused (RFC
                # 9112, 9.3.1): retry once.
                if exchange.status:
                    raise
                await self._receive(exchange, content, sent)
        except httpx2.TimeoutException:
            raise Violation(
                f"{method} {path}: no response within {self.target.timeout:g} s"
            ) from None
        except (httpx2.HTTPError, ValueError) as error:
            raise Violation(f"{method} {path}: {type(error).__name__}: {error}") from None
        finally:
            exchange.seconds = time.perf_counter() - start
        return exchange

    async def _receive(
        self, exchange: Exchange, content: bytes | None, headers: Mapping[str, str]
    ) -> None:
        async with self.client.open(exchange.method, exchange.path, content, headers) as response:
            exchange.status = response.status_code
            exchange.headers = [
                (key.lower(), value) for key, value in response.headers.multi_items()
            ]
            async for piece in response.aiter_bytes():
                exchange.body += piece

    async def post(self, path: str, body: object, **options: Any) -> Exchange:
        return await self.send("POST", path, body, **options)

    async def get(self, path: str, **options: Any) -> Exchange:
        return await self.send("GET", path, **options)

    async def ask(
        self, path: str, body: Json, *, feature: str | None = None, **options: Any
    ) -> Exchange:
        """Send a request that has to be answered with 200.

        feature: an option of the request that a server may reject, or ignore with a
            warning.

        Raises:
            Skipped: the server rejects a feature that it does not claim, as with
                `auto`, or ignores it with a warning.
            Violation: another status than 200.
        """
        exchange = await self.post(path, body, **options)
        # With `auto`, claims are only assumed from routes.
        is_claimed = feature in self.claims and self.target.profile != "auto"
        if feature is not None and not is_claimed and exchange.status in REFUSALS:
            raise Skipped(f"the server refuses {feature}: {exchange.message()}")
        warnings = exchange.header("x-dragoman-warnings") or ""
        if feature is not None and f"{feature} is ignored" in warnings:
            raise Skipped(f"the server ignores {feature}: {warnings}")
        require(
            exchange.status == 200, f"POST {path}: status {exchange.status}: {exchange.message()}"
        )
        return exchange

    async def share(self, key: str, build: Callable[[], Awaitable[T]]) -> T:
        """Return or raise the result of `build`, cached for all checks; its exchanges
        become evidence of each.
        """
        cached = self.client.cache.get(key)
        if cached is None:
            before = len(self.exchanges)
            try:
                value: object = await build()
            # Cache failures, too: a failed request is not repeated for every check that
            # needs it.
            except (Violation, Skipped) as error:
                value = error
            cached = self.client.cache[key] = (value, self.exchanges[before:])
        else:
            self.exchanges += cached[1]
        if isinstance(cached[0], Exception):
            raise cached[0]
        return cast(T, cached[0])

    async def send_bytes(self, data: bytes, *, patience: float = 5.0) -> Exchange:
        """Send bytes on a new connection, and read until the server closes it or sends
        nothing for `QUIET` seconds.

        The exchange's body is everything that was received, with status line and
        headers.

        patience: seconds to wait for the first byte.
        """
        self.client.spend(None)
        url = urlsplit(self.target.url)
        exchange = Exchange("RAW", url.netloc, data)
        self.exchanges.append(exchange)
        context = ssl.create_default_context() if url.scheme == "https" else None
        port = url.port or (443 if context else 80)
        try:
            reader, writer = await asyncio.open_connection(url.hostname, port, ssl=context)
        except OSError as error:
            raise Violation(f"cannot connect: {error}") from None
        try:
            writer.write(data)
            while piece := await asyncio.wait_for(
                reader.read(65536), QUIET if exchange.body else patience
            ):
                exchange.body += piece
        except (TimeoutError, ConnectionError):
            pass
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
        head = exchange.body.partition(b"\r\n")[0].split(b" ")
        exchange.status = int(head[1]) if len(head) > 1 and head[1].isdigit() else 0
        return exchange

    def build_head(
        self, method: str, path: str, *lines: str, version: str = "HTTP/1.1", host: bool = True
    ) -> bytes:
        """Build the request line and headers of a raw request, with the key, without
        the final empty line.
        """
        netloc = urlsplit(self.target.url).netloc
        head = [f"{method} {path} {version}", *([f"Host: {netloc}"] if host else [])]
        head += [f"{name}: {value}" for name, value in self.client.build_headers(path).items()]
        return "".join(f"{line}\r\n" for line in (*head, *lines)).encode("latin-1")

    @asynccontextmanager
    async def stream(
        self, path: str, body: Json, headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[httpx2.Response]:
        """Open a stream. Leaving the block closes the connection, which cancels the
        generation.
        """
        # Counted as `DEFAULT_OUTPUT` tokens, whatever the request allows: the check
        # disconnects early.
        self.client.spend({"prompt": ""})
        content = json.dumps(body).encode()
        exchange = Exchange("POST", path, content)
        self.exchanges.append(exchange)
        try:
            sent = {"content-type": "application/json", **(headers or {})}
            async with self.client.open("POST", path, content, sent) as response:
                exchange.status = response.status_code
                yield response
        except httpx2.HTTPError as error:
            raise Violation(f"POST {path}: {type(error).__name__}: {error}") from None

    @asynccontextmanager
    async def open_websocket(self, path: str) -> AsyncGenerator[Socket]:
        """Open a WebSocket. Raises Skipped if the server has none at this path."""
        self.client.spend(None)
        url = self.target.url.replace("http", "ws", 1) + path
        exchange = Exchange("WEBSOCKET", path, b"")
        self.exchanges.append(exchange)
        try:
            async with connect(
                url,
                additional_headers=self.client.build_headers(path),
                proxy=None,
                open_timeout=self.target.timeout,
                max_size=None,
            ) as connection:
                yield Socket(connection, exchange, self.client)
        except InvalidHandshake as error:
            raise Skipped(f"no WebSocket at {path}: {error}") from None


class Socket:
    """An open WebSocket whose frames are JSON objects."""

    def __init__(self, connection: ClientConnection, exchange: Exchange, client: Client) -> None:
        self._connection = connection
        self._exchange = exchange
        self._client = client

    async def send(self, frame: Json | str) -> None:
        self._client.spend(frame)
        text = frame if isinstance(frame, str) else json.dumps(frame)
        self._exchange.request += text.encode() + b"\n"
        await self._connection.send(text)

    async def receive(self) -> Json:
        """Receive a frame. Raises Violation if none comes within the timeout, or if it
        is not a JSON object.
        """
        try:
            data = await asyncio.wait_for(self._connection.recv(), self._client.target.timeout)
        except (TimeoutError, OSError) as error:
            raise Violation(f"no frame received: {type(error).__name__}") from None
        text = data if isinstance(data, str) else data.decode(errors="replace")
        self._exchange.body += text.encode() + b"\n"
        return require_object(json.loads(text), "the frame")

    async def receive_turn(self) -> list[Json]:
        """Receive the events up to the one that ends a response, or up to an error."""
        events: list[Json] = []
        ends = ("response.completed", "response.incomplete", "response.failed", "error")
        while not events or events[-1].get("type") not in ends:
            events.append(await self.receive())
        return events


def get_object(value: Json, name: str) -> Json:
    """Return the object of this name; empty if it is absent, null or not an object."""
    member = value.get(name)
    return cast(Json, member) if isinstance(member, dict) else {}


def get_objects(value: Json, name: str) -> list[Json]:
    """Return the objects in the list of this name; empty if it is absent, null or not a
    list.
    """
    member = value.get(name)
    return cast(list[Json], member) if isinstance(member, list) else []
