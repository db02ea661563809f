"""The upstream engine: forwards requests to other servers over HTTP and yields the
events of their responses.

A request is retried on another upstream only until one accepts it with status 200: a
later failure ends the response.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import ParamSpec, TypeVar

import msgspec
from msgspec import Struct

from dragoman_http import (
    ClientTimeouts,
    ConnectFailed,
    HttpClient,
    HttpClientError,
    HttpResponse,
    InvalidResponse,
    SseDecoder,
)

from ...core.capabilities import Capabilities
from ...core.encoder_requests import (
    Embeddings,
    EncodingTask,
    RelevanceScores,
    TextEmbedRequest,
    TextPairs,
)
from ...core.engine import EventDelivery, Health
from ...core.errors import (
    DragomanError,
    EngineError,
    Overloaded,
    RateLimited,
    RequestError,
    Unsupported,
)
from ...core.events import ChoiceFinished, Event, Finished, FinishReason, PromptTokens, Started
from ...core.request import Conversation, GenerateRequest
from ...core.tokenizer import RemoteTokens
from ...core.trace_context import SpanContext
from ...core.transcription import TranscribeRequest, TranscriptEvent
from .embeddings import LARGE_BODY
from .errors import (
    MAX_ERROR_BODY,
    ConnectionClosed,
    build_lost_error,
    build_transport_error,
    parse_error,
)
from .event_stream import EventStream, StreamReader, read_body
from .openai_request import encode_detokenize_request, encode_tokenize_request
from .request_warnings import RequestWarnings
from .scores import decode_scores
from .server_kind import ServerKind
from .transcriptions import TranscriptReader, encode_transcription_request
from .upstream_pool import UpstreamPool, build_prefix
from .upstream_request import UpstreamDefaults, UpstreamRequest
from .upstream_server import Upstream, build_auth_headers
from .wire import DetokenizedPrompt, TokensResponse

T = TypeVar("T")
P = ParamSpec("P")

log = logging.getLogger(__name__)

MAX_JSON_BODY = 64 * 1024 * 1024
"""Limit of a non-streamed response, bytes."""
_WARNINGS_HEADER = "x-dragoman-warnings"


class UpstreamConfig(Struct, frozen=True):
    """Settings of an upstream engine.

    model: the model's name at the upstream.
    connect_timeout: limit for connecting, and for the response to a health check;
        seconds.
    read_timeout: seconds without a byte after which an upstream has failed.
    retries: how many times a request is retried, on other upstreams.
    probe_interval: seconds between health checks.
    native_tools, native_reasoning: see `Capabilities`.
    encoding_tasks: the model's tasks besides, or instead of, generation: embedding and
        scoring.
    """

    upstreams: tuple[Upstream, ...]
    model: str
    kind: ServerKind
    defaults: UpstreamDefaults = UpstreamDefaults()
    connect_timeout: float = 5.0
    read_timeout: float = 600.0
    retries: int = 2
    probe_interval: float = 1.0
    native_tools: bool = True
    native_reasoning: bool = True
    encoding_tasks: frozenset[EncodingTask] = frozenset()


class UpstreamEngine:
    """Forwards requests to other servers. Implements `Engine`, `DirectEngine`,
    `TextEncoder` and `Transcriber` of `core`.
    """

    def __init__(
        self,
        config: UpstreamConfig,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        new_id: Callable[[], str] = lambda: "call_" + secrets.token_hex(12),
    ) -> None:
        self._config = config
        self._sleep = sleep
        self._new_id = new_id
        self._pool = UpstreamPool(config.upstreams)
        self._client: HttpClient | None = None
        self._probe_task: asyncio.Task[None] | None = None
        kind = config.kind
        self._capabilities = Capabilities(
            kind.features,
            kind.parameters,
            kind.max_logprobs,
            config.native_tools,
            config.native_reasoning,
            verifies_reasoning=kind.api.verifies_reasoning or kind.has_reasoning_details,
            has_one_choice=kind.api.has_one_choice,
        )

    @property
    def upstreams(self) -> tuple[Upstream, ...]:
        return self._config.upstreams

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    async def start(self) -> None:
        config = self._config
        # Connections are not limited: the queue in front of the engine limits
        # concurrency.
        self._client = HttpClient(ClientTimeouts(config.connect_timeout, config.read_timeout))
        self._probe_task = asyncio.create_task(self._probe_all(self._client))

    async def stop(self) -> None:
        # Cleared first: no request may start on a client that is being closed.
        client = self._client
        self._client = None
        if self._probe_task is not None:
            self._probe_task.cancel()
            await asyncio.gather(self._probe_task, return_exceptions=True)
        if client is not None:
            await client.close()

    def health(self) -> Health:
        if self._client is None:
            return Health(ready=False, reason="the engine is not running")
        running = sum(self._pool.running)
        if not self._pool.is_ready:
            return Health(ready=False, reason="no upstream is available", running=running)
        return Health(running=running)

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Event]:
        if request.limits.max_tokens == 0:
            return self._answer_prompt(request)
        return self._answer(request, None)

    def generate_directly(
        self, request: GenerateRequest, deliver: EventDelivery
    ) -> AsyncGenerator[Event]:
        return (
            self.generate(request)
            if request.limits.max_tokens == 0
            else self._answer(request, deliver)
        )

    async def count_prompt_tokens(self, request: GenerateRequest) -> int:
        """Implements `PromptCounter`. Raises Unsupported if the upstream does not
        tokenize.
        """
        config = self._config
        if (counting := config.kind.api.counting) is not None:
            count_request = counting.encode(request, config.kind, config.model)
            answer = await self._fetch(
                count_request, build_prefix(request.prompt), counting.response, request.trace
            )
            return answer.count
        self._check_tokenizes()
        try:
            return len((await self.tokenize_prompt(request)).ids)
        except RequestError as error:
            if error.code != "unsupported_parameter":
                raise
            # The upstream's message is about a request to /tokenize, which the client
            # has not sent.
            raise Unsupported(
                "This model's upstream does not support counting tokens.", param="model"
            ) from error

    async def tokenize_prompt(
        self, request: GenerateRequest, *, with_texts: bool = False
    ) -> RemoteTokens:
        """Implements `RemoteTokenizer`. Raises Unsupported if the upstream does not
        tokenize.
        """
        config = self._config
        self._check_tokenizes()
        upstream_request = encode_tokenize_request(
            request, config.kind, config.model, with_texts=with_texts
        )
        answer = await self._fetch(
            upstream_request, build_prefix(request.prompt), TokensResponse, request.trace
        )
        if answer.count != len(answer.tokens) or (
            with_texts and len(answer.token_strs or ()) != answer.count
        ):
            raise EngineError("The upstream sent an invalid response.")
        return RemoteTokens(
            tuple(answer.tokens), tuple(answer.token_strs or ()) if with_texts else None
        )

    async def detokenize(self, ids: tuple[int, ...]) -> str:
        """Implements `RemoteTokenizer`. Raises Unsupported if the upstream does not
        tokenize.
        """
        self._check_tokenizes()
        request = encode_detokenize_request(self._config.model, ids)
        return (await self._fetch(request, build_prefix(ids), DetokenizedPrompt)).prompt

    @property
    def encoding_tasks(self) -> frozenset[EncodingTask]:
        return self._config.encoding_tasks

    @property
    def scores_texts(self) -> bool:
        tasks = self._config.encoding_tasks
        return EncodingTask.SCORING in tasks or (
            bool(tasks) and self._config.kind.has_encoding_options
        )

    async def embed_texts(self, request: TextEmbedRequest) -> Embeddings:
        """Implements `TextEncoder`."""
        kind = self._config.kind
        # Embeddings have no prefix cache to hit: with the whole body as the prefix,
        # requests spread over all upstreams.
        upstream_request = kind.api.encode_embeddings(request, kind, self._config.model)
        body = await self._fetch_body(upstream_request, upstream_request.body, request.trace)
        return await _run_if_large(len(body), kind.api.decode_embeddings, body, request, kind)

    async def score_texts(self, pairs: TextPairs) -> RelevanceScores:
        """Implements `TextEncoder`."""
        requests = self._config.kind.encode_scores(pairs, self._config.model)
        bodies = [
            await self._fetch_body(request, request.body, pairs.trace) for request in requests
        ]
        return await _run_if_large(sum(map(len, bodies)), decode_scores, bodies, pairs)

    async def transcribe(self, request: TranscribeRequest) -> AsyncGenerator[TranscriptEvent]:
        """Implements `Transcriber`."""
        config = self._config
        boundary = secrets.token_hex(24)
        upstream_request = encode_transcription_request(
            request, config.kind, config.model, boundary
        )
        reader = TranscriptReader()
        # There is no prefix cache to hit: the boundary spreads the requests.
        prefix = boundary.encode()
        async with self._open_response(upstream_request, prefix, request.trace) as response:
            if response.headers.get("content-type", "").startswith("text/event-stream"):
                decoder = SseDecoder()
                try:
                    while not reader.is_done and (piece := await response.read()) is not None:
                        pieces = decoder.feed(piece)
                        for data, name in zip(pieces, decoder.names, strict=True):
                            for event in () if reader.is_done else reader.read(data, name):
                                yield event
                except InvalidResponse as error:
                    raise EngineError(f"The upstream's stream cannot be read: {error}.") from None
            else:
                for event in reader.read_whole(await _read_limited(response, MAX_JSON_BODY)):
                    yield event
            response.close(drain=True)
        for event in reader.close():
            yield event

    def _check_tokenizes(self) -> None:
        if not self._config.kind.returns_token_ids:
            raise Unsupported("This model's upstream does not offer tokenization.", param="model")

    async def _fetch(
        self,
        request: UpstreamRequest,
        prefix: bytes,
        type: type[T],
        trace: SpanContext | None = None,
    ) -> T:
        """Fetch a response that is not streamed. Raises EngineError if it cannot be
        parsed.
        """
        body = await self._fetch_body(request, prefix, trace)
        try:
            return msgspec.json.decode(body, type=type)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            log.warning("an upstream's response cannot be parsed: %s", error)
            raise EngineError("The upstream sent an invalid response.") from None

    async def _fetch_body(
        self, request: UpstreamRequest, prefix: bytes, trace: SpanContext | None
    ) -> bytes:
        async with self._open_response(request, prefix, trace) as response:
            return await _read_limited(response, MAX_JSON_BODY)

    async def _answer_prompt(self, request: GenerateRequest) -> AsyncGenerator[Event]:
        """Yield the events of the prompt alone, or only fill the prefix cache
        (`max_tokens` is 0).

        Upstreams reject a limit of 0, so one token is requested and dropped.
        """
        limits = msgspec.structs.replace(request.limits, max_tokens=1)
        async with aclosing(
            self._answer(msgspec.structs.replace(request, limits=limits), None)
        ) as events:
            async for event in events:
                match event:
                    case Started() | PromptTokens():
                        yield event
                    case ChoiceFinished(choice):
                        yield ChoiceFinished(choice, FinishReason.LENGTH)
                    case Finished(usage):
                        usage = msgspec.structs.replace(usage, completion=0, reasoning=None)
                        yield msgspec.structs.replace(event, usage=usage)
                    case _:
                        pass

    async def _answer(
        self, request: GenerateRequest, deliver: EventDelivery | None
    ) -> AsyncGenerator[Event]:
        config = self._config
        upstream_request = config.kind.api.encode(
            request, config.kind, config.model, config.defaults
        )
        prefix = build_prefix(request.prompt)
        lists_prompt = request.prompt_logprobs is not None and not isinstance(
            request.prompt, Conversation
        )
        reader = await self._build_reader(request, prefix)
        names = config.kind.field_names
        reader.warnings = RequestWarnings(upstream_request.warnings, names)
        late_warnings: tuple[str, ...] = ()
        async with self._open_response(upstream_request, prefix, request.trace) as response:
            if warnings := response.headers.get(_WARNINGS_HEADER):
                reader.warnings.report(warnings.split("; "))
            if response.headers.get("content-type", "").startswith("application/json"):
                body = await _read_limited(response, MAX_JSON_BODY)
                for event in await _run_if_large(len(body), read_body, reader, body):
                    if isinstance(event, PromptTokens) and lists_prompt:
                        # The first token has no row in `prompt_logprobs`, and so no
                        # text yet.
                        first, *others = event.tokens
                        first = msgspec.structs.replace(
                            first, text=await self.detokenize((first.id,))
                        )
                        yield msgspec.structs.replace(event, tokens=(first, *others))
                    else:
                        yield event
            else:
                stream = EventStream(reader, response, deliver)
                if deliver is not None:
                    response.receive_directly(stream.receive)
                is_ended = False
                while not stream.is_done and not is_ended:
                    piece = await response.read()
                    is_ended = piece is None
                    for event in stream.end() if piece is None else stream.feed(piece):
                        yield event
                    if stream.failure is not None:
                        if isinstance(stream.failure, DragomanError):
                            names.rename_error(stream.failure)
                        raise stream.failure
                late_warnings = stream.late_warnings
            # Only the end of the body can follow [DONE]: the connection can be used
            # again.
            response.close(drain=True)
        for event in reader.close():
            yield (
                msgspec.structs.replace(event, warnings=(*event.warnings, *late_warnings))
                if isinstance(event, Finished)
                else event
            )

    async def _build_reader(self, request: GenerateRequest, prefix: bytes) -> StreamReader:
        prompt_text = None
        if request.return_prompt and isinstance(request.prompt, tuple):
            detokenize_request = encode_detokenize_request(self._config.model, request.prompt)
            detokenized = await self._fetch(
                detokenize_request, prefix, DetokenizedPrompt, request.trace
            )
            prompt_text = detokenized.prompt
        return self._config.kind.api.create_reader(request, self._new_id, prompt_text)

    @asynccontextmanager
    async def _open_response(
        self, request: UpstreamRequest, prefix: bytes, trace: SpanContext | None
    ) -> AsyncGenerator[HttpResponse]:
        """Send to one upstream after the other until one accepts, and yield its
        response: status 200, body unread.

        An overloaded upstream is not tried again. Raises the last upstream's error if
        none accepts.

        trace: the parent of the upstream's span.
        """
        tried: set[int] = set()
        last_error: Overloaded | RateLimited = Overloaded("No upstream is available; retry later.")
        for _ in range(self._config.retries + 1):
            index = self._pool.choose(prefix, tried)
            # A server may close an idle keepalive connection at any time: it is tried
            # again, on a new connection.
            if index is None and isinstance(last_error, ConnectionClosed):
                index = self._pool.choose(prefix)
            if index is None:
                raise last_error
            tried.add(index)
            try:
                response = await self._post(index, request, trace)
                break
            except (Overloaded, RateLimited) as error:
                last_error = error
        else:
            raise last_error
        try:
            yield response
        except HttpClientError as error:
            self._record_failure(index, error)
            raise build_lost_error(error) from None
        finally:
            self._pool.running[index] -= 1
            response.close()

    async def _post(
        self, index: int, upstream_request: UpstreamRequest, trace: SpanContext | None
    ) -> HttpResponse:
        """Send to one upstream, and count the request as running if it answers with
        status 200; else raise.
        """
        client = self._client
        upstream = self._pool.upstreams[index]
        if client is None:
            raise EngineError("The engine is not running.")
        headers = {
            "content-type": upstream_request.content_type,
            "accept": "text/event-stream",
            **build_auth_headers(upstream, self._config.kind),
        }
        if self._config.kind.reports_warnings:
            # The list in the body is exact: a warning may contain the header's
            # separator.
            headers[_WARNINGS_HEADER] = "body"
        if trace is not None:
            headers |= trace.build_headers()
        base_url = (
            upstream.url if upstream_request.is_versioned else upstream.url.removesuffix("/v1")
        )
        self._pool.running[index] += 1
        try:
            response = await client.send(
                "POST", base_url + upstream_request.path, headers, upstream_request.body
            )
            if response.status == 200:
                return response
            try:
                body = await response.read_all(MAX_ERROR_BODY)
            finally:
                response.close()
        # Cancellation included: a count that stays too high would permanently divert
        # requests from this upstream.
        except BaseException as error:
            self._pool.running[index] -= 1
            if isinstance(error, HttpClientError):
                self._record_failure(index, error)
                raise build_transport_error(error) from None
            raise
        self._pool.running[index] -= 1
        # Client errors are passed to the client.
        status = response.status
        level = logging.WARNING if status >= 500 or status in (401, 403) else logging.DEBUG
        log.log(level, "%s returned HTTP %d", upstream.url, status)
        error = parse_error(status, body, response.headers.get("retry-after"))
        self._config.kind.field_names.rename_error(error)
        raise error

    def _record_failure(self, index: int, error: HttpClientError) -> None:
        """Record a transport failure. A timeout or disconnect may concern one
        connection only: the next health check decides.
        """
        log.warning("%s: %s", self._pool.upstreams[index].url, error)
        if isinstance(error, ConnectFailed):
            self._pool.set_up(index, up=False)

    async def _probe_all(self, client: HttpClient) -> None:
        """Health-check all upstreams concurrently, until cancelled."""
        while True:
            await asyncio.gather(
                *(self._probe_one(client, index) for index in range(len(self._pool.upstreams)))
            )
            await self._sleep(self._config.probe_interval)

    async def _probe_one(self, client: HttpClient, index: int) -> None:
        upstream = self._pool.upstreams[index]
        is_up = False
        with suppress(HttpClientError):
            # With the read timeout of responses, 600 s by default, a hung server would
            # stay in use for that long.
            response = await client.send(
                "GET",
                f"{upstream.url}/models",
                build_auth_headers(upstream, self._config.kind),
                read_timeout=self._config.connect_timeout,
            )
            response.close(drain=True)
            # An error such as 401 or 404 comes from a server that runs.
            is_up = response.status < 500
        if is_up != self._pool.is_up(index):
            log.warning("%s is %s", upstream.url, "up" if is_up else "down")
        self._pool.set_up(index, up=is_up)


async def _run_if_large(size: int, decode: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Decode a body of `size` bytes, in a thread if it would block the event loop."""
    return (
        decode(*args, **kwargs)
        if size <= LARGE_BODY
        else await asyncio.to_thread(decode, *args, **kwargs)
    )


async def _read_limited(response: HttpResponse, max_bytes: int) -> bytes:
    """Read a body. Raises EngineError for a longer one."""
    body = await response.read_all(max_bytes)
    if len(body) > max_bytes:
        raise EngineError(f"The upstream's answer has more than {max_bytes} bytes.")
    return body
