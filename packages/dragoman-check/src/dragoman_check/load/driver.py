"""A load generator: sends a workload to a server in real time, and measures every
streamed response.

An open loop sends each request at its time in the workload, however slow the server is.
A closed loop has a fixed number of clients, each of which sends its next request after
its last response. Prompts are random words of about one token each, unique per request;
token counts are the server's own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, Protocol, cast

import msgspec
import numpy as np
from msgspec import Raw, Struct

from dragoman_http import ClientTimeouts, HttpClient, HttpClientError
from .logs.log import LogError, MeasuredLog, build_log
from .workload import Timing, WorkloadRequest
from dragoman.commands.options import OnProgress

# One streamed response of any dialect: arrival times and number of its tokens.

CountSource = Literal["ids", "usage"]
"""Source of the token counts: the token ids in the stream, or the server's usage."""


class StreamPiece(Struct, frozen=True):
    """The contents of one line of a stream.

    has_tokens: the line has part of the answer: text, reasoning or a tool call.
    ids: number of token ids in the line; None or 0 if there are none.
    prompt, completion: token counts of the server's usage; None if the line has none.
    """

    has_tokens: bool = False
    ids: int | None = None
    prompt: int | None = None
    completion: int | None = None


class Measurement(Struct, frozen=True):
    """One answered request.

    gaps: seconds between arrivals of its tokens; tokens that arrive together count as
        one arrival.
    counted_by: source of the number of output tokens.
    """

    timing: Timing
    gaps: tuple[float, ...]
    counted_by: CountSource


class StreamMeter:
    """Records when the tokens of one response arrive."""

    def __init__(self, dialect: BenchDialect) -> None:
        self._dialect = dialect
        self._token_times: list[float] = []
        self._ids: int | None = None
        self._prompt: int | None = None
        self._completion: int | None = None

    def feed(self, line: str, at: float) -> None:
        """Read a line of the stream, received at this time. Raises LogError if it is
        invalid or an error.
        """
        payload = (
            line
            if self._dialect.is_lines
            else line.removeprefix("data:").strip()
            if line[:5] == "data:"
            else ""
        )
        if not payload.startswith("{"):
            return
        try:
            piece = self._dialect.read(payload)
        except msgspec.MsgspecError as error:
            raise LogError(f"invalid line in the stream: {error}") from None
        if piece.ids:
            self._ids = (self._ids or 0) + piece.ids
        # A token without text, such as half a character, shows only in the ids.
        if piece.ids or (piece.has_tokens and self._ids is None):
            self._token_times.append(at)
        # Messages sends the prompt tokens in its first event and the completion tokens
        # later: keep earlier counts.
        self._prompt = piece.prompt if piece.prompt is not None else self._prompt
        self._completion = piece.completion if piece.completion is not None else self._completion

    def finish(self, id: str, sent_at: float) -> Measurement:
        """Build the measurement. Raises LogError if no token arrived, or the server did
        not count them.
        """
        times = self._token_times
        completion = self._ids or self._completion
        if not times or self._prompt is None or completion is None:
            raise LogError("the response has no tokens, or no usage")
        gaps = tuple(after - before for before, after in pairwise(times))
        timing = Timing(id, sent_at, times[0], times[-1], self._prompt, completion)
        return Measurement(timing, gaps, "usage" if self._ids is None else "ids")


@dataclass(frozen=True, slots=True)
class BenchDialect:
    """An API that can be benchmarked.

    path: path of the endpoint.
    build_body: builds a request body from the model, the prompt and the number of
        tokens to generate.
    read: reads the JSON of one stream line.
    is_lines: the stream is JSON Lines instead of server-sent events.
    lists_ids: the API has vLLM's `return_token_ids`.
    """

    path: str
    build_body: Callable[[str, str, int], dict[str, object]]
    read: Callable[[str], StreamPiece]
    is_lines: bool = False
    lists_ids: bool = False


class _OpenAIUsage(Struct):
    prompt_tokens: int
    completion_tokens: int


class _Delta(Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    tool_calls: Raw = Raw(b"null")


class _Choice(Struct):
    text: str | None = None
    delta: _Delta | None = None
    token_ids: list[int] | None = None


class _Chunk(Struct):
    choices: list[_Choice] = []
    usage: _OpenAIUsage | None = None
    error: Raw = Raw(b"null")


_CHUNK = msgspec.json.Decoder(_Chunk)


def _read_chunk(line: str) -> StreamPiece:
    chunk = _CHUNK.decode(line)
    _check_error(chunk.error)
    ids = 0
    has_tokens = False
    for choice in chunk.choices:
        ids += len(choice.token_ids or ())
        delta = choice.delta or _Delta()
        texts = (
            choice.text,
            delta.content,
            delta.reasoning,
            delta.reasoning_content,
            delta.refusal,
        )
        has_tokens = has_tokens or any(texts) or bytes(delta.tool_calls) not in (b"null", b"[]")
    if chunk.usage is None:
        return StreamPiece(has_tokens, ids)
    return StreamPiece(has_tokens, ids, chunk.usage.prompt_tokens, chunk.usage.completion_tokens)


def _check_error(error: Raw) -> None:
    if bytes(error) != b"null":
        raise LogError(
            f"the stream ended with an error: {bytes(error)[:200].decode(errors='replace')}"
        )


class _MessagesUsage(Struct):
    input_tokens: int = 0
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens: int = 0


class _Message(Struct):
    usage: _MessagesUsage


class _BlockDelta(Struct):
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None


class _MessageEvent(Struct):
    type: str
    message: _Message | None = None
    delta: _BlockDelta | None = None
    usage: _MessagesUsage | None = None
    error: Raw = Raw(b"null")


_MESSAGE_EVENT = msgspec.json.Decoder(_MessageEvent)


def _read_message_event(line: str) -> StreamPiece:
    event = _MESSAGE_EVENT.decode(line)
    _check_error(event.error)
    if event.message is not None:
        usage = event.message.usage
        # Anthropic's input_tokens excludes cached tokens.
        cached = (usage.cache_creation_input_tokens or 0) + (usage.cache_read_input_tokens or 0)
        return StreamPiece(prompt=usage.input_tokens + cached)
    if event.usage is not None:
        return StreamPiece(completion=event.usage.output_tokens)
    delta = event.delta
    return StreamPiece(delta is not None and any((delta.text, delta.thinking, delta.partial_json)))


class _ResponsesUsage(Struct):
    input_tokens: int
    output_tokens: int


class _Response(Struct):
    usage: _ResponsesUsage | None = None
    error: Raw = Raw(b"null")


class _ResponseEvent(Struct):
    type: str
    delta: str | None = None
    response: _Response | None = None
    error: Raw = Raw(b"null")


_RESPONSE_EVENT = msgspec.json.Decoder(_ResponseEvent)


def _read_response_event(line: str) -> StreamPiece:
    event = _RESPONSE_EVENT.decode(line)
    _check_error(event.error)
    if event.response is None:
        return StreamPiece(bool(event.delta))
    _check_error(event.response.error)
    usage = event.response.usage
    return (
        StreamPiece()
        if usage is None
        else StreamPiece(prompt=usage.input_tokens, completion=usage.output_tokens)
    )


class _OllamaMessage(Struct):
    content: str = ""
    thinking: str = ""
    tool_calls: Raw = Raw(b"null")


class _OllamaLine(Struct):
    message: _OllamaMessage | None = None
    prompt_eval_count: int | None = None
    eval_count: int | None = None
    error: Raw = Raw(b"null")


_OLLAMA_LINE = msgspec.json.Decoder(_OllamaLine)


def _read_ollama_line(line: str) -> StreamPiece:
    parsed = _OLLAMA_LINE.decode(line)
    _check_error(parsed.error)
    message = parsed.message
    has_tokens = message is not None and (
        bool(message.content or message.thinking) or bytes(message.tool_calls) != b"null"
    )
    return StreamPiece(has_tokens, None, parsed.prompt_eval_count, parsed.eval_count)


# The requests of each dialect.

_EXACT = {"ignore_eos": True, "stream": True}
"""`ignore_eos` is vLLM's: the answer has exactly the requested number of tokens."""
_OPENAI: Mapping[str, object] = {**_EXACT, "stream_options": {"include_usage": True}}


def _ask_user(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


DIALECTS: Mapping[str, BenchDialect] = {
    "completions": BenchDialect(
        "/v1/completions",
        lambda model, prompt, tokens: {
            **{"model": model, "prompt": prompt, "max_tokens": tokens, "min_tokens": tokens},
            **_OPENAI,
        },
        _read_chunk,
        lists_ids=True,
    ),
    "chat": BenchDialect(
        "/v1/chat/completions",
        lambda model, prompt, tokens: {
            **{"model": model, "messages": _ask_user(prompt), "max_tokens": tokens, "min_tokens": tokens},
            **_OPENAI,
        },
        _read_chunk,
        lists_ids=True,
    ),
    "responses": BenchDialect(
        "/v1/responses",
        lambda model, prompt, tokens: {
            "model": model, "input": prompt, "max_output_tokens": tokens, "store": False, **_EXACT,
        },
        _read_response_event,
    ),
    "messages": BenchDialect(
        "/v1/messages",
        lambda model, prompt, tokens: {
            "model": model, "messages": _ask_user(prompt), "max_tokens": tokens, **_EXACT,
        },
        _read_message_event,
    ),
    "ollama": BenchDialect(
        "/api/chat",
        lambda model, prompt, tokens: {
            "model": model, "messages": _ask_user(prompt), "options": {"num_predict": tokens},
        },
        _read_ollama_line,
        is_lines=True,
    ),
}  # fmt: skip


# Load generation.

_TIMEOUTS = ClientTimeouts(connect=60.0, read=86_400.0)
"""Seconds. The read timeout is a day: slow responses of an overloaded server are part
of the measurement.
"""
_MAX_MODELS_BYTES = 10_000_000
PROMPT_WORDS = (
    "time",
    "way",
    "year",
    "work",
    "day",
    "part",
    "place",
    "case",
    "week",
    "point",
    "room",
    "fact",
    "hand",
    "side",
)


class Target(Struct, frozen=True):
    """The server under test.

    url: base URL, with or without /v1.
    model: None selects the first model that the server lists.
    extra_body: JSON object merged into every request; null removes a field.
    dialect: a key of `DIALECTS`.
    """

    url: str
    model: str | None = None
    api_key: str | None = None
    extra_body: str = "{}"
    dialect: str = "completions"


class LoadResult(Struct, frozen=True):
    """The responses to a workload.

    model: the model's name in the requests.
    errors: messages of failed requests.
    """

    model: str
    measurements: tuple[Measurement, ...]
    errors: tuple[str, ...]


def measure_server(
    target: Target, workload: Sequence[WorkloadRequest], on_progress: OnProgress
) -> MeasuredLog:
    """Run the workload in an open loop. Raises LogError if no request succeeds, or the
    server counts no tokens.
    """
    result = asyncio.run(drive_server(target, workload, on_progress))
    notes = (
        [f"{len(result.errors)} requests failed; the first error: {result.errors[0]}"]
        if result.errors
        else []
    )
    if any(request.block_hashes for request in workload):
        notes.append(
            "shared prefixes of the workload were not reproduced: every prompt was new to the "
            "server"
        )
    return build_log(
        target.url, [measurement.timing for measurement in result.measurements], notes=notes
    )


async def drive_server(
    target: Target,
    workload: Sequence[WorkloadRequest],
    on_progress: OnProgress,
    *,
    concurrency: int | None = None,
    warm_up: int = 0,
) -> LoadResult:
    """Send a workload to the server, and measure the responses.

    concurrency: number of clients of a closed loop; None is an open loop.
    warm_up: number of requests to send before the measurement.

    Raises LogError if no request succeeds, or the server counts no tokens.
    """
    client = HttpClient(_TIMEOUTS)
    try:
        run = LoadRun(client, target, on_progress)
        return await run.measure(workload, concurrency=concurrency, warm_up=warm_up)
    finally:
        await client.close()


class LoadResponse(Protocol):
    """A response whose status and headers have arrived; implemented by `HttpResponse`."""

    status: int

    async def read(self) -> bytes | None: ...

    async def read_all(self, max_bytes: int) -> bytes: ...

    def close(self) -> None: ...


class LoadClient(Protocol):
    """A client that sends the requests; implemented by `HttpClient`."""

    async def send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes = b""
    ) -> LoadResponse: ...


class _Model(Struct):
    id: str


class _Models(Struct):
    data: list[_Model]


class LoadRun:
    """One run of a workload against one server.

    now: clock in seconds; `asyncio.sleep` must follow it.
    """

    def __init__(
        self,
        client: LoadClient,
        target: Target,
        on_progress: OnProgress,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        try:
            self._extra = msgspec.json.decode(target.extra_body, type=dict[str, object])
        except msgspec.MsgspecError as error:
            raise ValueError(f"--extra-body: {error}") from None
        self._client = client
        self._target = target
        self._on_progress = on_progress
        self._now = now
        self._base = target.url.rstrip("/").removesuffix("/v1")
        self._headers = {"content-type": "application/json"}
        if target.api_key is not None:
            self._headers["authorization"] = f"Bearer {target.api_key}"
        self._dialect = DIALECTS[target.dialect]
        self._model = ""
        self._asks_for_ids = False
        self._measurements: list[Measurement] = []
        self._errors: list[str] = []
        self._answered: dict[str, asyncio.Event] = {}
        self._started_at = 0.0

    async def measure(
        self,
        workload: Sequence[WorkloadRequest],
        *,
        concurrency: int | None = None,
        warm_up: int = 0,
    ) -> LoadResult:
        """Run the workload; see `drive_server`."""
        self._model = self._target.model or ""
        if not self._model:
            try:
                response = await self._client.send("GET", f"{self._base}/v1/models", self._headers)
                try:
                    models = await response.read_all(_MAX_MODELS_BYTES)
                finally:
                    response.close()
                if response.status != 200:
                    raise LogError(
                        f"{self._base}: cannot list its models: status {response.status}"
                    )
                self._model = msgspec.json.decode(models, type=_Models).data[0].id
            except (HttpClientError, msgspec.MsgspecError, IndexError) as error:
                raise LogError(f"{self._base}: cannot list its models: {error}") from None
        if self._dialect.lists_ids:
            # Servers that reject or ignore `return_token_ids` count tokens in `usage`
            # only.
            self._asks_for_ids = True
            try:
                probe = self._build_request(-1, WorkloadRequest("probe", 0.0, 1, 1))
                self._asks_for_ids = (
                    await self._measure_request("probe", probe)
                ).counted_by == "ids"
            except (HttpClientError, LogError):
                self._asks_for_ids = False
        # Negative numbers, so that their prompts differ from the measured ones.
        for number, request in enumerate(workload[:warm_up]):
            await self._measure_request(request.id, self._build_request(-1 - number, request))
        self._answered = {request.id: asyncio.Event() for request in workload}
        self._started_at = self._now()
        numbered = enumerate(workload)
        if concurrency is None:
            await asyncio.gather(
                *(self._run_client(iter([item]), keeps_times=True) for item in numbered)
            )
        else:
            # One iterator for all clients: each takes the next request.
            await asyncio.gather(
                *(self._run_client(numbered, keeps_times=False) for _ in range(concurrency))
            )
        if not self._measurements:
            raise LogError(
                f"{self._target.url}: all requests failed; the first error: {self._errors[0]}"
            )
        return LoadResult(self._model, tuple(self._measurements), tuple(self._errors))

    async def _run_client(
        self, requests: Iterator[tuple[int, WorkloadRequest]], *, keeps_times: bool
    ) -> None:
        """Send requests one after the other.

        keeps_times: send each at its time in the workload; otherwise as soon as the
            previous one is answered.
        """
        for number, request in requests:
            start_time = self._started_at
            if request.after is not None:
                await self._answered[request.after].wait()
                start_time = self._now()
            body = self._build_request(number, request)
            if keeps_times:
                # Send on time even if the server is slow, so that its queueing delay is
                # measured.
                await asyncio.sleep(start_time + request.arrival_s - self._now())
            try:
                self._measurements.append(await self._measure_request(request.id, body))
            except (HttpClientError, LogError) as error:
                self._errors.append(str(error) or type(error).__name__)
            # Set even after a failure: the conversation's next turn would wait forever.
            self._answered[request.id].set()
            self._on_progress(len(self._measurements) + len(self._errors))

    async def _measure_request(self, id: str, body: bytes) -> Measurement:
        meter = StreamMeter(self._dialect)
        sent_at = self._now()
        response = await self._client.send(
            "POST", self._base + self._dialect.path, self._headers, body
        )
        try:
            if response.status != 200:
                raise LogError(
                    f"{response.status}: "
                    f"{(await response.read_all(200))[:200].decode(errors='replace')}"
                )
            incomplete_line = b""
            while (piece := await response.read()) is not None:
                # Split bytes, not text: a chunk may end within a character.
                *lines, incomplete_line = (incomplete_line + piece).split(b"\n")
                for line in lines:
                    meter.feed(line.decode(errors="replace").removesuffix("\r"), self._now())
            meter.feed(incomplete_line.decode(errors="replace"), self._now())
        finally:
            response.close()
        return meter.finish(id, sent_at)

    def _build_request(self, number: int, request: WorkloadRequest) -> bytes:
        """Build a request body. Called before the request's time, to keep this work out
        of the measurement.
        """
        words = np.random.default_rng(abs(number)).integers(
            len(PROMPT_WORDS), size=request.input_tokens
        )
        prompt = " ".join(
            [str(number), *(PROMPT_WORDS[word] for word in cast("list[int]", words.tolist())[1:])]
        )
        body = self._dialect.build_body(self._model, prompt, request.output_tokens)
        if self._asks_for_ids:
            body["return_token_ids"] = True
        fields = {name: value for name, value in (body | self._extra).items() if value is not None}
        return msgspec.json.encode(fields)
